package fastbk.compat;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.Unpooled;
import io.netty.util.ReferenceCounted;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.DataFormats.LedgerMetadataFormat.DigestType;
import org.apache.bookkeeper.proto.checksum.DigestManager;

/** Single requests to one bookie, with what no well-behaved client sends among them. */
final class WireCells {
    private final World world;
    private final BookieClient bookies;
    final BookieId bookie;
    final long ledgerId;
    final byte[] key;
    private final DigestManager digests;

    /** With a fresh ledger on one bookie. */
    WireCells(World world) throws Exception {
        this.world = world;
        bookies = world.client().getClientCtx().getBookieClient();
        LedgerHandle ledger = world.create(1, 1, 1);
        ledgerId = ledger.getId();
        bookie = World.ensemble(ledger).get(0);
        key = DigestManager.generateMasterKey(World.PASSWORD);
        digests = DigestManager.instantiate(ledgerId, World.PASSWORD, DigestType.CRC32C, ByteBufAllocator.DEFAULT,
                world.isV2);
    }

    /** A cell on a fresh ledger. */
    @FunctionalInterface
    private interface Body {
        void run(WireCells wire) throws Exception;
    }

    static void addTo(Map<String, Cell> cells) {
        put(cells, "wire-add-fenced", WireCells::addFenced);
        put(cells, "wire-add-wrong-key", WireCells::addWrongKey);
        put(cells, "wire-fence-wrong-key", WireCells::fenceWrongKey);
        put(cells, "wire-recovery-add-passes-fence", WireCells::recoveryAdd);
        put(cells, "wire-add-same-again", WireCells::addSameAgain);
        put(cells, "wire-read-no-ledger", WireCells::readNoLedger);
        put(cells, "wire-read-no-entry", WireCells::readNoEntry);
        put(cells, "wire-read-last", WireCells::readLast);
        put(cells, "wire-fence-unknown-ledger", WireCells::fenceUnknownLedger);
        put(cells, "wire-explicit-lac", WireCells::explicitLac);
        put(cells, "wire-adds-out-of-order", WireCells::outOfOrder);
        put(cells, "wire-pipelined-duplicates", WireCells::pipelinedDuplicates);
    }

    private static void put(Map<String, Cell> cells, String name, Body body) {
        cells.put(name, world -> body.run(new WireCells(world)));
    }

