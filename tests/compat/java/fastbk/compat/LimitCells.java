package fastbk.compat;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.proto.BookieProtocol;

/** Bookies with narrow limits on requests that are not answered yet: the rest is refused, and nothing is lost. */
final class LimitCells {
    private static final int FLOOD = 3000;
    private static final int SECONDS_MAX = 60;
    /** Below every limit of `limits.py`. */
    private static final int WINDOW = 4;

    private LimitCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("limits-adds-refused", LimitCells::addsRefused);
        cells.put("limits-reads-refused", LimitCells::readsRefused);
        cells.put("limits-small-window", LimitCells::smallWindow);
        cells.put("limits-writers", LimitCells::writers);
        cells.put("limits-readers", LimitCells::readers);
        cells.put("limits-recovery", LimitCells::recovery);
    }

    /** Some of many adds at once are refused by that name; those that are not are there, the others are not. */
    private static void addsRefused(World world) throws Exception {
        WireCells wire = new WireCells(world);
        List<CompletableFuture<Integer>> adds = new ArrayList<>();
        for (int entryId = 0; entryId < FLOOD; entryId++) {
            adds.add(wire.addLater(entryId, -1, wire.key, BookieProtocol.FLAG_NONE));
        }
        Map<Integer, Long> counts = counts(adds, Code.OK, Code.TooManyRequestsException);
        Check.isTrue(counts.containsKey(Code.TooManyRequestsException), "none was refused: " + counts);
        for (int entryId = 0; entryId < FLOOD; entryId += 50) {
            int expected = adds.get(entryId).get() == Code.OK ? Code.OK : Code.NoSuchEntryException;
            Check.equal(expected, wire.read(wire.ledgerId, entryId, BookieProtocol.FLAG_NONE, null), "read " + entryId);
        }
        Check.isTrue(counts.containsKey(Code.OK), "none was taken: " + counts);
        Check.equal(Code.OK, wire.add(FLOOD, wire.key, BookieProtocol.FLAG_NONE), "one add alone");
    }

    private static void readsRefused(World world) throws Exception {
        WireCells wire = new WireCells(world);
        for (int entryId = 0; entryId < 20; entryId++) {
            Check.equal(Code.OK, wire.add(entryId, wire.key, BookieProtocol.FLAG_NONE), "add");
        }
        List<CompletableFuture<Integer>> reads = new ArrayList<>();
        for (int i = 0; i < FLOOD; i++) {
            reads.add(wire.readLater(wire.ledgerId, i % 20, BookieProtocol.FLAG_NONE, null));
        }
        Map<Integer, Long> counts = counts(reads, Code.OK, Code.TooManyRequestsException);
        Check.isTrue(counts.containsKey(Code.TooManyRequestsException), "none was refused: " + counts);
        Check.isTrue(counts.containsKey(Code.OK), "none was answered: " + counts);
        Check.equal(Code.OK, wire.read(wire.ledgerId, 3, BookieProtocol.FLAG_NONE, null), "one read alone");
    }

    /** How many ended with which code, which has to be one of `allowed`. */
    private static Map<Integer, Long> counts(List<CompletableFuture<Integer>> all, Integer... allowed)
            throws Exception {
        Check.allDone(all, SECONDS_MAX);
        Map<Integer, Long> counts = new TreeMap<>();
        for (CompletableFuture<Integer> each : all) {
            counts.merge(each.get(), 1L, Long::sum);
        }
        Check.isTrue(List.of(allowed).containsAll(counts.keySet()), "other codes: " + counts);
        return counts;
    }

    /** Who stays below the limits notices nothing. */
    private static void smallWindow(World world) throws Exception {
        // All have to answer: with fewer one bookie may fall behind without the writer's noticing.
        LedgerHandle writer = world.create(3, 3, 3);
        Semaphore window = new Semaphore(WINDOW);
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (int entryId = 0; entryId < 1000; entryId++) {
            Check.isTrue(window.tryAcquire(SECONDS_MAX, TimeUnit.SECONDS), "an answer");
            CompletableFuture<Long> add = writer.appendAsync(World.payload(writer.getId(), entryId));
            add.whenComplete((id, error) -> window.release());
            adds.add(add);
        }
        Check.allDone(adds, SECONDS_MAX);
        Check.equal(1, writer.getLedgerMetadata().getAllEnsembles().size(), "ensembles");
        writer.close();
        try (LedgerHandle reader = world.open(writer.getId())) {
            for (long first = 0; first < 1000; first += WINDOW) {
                World.checkEntries(reader, first, first + WINDOW - 1);
            }
        }
    }

    /**
     * Writers send all they have at once. The client takes a refusal for a bookie's failure: it replaces the bookie, or
     * ends the writer where there is no other. What it said was written is there.
     */
    private static void writers(World world) throws Exception {
        Map<LedgerHandle, AtomicLong> acknowledged = new HashMap<>();
        List<CompletableFuture<Integer>> all = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            LedgerHandle writer = world.create(3, 3, 2);
            AtomicLong last = new AtomicLong(-1);
            acknowledged.put(writer, last);
            for (int entryId = 0; entryId < 500; entryId++) {
                CompletableFuture<Integer> done = new CompletableFuture<>();
                all.add(done);
                writer.asyncAddEntry(World.payload(writer.getId(), entryId), (rc, handle, id, context) -> {
                    if (rc == Code.OK) {
                        last.accumulateAndGet(id, Math::max);
                    }
                    done.complete(rc);
                }, null);
            }
        }
        Check.allDone(all, SECONDS_MAX);
        for (Map.Entry<LedgerHandle, AtomicLong> each : acknowledged.entrySet()) {
            checkLedger(world, each.getKey().getId(), each.getValue().get());
        }
        // The client and the bookies go on as before.
        long after = world.written(3, 3, 3, 20);
        checkLedger(world, after, 19);
    }

    /** Opens a ledger with recovery and reads it a few entries at a time: below the limits. */
    private static void checkLedger(World world, long ledgerId, long acknowledged) throws Exception {
        try (LedgerHandle reader = world.open(ledgerId)) {
            long last = reader.getLastAddConfirmed();
            Check.isTrue(last >= acknowledged, "ledger " + ledgerId + " ends at " + last + " before " + acknowledged);
            for (long first = 0; first <= last; first += WINDOW) {
                World.checkEntries(reader, first, Math.min(last, first + WINDOW - 1));
            }
        }
    }

    /** Readers that ask for all at once get it from another bookie, or hear that they were too many: nothing else. */
    private static void readers(World world) throws Exception {
        long ledgerId = world.written(3, 3, 3, 400);
        List<CompletableFuture<Integer>> all = new ArrayList<>();
        try (LedgerHandle reader = world.open(ledgerId)) {
            for (int i = 0; i < 10; i++) {
                CompletableFuture<Integer> done = new CompletableFuture<>();
                all.add(done);
                reader.asyncReadEntries(0, 399, (rc, handle, entries, context) -> done.complete(rc), null);
            }
            counts(all, Code.OK, Code.TooManyRequestsException);
        }
        checkLedger(world, ledgerId, 399);
    }

    /** A ledger is recovered while others flood its bookies. */
    private static void recovery(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        World.append(writer, 0, 100);
        WireCells flood = new WireCells(world);
        List<CompletableFuture<Integer>> adds = new ArrayList<>();
        for (int entryId = 0; entryId < FLOOD; entryId++) {
            adds.add(flood.addLater(entryId, -1, flood.key, BookieProtocol.FLAG_NONE));
        }
        checkLedger(world, writer.getId(), 99);
        Check.allDone(adds, SECONDS_MAX);
    }
}
