package fastbk.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieProtocol;

/** Bookies that refuse adds, as told over HTTP or because a disk is full, and go on serving reads. */
final class ReadOnlyCells {
    private ReadOnlyCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("read-only-writer-moves", world -> FaultCells.retried(() -> writerMoves(world, 3, 3, 2)));
        cells.put("read-only-writer-moves-full-quorum",
                world -> FaultCells.retried(() -> writerMoves(world, 2, 2, 2)));
        cells.put("read-only-statuses", ReadOnlyCells::statuses);
        cells.put("read-only-serves-reads", ReadOnlyCells::servesReads);
        cells.put("read-only-recovery", ReadOnlyCells::recovery);
        cells.put("read-only-too-many", ReadOnlyCells::tooMany);
        cells.put("read-only-not-chosen", ReadOnlyCells::notChosen);
    }

    static void addDiskFullTo(Map<String, Cell> cells) {
        cells.put("disk-full-writer-moves", ReadOnlyCells::diskFull);
    }

    private static void writerMoves(World world, int ensemble, int writeQuorum, int ackQuorum) throws Exception {
        LedgerHandle writer = world.create(ensemble, writeQuorum, ackQuorum);
        List<CompletableFuture<Long>> adds = appendLater(writer, 0, 500);
        adds.get(100).get(30, TimeUnit.SECONDS);
        BookieId victim = World.ensemble(writer).get(1);
        world.readOnly(victim);
        adds.addAll(appendLater(writer, 500, 500));
        try {
            Check.allDone(adds, 25);
        } catch (TimeoutException stuck) {
            world.writable(victim);
            throw stuck;
        }
        Check.until(() -> !World.ensemble(writer).contains(victim), 10, "the read-only bookie to be replaced");
        Check.isTrue(writer.getLedgerMetadata().getAllEnsembles().get(0L).contains(victim), "it keeps what it has");
        writer.close();
        try (LedgerHandle reader = world.open(writer.getId())) {
            World.checkEntries(reader, 0, 999);
        }
    }

    /** Single requests to a bookie that was made read-only between two of them. */
    private static void statuses(World world) throws Exception {
        WireCells wire = new WireCells(world);
        Check.equal(Code.OK, wire.add(0, wire.key, BookieProtocol.FLAG_NONE), "add before");
        world.readOnly(wire.bookie);
        Check.equal(Code.WriteOnReadOnlyBookieException, wire.add(1, wire.key, BookieProtocol.FLAG_NONE), "add");
        Check.equal(Code.OK, wire.read(wire.ledgerId, 0, BookieProtocol.FLAG_NONE, null), "read");
        Check.equal(Code.NoSuchEntryException, wire.read(wire.ledgerId, 1, BookieProtocol.FLAG_NONE, null),
                "read of what was refused");
        Check.equal(Code.OK, wire.read(wire.ledgerId, 0, BookieProtocol.FLAG_DO_FENCING, wire.key), "fencing read");
        short recovery = (short) (BookieProtocol.FLAG_RECOVERY_ADD | BookieProtocol.FLAG_HIGH_PRIORITY);
        Check.equal(Code.OK, wire.add(1, wire.key, recovery), "a repair's add");
        Check.equal(Code.OK, wire.read(wire.ledgerId, 1, BookieProtocol.FLAG_NONE, null), "read of the repair's add");
        world.writable(wire.bookie);
        Check.equal(Code.LedgerFencedException, wire.add(2, wire.key, BookieProtocol.FLAG_NONE),
                "add to the ledger that was fenced meanwhile");
        WireCells other = new WireCells(world);
        Check.equal(Code.OK, other.add(0, other.key, BookieProtocol.FLAG_NONE), "add to another ledger");
    }

    /** All that there is of these ledgers is on one bookie. */
    private static void servesReads(World world) throws Exception {
        LedgerHandle closed = world.create(1, 1, 1);
        BookieId victim = World.ensemble(closed).get(0);
        World.append(closed, 0, 100);
        closed.close();
        world.readOnly(victim);
        try (LedgerHandle reader = world.client(world.configuration()).openLedger(closed.getId(),
                org.apache.bookkeeper.client.BookKeeper.DigestType.CRC32C, World.PASSWORD)) {
            Check.equal(99L, reader.getLastAddConfirmed(), "last entry");
            World.checkEntries(reader, 0, 99);
            Check.equal(99L, reader.readLastEntry().getEntryId(), "last entry read");
        }
    }

    /** An open ledger is fenced and closed with all members of its ensemble read-only. */
    private static void recovery(World world) throws Exception {
        LedgerHandle writer = world.create(2, 2, 2);
        World.append(writer, 0, 100);
        for (BookieId each : World.ensemble(writer)) {
            world.readOnly(each);
        }
        try (LedgerHandle reader = world.open(writer.getId())) {
            Check.equal(99L, reader.getLastAddConfirmed(), "last entry");
            World.checkEntries(reader, 0, 99);
        }
        Check.fails(() -> writer.addEntry(new byte[1]), Code.LedgerFencedException, Code.LedgerClosedException);
    }

    /** Too few are left to write to: the writer ends with an error, and what it was told stays true. */
    private static void tooMany(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 3);
        World.append(writer, 0, 50);
        world.readOnly(World.ensemble(writer).get(0));
        world.readOnly(World.ensemble(writer).get(2));
        Check.fails(() -> World.append(writer, 50, 20), Code.NotEnoughBookiesException);
        try (LedgerHandle reader = world.open(writer.getId())) {
            Check.isTrue(reader.getLastAddConfirmed() >= 49, "ends at " + reader.getLastAddConfirmed());
            World.checkEntries(reader, 0, 49);
        }
    }

    private static void notChosen(World world) throws Exception {
        BookKeeperAdmin admin = world.admin();
        int count = admin.getAvailableBookies().size();
        BookieId victim = admin.getAvailableBookies().iterator().next();
        world.readOnly(victim);
        Check.until(() -> admin.getReadOnlyBookies().contains(victim), 20, "the list of those that are read-only");
        Check.until(() -> !admin.getAvailableBookies().contains(victim), 20, "the list of those that take adds");
        Check.isTrue(admin.getAllBookies().contains(victim), "it is among all bookies");
        for (int i = 0; i < 20; i++) {
            try (LedgerHandle ledger = world.create(count - 1, 1, 1)) {
                Check.isTrue(!World.ensemble(ledger).contains(victim), "a new ledger has no read-only bookie");
            }
        }
        Check.fails(() -> world.create(count, 1, 1), Code.NotEnoughBookiesException);
        world.writable(victim);
        Check.until(() -> admin.getReadOnlyBookies().isEmpty(), 20, "nobody to be read-only any more");
        Check.isTrue(admin.getAvailableBookies().contains(victim), "it is among those that take adds");
        try (LedgerHandle ledger = world.create(count, 1, 1)) {
            World.append(ledger, 0, 10);
        }
    }

    /** The disk of one bookie fills while it is written to, and is emptied again. */
    private static void diskFull(World world) throws Exception {
        BookieId victim = BookieId.parse(world.ask("disk-bookie"));
        LedgerHandle writer = world.create(4, 4, 3);
        World.append(writer, 0, 100);
        Check.isTrue(World.ensemble(writer).contains(victim), "all four are in the ensemble");
        LedgerHandle small = null;
        while (small == null || !World.ensemble(small).contains(victim)) {
            small = world.create(3, 3, 2);
        }
        World.append(small, 0, 100);
        world.ask("disk-fill");
        Check.until(() -> world.admin().getReadOnlyBookies().contains(victim), 30, "the full bookie to say so");
        World.append(small, 100, 200);
        LedgerHandle moved = small;
        Check.until(() -> !World.ensemble(moved).contains(victim), 10, "the full bookie to be replaced");
        small.close();
        try (LedgerHandle reader = world.open(small.getId())) {
            World.checkEntries(reader, 0, 299);
        }
        try (LedgerHandle reader = world.open(writer.getId())) {
            World.checkEntries(reader, 0, 99);
        }
        world.ask("disk-empty");
        Check.until(() -> world.admin().getAvailableBookies().contains(victim), 30, "the bookie to take adds again");
        LedgerHandle again = null;
        for (int i = 0; i < 200 && again == null; i++) {
            Thread.sleep(50);
            try {
                again = world.create(4, 4, 4);
            } catch (org.apache.bookkeeper.client.BKException.BKNotEnoughBookiesException notYet) {
                continue;
            }
        }
        Check.isTrue(again != null, "the client chooses the bookie again");
        World.append(again, 0, 100);
        again.close();
    }

    private static List<CompletableFuture<Long>> appendLater(LedgerHandle writer, long first, int count) {
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (long entryId = first; entryId < first + count; entryId++) {
            adds.add(writer.appendAsync(World.payload(writer.getId(), entryId)));
        }
        return adds;
    }
}