    private void addFenced() throws Exception {
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "first add");
        Check.equal(Code.OK, read(ledgerId, -1, BookieProtocol.FLAG_DO_FENCING, key), "fencing read");
        Check.equal(Code.LedgerFencedException, add(1, key, BookieProtocol.FLAG_NONE), "add after the fence");
    }

    private void addWrongKey() throws Exception {
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "first add");
        byte[] other = DigestManager.generateMasterKey(new byte[] {1});
        Check.equal(Code.UnauthorizedAccessException, add(1, other, BookieProtocol.FLAG_NONE), "add with another key");
        Check.equal(Code.OK, add(1, key, BookieProtocol.FLAG_NONE), "add with the right one");
    }

    private void fenceWrongKey() throws Exception {
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "first add");
        byte[] other = DigestManager.generateMasterKey(new byte[] {1});
        Check.equal(Code.UnauthorizedAccessException, read(ledgerId, -1, BookieProtocol.FLAG_DO_FENCING, other),
                "fence with another key");
        Check.equal(Code.OK, add(1, key, BookieProtocol.FLAG_NONE), "add after it");
    }

    private void recoveryAdd() throws Exception {
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "first add");
        Check.equal(Code.OK, read(ledgerId, 0, BookieProtocol.FLAG_DO_FENCING, key), "fencing read");
        short flags = (short) (BookieProtocol.FLAG_RECOVERY_ADD | BookieProtocol.FLAG_HIGH_PRIORITY);
        Check.equal(Code.OK, add(1, key, flags), "recovery add");
        Check.equal(Code.OK, read(ledgerId, 1, BookieProtocol.FLAG_NONE, null), "read of what it added");
    }

    private void addSameAgain() throws Exception {
        short flags = (short) (BookieProtocol.FLAG_RECOVERY_ADD | BookieProtocol.FLAG_HIGH_PRIORITY);
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "first add");
        Check.equal(Code.OK, add(1, key, BookieProtocol.FLAG_NONE), "second add");
        // As recovery does: the same data, another LAC and so another digest.
        Check.equal(Code.OK, add(1, 1, key, flags), "the same entry with another LAC");
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "the same entry as a plain add");
    }

    private void readNoLedger() throws Exception {
        int code = read(8_888_888_888L, 0, BookieProtocol.FLAG_NONE, null);
        Check.equal(Code.NoSuchLedgerExistsException, code, "read of a ledger that is not there");
    }

    private void readNoEntry() throws Exception {
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "first add");
        Check.equal(Code.NoSuchEntryException, read(ledgerId, 7, BookieProtocol.FLAG_NONE, null), "a later entry");
    }

    private void readLast() throws Exception {
        for (long entryId = 0; entryId < 4; entryId++) {
            Check.equal(Code.OK, add(entryId, key, BookieProtocol.FLAG_NONE), "add");
        }
        CompletableFuture<Long> held = new CompletableFuture<>();
        bookies.readEntry(bookie, ledgerId, BookieProtocol.LAST_ADD_CONFIRMED, (rc, ledger, entry, body, context) ->
                held.complete(rc == Code.OK ? body.getLong(8) : -100L + rc), null, BookieProtocol.FLAG_NONE);
        Check.equal(3L, held.get(15, TimeUnit.SECONDS), "id in the bytes of the last entry");
    }

    private void fenceUnknownLedger() throws Exception {
        int code = read(ledgerId, -1, BookieProtocol.FLAG_DO_FENCING, key);
        Check.isTrue(code == Code.NoSuchEntryException || code == Code.NoSuchLedgerExistsException,
                "fencing read of a ledger without entries: " + code);
        Check.equal(Code.LedgerFencedException, add(0, key, BookieProtocol.FLAG_NONE), "add after it");
    }

    private void explicitLac() throws Exception {
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "first add");
        CompletableFuture<Integer> written = new CompletableFuture<>();
        bookies.writeLac(bookie, ledgerId, key, 0, digests.computeDigestAndPackageForSendingLac(0),
                (rc, ledger, from, context) -> written.complete(rc), null);
        Check.equal(Code.OK, written.get(15, TimeUnit.SECONDS), "explicit LAC");
        CompletableFuture<String> found = new CompletableFuture<>();
        bookies.readLac(bookie, ledgerId, (rc, ledger, lac, last, context) ->
                found.complete(rc + " lac " + (lac == null ? "none" : lac.readableBytes() + ":" + lac.getLong(8))
                        + " last " + (last == null ? "none" : "" + last.getLong(8))), null);
        Check.equal("0 lac 20:0 last 0", found.get(15, TimeUnit.SECONDS), "read LAC");
    }

    private void outOfOrder() throws Exception {
        for (long entryId : new long[] {5, 2, 9, 0}) {
            Check.equal(Code.OK, add(entryId, key, BookieProtocol.FLAG_NONE), "add of " + entryId);
        }
        Check.equal(Code.OK, read(ledgerId, 2, BookieProtocol.FLAG_NONE, null), "read of 2");
        Check.equal(Code.NoSuchEntryException, read(ledgerId, 3, BookieProtocol.FLAG_NONE, null), "read of 3");
    }

    private void pipelinedDuplicates() throws Exception {
        Check.equal(Code.OK, add(0, key, BookieProtocol.FLAG_NONE), "first add");
        List<CompletableFuture<Integer>> reads = new java.util.ArrayList<>();
        for (int i = 0; i < 200; i++) {
            reads.add(readLater(ledgerId, i % 3 == 0 ? 0 : -1, BookieProtocol.FLAG_NONE, null));
        }
        for (CompletableFuture<Integer> each : reads) {
            Check.equal(Code.OK, each.get(15, TimeUnit.SECONDS), "one of many equal reads");
        }
    }

    int add(long entryId, byte[] masterKey, short flags) throws Exception {
        return add(entryId, entryId - 1, masterKey, flags);
    }

    private int add(long entryId, long lac, byte[] masterKey, short flags) throws Exception {
        return addLater(entryId, lac, masterKey, flags).get(15, TimeUnit.SECONDS);
    }

    CompletableFuture<Integer> addLater(long entryId, long lac, byte[] masterKey, short flags) {
        ByteBuf data = Unpooled.wrappedBuffer(World.payload(ledgerId, entryId));
        ReferenceCounted packaged =
                digests.computeDigestAndPackageForSending(entryId, lac, 10_000, data, masterKey, flags);
        CompletableFuture<Integer> done = new CompletableFuture<>();
        bookies.addEntry(bookie, ledgerId, masterKey, entryId, packaged,
                (rc, ledger, entry, from, context) -> done.complete(rc), null, flags, false, WriteFlag.NONE);
        return done;
    }

    int read(long ledger, long entryId, short flags, byte[] masterKey) throws Exception {
        return readLater(ledger, entryId, flags, masterKey).get(15, TimeUnit.SECONDS);
    }

    CompletableFuture<Integer> readLater(long ledger, long entryId, short flags, byte[] masterKey) {
        CompletableFuture<Integer> done = new CompletableFuture<>();
        bookies.readEntry(bookie, ledger, entryId, (rc, id, entry, body, context) -> done.complete(rc), null, flags,
                masterKey);
        return done;
    }
}
