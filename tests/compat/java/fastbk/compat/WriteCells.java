package fastbk.compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;

/** Creating ledgers and adding to them. */
final class WriteCells {
    private static final int ENTRIES = 60;
    /** 5 MiB a frame, less what an add has around its data in either protocol. */
    private static final int ENTRY_BYTES_MAX = 5 * 1024 * 1024 - 256;

    private WriteCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("append", world -> {
            long ledgerId = world.written(3, 3, 2, ENTRIES);
            try (LedgerHandle reader = world.open(ledgerId)) {
                Check.equal(ENTRIES - 1L, reader.getLastAddConfirmed(), "last entry");
                World.checkEntries(reader, 0, ENTRIES - 1);
            }
        });
        for (DigestType digest : DigestType.values()) {
            cells.put("digest-" + digest.name().toLowerCase(), world -> digest(world, digest));
        }
        int[][] quorums = {
            {1, 1, 1}, {2, 2, 1}, {2, 2, 2}, {3, 1, 1}, {3, 2, 1}, {3, 2, 2}, {3, 3, 1}, {3, 3, 3}, {4, 3, 2},
        };
        for (int[] quorum : quorums) {
            cells.put("quorum-" + quorum[0] + "-" + quorum[1] + "-" + quorum[2], world -> quorum(world, quorum));
        }
        cells.put("append-window", WriteCells::window);
        cells.put("append-many-ledgers", WriteCells::manyLedgers);
        cells.put("append-empty-entry", WriteCells::emptyEntry);
        cells.put("append-entry-sizes", WriteCells::entrySizes);
        cells.put("adv-out-of-order", WriteCells::advOutOfOrder);
        cells.put("adv-own-ledger-id", WriteCells::advOwnLedgerId);
        cells.put("deferred-sync-force", WriteCells::deferredSync);
        cells.put("force-plain-ledger", WriteCells::forcePlain);
        cells.put("password-empty", world -> password(world, new byte[0]));
        cells.put("password-long", world -> password(world, new byte[300]));
        cells.put("password-wrong", WriteCells::passwordWrong);
        cells.put("custom-metadata", WriteCells::customMetadata);
    }

    private static void digest(World world, DigestType digest) throws Exception {
        LedgerHandle writer = world.client().createLedger(3, 3, 2, digest, World.PASSWORD);
        World.append(writer, 0, ENTRIES);
        long ledgerId = writer.getId();
        // Recovery, with the writer still there: found entries are written again with the digest rebuilt.
        try (LedgerHandle reader = world.client().openLedger(ledgerId, digest, World.PASSWORD)) {
            Check.equal(ENTRIES - 1L, reader.getLastAddConfirmed(), "last entry");
            World.checkEntries(reader, 0, ENTRIES - 1);
        }
    }

    private static void quorum(World world, int[] quorum) throws Exception {
        long ledgerId = world.written(quorum[0], quorum[1], quorum[2], ENTRIES);
        try (LedgerHandle reader = world.open(ledgerId)) {
            World.checkEntries(reader, 0, ENTRIES - 1);
        }
        LedgerHandle left = world.create(quorum[0], quorum[1], quorum[2]);
        World.append(left, 0, ENTRIES);
        try (LedgerHandle reader = world.open(left.getId())) {
            Check.equal(ENTRIES - 1L, reader.getLastAddConfirmed(), "last entry after recovery");
            World.checkEntries(reader, 0, ENTRIES - 1);
        }
        Check.fails(() -> left.addEntry(new byte[1]), Code.LedgerFencedException, Code.LedgerClosedException);
    }

    private static void window(World world) throws Exception {
        int count = 5000;
        try (LedgerHandle writer = world.create(3, 3, 2)) {
            List<CompletableFuture<Long>> adds = new ArrayList<>();
            List<Long> order = Collections.synchronizedList(new ArrayList<>());
            for (long entryId = 0; entryId < count; entryId++) {
                adds.add(writer.appendAsync(World.payload(writer.getId(), entryId)).thenApply(id -> {
                    order.add(id);
                    return id;
                }));
            }
            Check.allDone(adds, 60);
            for (int i = 0; i < count; i++) {
                Check.equal((long) i, order.get(i), "acknowledgement " + i);
            }
            World.checkEntries(writer, 0, count - 1);
        }
    }

    private static void manyLedgers(World world) throws Exception {
        List<LedgerHandle> writers = new ArrayList<>();
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            writers.add(world.create(3, 2, 2));
        }
        for (long entryId = 0; entryId < 50; entryId++) {
            for (LedgerHandle writer : writers) {
                adds.add(writer.appendAsync(World.payload(writer.getId(), entryId)));
            }
        }
        Check.allDone(adds, 60);
        for (LedgerHandle writer : writers) {
            writer.close();
            try (LedgerHandle reader = world.open(writer.getId())) {
                World.checkEntries(reader, 0, 49);
            }
        }
    }

    private static void emptyEntry(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        for (int i = 0; i < 3; i++) {
            writer.addEntry(new byte[0]);
        }
        try (LedgerHandle reader = world.open(writer.getId())) {
            Check.equal(2L, reader.getLastAddConfirmed(), "last entry");
            Check.equal(0L, reader.getLength(), "length");
            Check.equal(0, reader.readEntries(1, 1).nextElement().getEntry().length, "bytes of an empty entry");
        }
    }

    private static void entrySizes(World world) throws Exception {
        int[] sizes = {1, 31, 1023, 65_537, 1 << 20, ENTRY_BYTES_MAX};
        Random random = new Random(7);
        LedgerHandle writer = world.create(3, 3, 2);
        List<byte[]> entries = new ArrayList<>();
        long length = 0;
        for (int size : sizes) {
            byte[] data = new byte[size];
            random.nextBytes(data);
            entries.add(data);
            writer.addEntry(data);
            length += size;
        }
        try (LedgerHandle reader = world.open(writer.getId())) {
            Check.equal(length, reader.getLength(), "length");
            for (int i = 0; i < sizes.length; i++) {
                LedgerEntry entry = reader.readEntries(i, i).nextElement();
                Check.isTrue(Arrays.equals(entries.get(i), entry.getEntry()), "bytes of an entry of " + sizes[i]);
            }
        }
    }

    private static void advOutOfOrder(World world) throws Exception {
        try (LedgerHandle writer =
                world.client().createLedgerAdv(3, 3, 2, DigestType.CRC32C, World.PASSWORD)) {
            WriteAdvHandle adv = (WriteAdvHandle) writer;
            List<CompletableFuture<Long>> adds = new ArrayList<>();
            for (long entryId : new long[] {3, 1, 2, 4, 0, 6, 5}) {
                adds.add(adv.writeAsync(entryId, World.payload(writer.getId(), entryId)));
            }
            Check.allDone(adds, 30);
            Check.equal(6L, writer.getLastAddConfirmed(), "last add confirmed");
            World.checkEntries(writer, 0, 6);
            Check.fails(() -> adv.write(2, new byte[1]), Code.DuplicateEntryIdException);
        }
    }

    private static void advOwnLedgerId(World world) throws Exception {
        long ledgerId = 7_000_000_000L + System.nanoTime() % 1_000_000_000L;
        try (LedgerHandle writer = world.client()
                .createLedgerAdv(ledgerId, 3, 2, 2, DigestType.CRC32C, World.PASSWORD, Map.of())) {
            Check.equal(ledgerId, writer.getId(), "ledger id");
            for (long entryId = 0; entryId < 10; entryId++) {
                writer.addEntry(entryId, World.payload(ledgerId, entryId));
            }
        }
        try (LedgerHandle reader = world.open(ledgerId)) {
            World.checkEntries(reader, 0, 9);
        }
    }

    private static void deferredSync(World world) throws Exception {
        if (world.isV2) {
            throw new Cell.Skipped("the client has no deferred sync over v2");
        }
        try (WriteHandle writer = world.client().newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3)
                .withAckQuorumSize(2).withPassword(World.PASSWORD).withWriteFlags(EnumSet.of(WriteFlag.DEFERRED_SYNC))
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C).execute().get()) {
            for (long entryId = 0; entryId < 30; entryId++) {
                writer.append(World.payload(writer.getId(), entryId));
            }
            Check.equal(-1L, writer.getLastAddConfirmed(), "last add confirmed before the force");
            writer.force().get(30, TimeUnit.SECONDS);
            Check.equal(29L, writer.getLastAddConfirmed(), "last add confirmed after it");
            writer.append(World.payload(writer.getId(), 30));
            try (ReadHandle reader = world.client().newOpenLedgerOp().withLedgerId(writer.getId())
                    .withPassword(World.PASSWORD).withRecovery(false).execute().get()) {
                Check.equal(29L, reader.getLastAddConfirmed(), "what the add after the force told bookies");
                Check.isTrue(reader.readUnconfirmed(0, 29).iterator().hasNext(), "entries are readable");
            }
        }
    }

    private static void forcePlain(World world) throws Exception {
        if (world.isV2) {
            throw new Cell.Skipped("the client has no force over v2");
        }
        try (LedgerHandle writer = world.create(3, 2, 2)) {
            writer.force().get(30, TimeUnit.SECONDS);
            World.append(writer, 0, 5);
            writer.force().get(30, TimeUnit.SECONDS);
            Check.equal(4L, writer.getLastAddConfirmed(), "last add confirmed");
        }
    }

    private static void password(World world, byte[] password) throws Exception {
        LedgerHandle writer = world.client().createLedger(3, 3, 2, DigestType.MAC, password);
        World.append(writer, 0, 10);
        try (LedgerHandle reader = world.client().openLedger(writer.getId(), DigestType.MAC, password)) {
            World.checkEntries(reader, 0, 9);
        }
    }

    private static void passwordWrong(World world) throws Exception {
        long ledgerId = world.written(3, 3, 2, 5);
        byte[] wrong = "other".getBytes(StandardCharsets.UTF_8);
        Check.fails(() -> world.client().openLedger(ledgerId, DigestType.CRC32C, wrong),
                Code.UnauthorizedAccessException);
    }

    private static void customMetadata(World world) throws Exception {
        Map<String, byte[]> custom =
                Map.of("application", "compat".getBytes(StandardCharsets.UTF_8), "empty", new byte[0]);
        long ledgerId;
        try (LedgerHandle writer =
                world.client().createLedger(3, 3, 2, DigestType.CRC32C, World.PASSWORD, custom)) {
            ledgerId = writer.getId();
            World.append(writer, 0, 3);
        }
        try (LedgerHandle reader = world.open(ledgerId)) {
            Check.equal("compat", new String(reader.getCustomMetadata().get("application"), StandardCharsets.UTF_8),
                    "custom metadata");
            Check.equal(0, reader.getCustomMetadata().get("empty").length, "empty custom metadata");
        }
    }
}
