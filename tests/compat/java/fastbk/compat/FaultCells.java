package fastbk.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/** Bookies that die, hang and come back under a writer. */
final class FaultCells {
    private FaultCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("change-after-kill", world -> retried(() -> changeAfterKill(world, 3, 3, 2)));
        cells.put("change-after-kill-full-quorum", world -> retried(() -> changeAfterKill(world, 3, 2, 2)));
        cells.put("change-twice", FaultCells::changeTwice);
        cells.put("change-delayed", FaultCells::changeDelayed);
        cells.put("change-after-silence", FaultCells::changeAfterSilence);
        cells.put("restart-keeps-entries", FaultCells::restartKeepsEntries);
        cells.put("restart-keeps-fence", FaultCells::restartKeepsFence);
    }

    /** The client gets stuck now and then when it replaces the same bookie twice (apache/bookkeeper#4261). */
    static void retried(Check.Action action) throws Exception {
        for (int attempt = 0;; attempt++) {
            try {
                action.run();
                return;
            } catch (TimeoutException stuck) {
                if (attempt == 2) {
                    throw stuck;
                }
                System.err.println("the client is stuck: once more");
            }
        }
    }

    private static void changeAfterKill(World world, int ensemble, int writeQuorum, int ackQuorum) throws Exception {
        LedgerHandle writer = world.create(ensemble, writeQuorum, ackQuorum);
        List<CompletableFuture<Long>> adds = appendLater(writer, 0, 500);
        adds.get(100).get(30, TimeUnit.SECONDS);
        BookieId victim = World.ensemble(writer).get(1);
        world.kill(victim);
        adds.addAll(appendLater(writer, 500, 500));
        try {
            Check.allDone(adds, 25);
        } catch (TimeoutException stuck) {
            world.start(victim); // the next attempt kills another one
            throw stuck;
        }
        writer.close();
        Check.isTrue(!World.ensemble(writer).contains(victim), "the dead bookie was replaced");
        try (LedgerHandle reader = world.open(writer.getId())) {
            World.checkEntries(reader, 0, 999);
            world.start(victim);
            World.checkEntries(reader, 0, 999);
        }
    }

    private static void changeTwice(World world) throws Exception {
        LedgerHandle writer = world.create(2, 2, 2);
        World.append(writer, 0, 50);
        BookieId first = World.ensemble(writer).get(0);
        world.kill(first);
        World.append(writer, 50, 50);
        BookieId second = World.ensemble(writer).get(1);
        Check.isTrue(!first.equals(second), "the second victim is another one");
        world.kill(second);
        World.append(writer, 100, 50);
        writer.close();
        world.start(first);
        world.start(second);
        try (LedgerHandle reader = world.open(writer.getId())) {
            World.checkEntries(reader, 0, 149);
        }
    }

    private static void changeDelayed(World world) throws Exception {
        ClientConfiguration configuration = world.configuration();
        configuration.setDelayEnsembleChange(true);
        BookKeeper client = world.client(configuration);
        LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, World.PASSWORD);
        World.append(writer, 0, 20);
        BookieId victim = World.ensemble(writer).get(2);
        world.kill(victim);
        World.append(writer, 20, 50);
        Check.isTrue(World.ensemble(writer).contains(victim), "a bookie that is not needed stays");
        writer.close();
        world.start(victim);
        try (LedgerHandle reader = world.open(writer.getId())) {
            World.checkEntries(reader, 0, 69);
        }
    }

    private static void changeAfterSilence(World world) throws Exception {
        ClientConfiguration configuration = world.configuration();
        configuration.setAddEntryTimeout(2);
        BookKeeper client = world.client(configuration);
        LedgerHandle writer = client.createLedger(3, 3, 3, DigestType.CRC32C, World.PASSWORD);
        World.append(writer, 0, 20);
        BookieId victim = World.ensemble(writer).get(0);
        world.pause(victim);
        World.append(writer, 20, 20);
        Check.isTrue(!World.ensemble(writer).contains(victim), "the silent bookie was replaced");
        world.resume(victim);
        writer.close();
        try (LedgerHandle reader = world.open(writer.getId())) {
            World.checkEntries(reader, 0, 39);
        }
    }

    private static void restartKeepsEntries(World world) throws Exception {
        LedgerHandle writer = world.create(1, 1, 1);
        World.append(writer, 0, 100);
        BookieId bookie = World.ensemble(writer).get(0);
        world.kill(bookie);
        world.start(bookie);
        try (LedgerHandle reader = world.client(world.configuration())
                .openLedger(writer.getId(), DigestType.CRC32C, World.PASSWORD)) {
            Check.equal(99L, reader.getLastAddConfirmed(), "last entry");
            World.checkEntries(reader, 0, 99);
        }
    }

    private static void restartKeepsFence(World world) throws Exception {
        LedgerHandle writer = world.create(1, 1, 1);
        World.append(writer, 0, 10);
        world.open(writer.getId()).close();
        BookieId bookie = World.ensemble(writer).get(0);
        world.kill(bookie);
        world.start(bookie);
        Check.isTrue(Check.fails(() -> writer.addEntry(new byte[1]),
                org.apache.bookkeeper.client.BKException.Code.LedgerFencedException,
                org.apache.bookkeeper.client.BKException.Code.LedgerClosedException) != 0, "refused");
    }

    private static List<CompletableFuture<Long>> appendLater(LedgerHandle writer, long first, int count) {
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (long entryId = first; entryId < first + count; entryId++) {
            adds.add(writer.appendAsync(World.payload(writer.getId(), entryId)));
        }
        return adds;
    }
}
