package fastbk.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/** Ledgers whose writer did not close them, and writers that others fence. */
final class RecoveryCells {
    private RecoveryCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("recovery", RecoveryCells::recovery);
        cells.put("recovery-empty-ledger", RecoveryCells::emptyLedger);
        cells.put("recovery-by-several", RecoveryCells::bySeveral);
        cells.put("recovery-parallel-reads", RecoveryCells::parallelReads);
        cells.put("recovery-bookie-down", RecoveryCells::bookieDown);
        cells.put("recovery-under-load", RecoveryCells::underLoad);
        cells.put("open-no-recovery-fences-nobody", RecoveryCells::openNoRecovery);
        cells.put("python-reads-java", RecoveryCells::pythonReads);
        cells.put("python-fences-java", RecoveryCells::pythonFences);
        cells.put("java-reads-python", RecoveryCells::readsPython);
        cells.put("java-fences-python", RecoveryCells::fencesPython);
    }

    private static void recovery(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        World.append(writer, 0, 50);
        try (LedgerHandle reader = world.open(writer.getId())) {
            Check.equal(49L, reader.getLastAddConfirmed(), "last entry");
            World.checkEntries(reader, 0, 49);
        }
        Check.fails(() -> writer.addEntry(new byte[3]), Code.LedgerFencedException, Code.LedgerClosedException);
        LedgerMetadata metadata = world.client().getLedgerMetadata(writer.getId()).get();
        Check.isTrue(metadata.isClosed(), "closed by recovery");
        Check.equal(49L, metadata.getLastEntryId(), "last entry in the metadata");
    }

    private static void emptyLedger(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        try (LedgerHandle reader = world.open(writer.getId())) {
            Check.equal(-1L, reader.getLastAddConfirmed(), "last entry of an empty ledger");
        }
        Check.fails(() -> writer.addEntry(new byte[3]), Code.LedgerFencedException, Code.LedgerClosedException);
    }

    private static void bySeveral(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        World.append(writer, 0, 50);
        List<CompletableFuture<Long>> ends = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            BookKeeper client = i % 2 == 0 ? world.client() : world.client(world.configuration());
            ends.add(CompletableFuture.supplyAsync(() -> {
                try (LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, World.PASSWORD)) {
                    World.checkEntries(reader, 0, 49);
                    return reader.getLastAddConfirmed();
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }));
        }
        for (CompletableFuture<Long> end : ends) {
            Check.equal(49L, end.get(60, TimeUnit.SECONDS), "last entry");
        }
    }

    private static void parallelReads(World world) throws Exception {
        LedgerHandle writer = world.create(3, 2, 2);
        World.append(writer, 0, 50);
        ClientConfiguration configuration = world.configuration();
        configuration.setEnableParallelRecoveryRead(true);
        configuration.setRecoveryReadBatchSize(10);
        BookKeeper client = world.client(configuration);
        try (LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, World.PASSWORD)) {
            World.checkEntries(reader, 0, 49);
        }
    }

    private static void bookieDown(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        World.append(writer, 0, 50);
        BookieId victim = World.ensemble(writer).get(0);
        world.kill(victim);
        try (LedgerHandle reader = world.open(writer.getId())) {
            Check.equal(49L, reader.getLastAddConfirmed(), "last entry");
            World.checkEntries(reader, 0, 49);
        }
        world.start(victim);
    }

    private static void underLoad(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (long entryId = 0; entryId < 3000; entryId++) {
            adds.add(writer.appendAsync(World.payload(writer.getId(), entryId)));
        }
        adds.get(200).get(30, TimeUnit.SECONDS);
        try (LedgerHandle reader = world.client(world.configuration())
                .openLedger(writer.getId(), DigestType.CRC32C, World.PASSWORD)) {
            long acknowledged = -1;
            for (CompletableFuture<Long> add : adds) {
                try {
                    acknowledged = add.get(30, TimeUnit.SECONDS);
                } catch (java.util.concurrent.ExecutionException refused) {
                    break;
                }
            }
            Check.isTrue(acknowledged <= reader.getLastAddConfirmed(),
                    "acknowledged up to " + acknowledged + ", closed at " + reader.getLastAddConfirmed());
            World.checkEntries(reader, 0, reader.getLastAddConfirmed());
        }
    }

    private static void openNoRecovery(World world) throws Exception {
        try (LedgerHandle writer = world.create(3, 3, 2)) {
            World.append(writer, 0, 10);
            try (LedgerHandle reader = world.admin().openLedgerNoRecovery(writer.getId())) {
                Check.isTrue(reader.readLastConfirmed() >= 8, "last add confirmed");
            }
            World.append(writer, 10, 10);
        }
    }

    private static void pythonReads(World world) throws Exception {
        long ledgerId = world.written(3, 3, 2, 40);
        Check.equal("39", world.ask("python-read", "" + ledgerId), "last entry that Python read");
    }

    private static void pythonFences(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        World.append(writer, 0, 40);
        Check.equal("39", world.ask("python-read", "" + writer.getId()), "last entry by Python's recovery");
        Check.fails(() -> writer.addEntry(new byte[3]), Code.LedgerFencedException, Code.LedgerClosedException);
    }

    private static void readsPython(World world) throws Exception {
        long ledgerId = Long.parseLong(world.ask("python-write", "40"));
        world.ask("python-close");
        try (LedgerHandle reader = world.open(ledgerId)) {
            World.checkEntries(reader, 0, 39);
        }
    }

    private static void fencesPython(World world) throws Exception {
        long ledgerId = Long.parseLong(world.ask("python-write", "40"));
        try (LedgerHandle reader = world.open(ledgerId)) {
            Check.equal(39L, reader.getLastAddConfirmed(), "last entry");
            World.checkEntries(reader, 0, 39);
        }
        Check.equal("LedgerFenced", world.ask("python-append"), "what Python's writer is told");
    }
}
