package fastbk.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Writers go on while bookies are killed and come back; then every acknowledged entry has to be there.
 *
 * <p>A round: writers over v2 and v3 with several quorums write, one or two bookies are SIGKILLed somewhere on the
 * way, half of the writers leave their ledgers open, and all ledgers of the round are opened with recovery and read to
 * their ends. Bookies come back while the rounds go on; every twentieth round waits for all, and reads everything since
 * the last time once more. Rounds and seed come as system properties.
 */
final class KillRounds implements Cell {
    private static final int ROUNDS = Integer.getInteger("fastbk.compat.rounds", 10);
    private static final long SEED = Long.getLong("fastbk.compat.seed", 1);
    private static final int WRITERS = 6;
    private static final int ENTRIES_MAX = 4000;
    private static final int WINDOW = 100;
    private static final int TRIES_MAX = 20;
    /**
     * A writer that gets no answer for so long is left where it is: requests time out after 5 s, but the client itself
     * gets stuck when it replaces the same bookie twice (apache/bookkeeper#4261).
     */
    private static final int STUCK_SECONDS = 20;
    private static final int[][] QUORUMS = {{3, 3, 2}, {3, 2, 2}, {2, 2, 2}, {3, 3, 3}, {4, 3, 2}};

    private long entries;
    private long changes;
    private long failedWriters;
    private long stuckWriters;
    private volatile boolean isOver;

    /** A ledger of a round. */
    private static final class Written {
        final LedgerHandle handle;
        final AtomicLong acknowledged = new AtomicLong(-1);
        volatile boolean isFailed;

        Written(LedgerHandle handle) {
            this.handle = handle;
        }
    }

    @Override
    public void run(World world) throws Exception {
        Random random = new Random(SEED);
        BookKeeper[] clients = {client(world, true), client(world, false)};
        ExecutorService threads = Executors.newFixedThreadPool(WRITERS);
        List<Written> since = new ArrayList<>();
        for (int done = 1; done <= ROUNDS; done++) {
            List<Written> ledgers = round(world, clients, threads, random);
            since.addAll(ledgers);
            long lost = missing(world, clients, ledgers);
            for (Written ledger : ledgers) {
                entries += ledger.acknowledged.get() + 1;
                changes += ledger.handle.getLedgerMetadata().getAllEnsembles().size() - 1;
            }
            if (done % 20 == 0 || done == ROUNDS) {
                world.ask("all-back");
                lost += missing(world, clients, since);
                since.clear();
            }
            if (done % 10 == 0 || done == ROUNDS || lost > 0) {
                System.out.printf("%d rounds, %,d acknowledged entries read back, %d bookies replaced, %d writers ended"
                        + " early, %d got stuck, %d lost%n", done, entries, changes, failedWriters, stuckWriters, lost);
                System.out.flush();
            }
            Check.equal(0L, lost, "lost entries in round " + done + " of seed " + SEED);
        }
        threads.shutdownNow();
    }

    private static BookKeeper client(World world, boolean isV2) throws Exception {
        ClientConfiguration configuration = world.configuration();
        configuration.setUseV2WireProtocol(isV2);
        configuration.setAddEntryTimeout(5);
        configuration.setReadEntryTimeout(5);
        return world.client(configuration);
    }

    private List<Written> round(World world, BookKeeper[] clients, ExecutorService threads, Random random)
            throws Exception {
        isOver = false;
        List<Written> ledgers = new ArrayList<>();
        List<Future<?>> writers = new ArrayList<>();
        for (int i = 0; i < WRITERS; i++) {
            int[] quorum = QUORUMS[random.nextInt(QUORUMS.length)];
            DigestType digest = random.nextBoolean() ? DigestType.CRC32C : DigestType.MAC;
            Written ledger = create(world, clients[i % 2], quorum, digest);
            boolean isClosed = random.nextBoolean();
            ledgers.add(ledger);
            writers.add(threads.submit(() -> write(ledger, isClosed)));
        }
        Thread.sleep(random.nextInt(200));
        world.ask("kill-some", random.nextInt(5) == 0 ? "2" : "1", "" + random.nextInt(1 << 30));
        Thread.sleep(random.nextInt(200));
        isOver = true;
        for (Future<?> writer : writers) {
            writer.get();
        }
        return ledgers;
    }

    /** Makes a ledger; where too few bookies are there, waits for them. */
    private static Written create(World world, BookKeeper client, int[] quorum, DigestType digest) throws Exception {
        for (int attempt = 0;; attempt++) {
            try {
                return new Written(client.createLedger(quorum[0], quorum[1], quorum[2], digest, World.PASSWORD));
            } catch (BKException error) {
                patience(world, attempt, error);
            }
        }
    }

    private long missing(World world, BookKeeper[] clients, List<Written> ledgers) throws Exception {
        long lost = 0;
        for (int i = 0; i < ledgers.size(); i++) {
            for (int attempt = 0;; attempt++) {
                try {
                    // Read by the client of the other protocol.
                    lost += missing(clients[(i + 1) % 2], ledgers.get(i));
                    break;
                } catch (BKException error) {
                    patience(world, attempt, error);
                }
            }
        }
        return lost;
    }

    /** Waits before another try: with too few bookies there, nothing can be said yet. */
    private static void patience(World world, int attempt, BKException error) throws Exception {
        if (attempt == TRIES_MAX) {
            throw error;
        }
        world.ask("all-back");
        Thread.sleep(500);
    }

    private void write(Written ledger, boolean isClosed) {
        Semaphore window = new Semaphore(WINDOW);
        boolean isStuck = false;
        try {
            // On and on, so that the kills strike while entries are under way; slowly enough to read them all back.
            for (int entryId = 0; entryId < ENTRIES_MAX && !isOver && !ledger.isFailed && !isStuck; entryId++) {
                if (entryId % 20 == 19) {
                    Thread.sleep(2);
                }
                isStuck = !window.tryAcquire(STUCK_SECONDS, TimeUnit.SECONDS);
                if (!isStuck) {
                    byte[] data = World.payload(ledger.handle.getId(), entryId);
                    ledger.handle.asyncAddEntry(data, (rc, handle, id, context) -> {
                        if (rc == 0) {
                            ledger.acknowledged.set(id);
                        } else {
                            ledger.isFailed = true;
                        }
                        window.release();
                    }, null);
                }
            }
            isStuck = isStuck || !window.tryAcquire(WINDOW, STUCK_SECONDS, TimeUnit.SECONDS);
            if (isClosed && !ledger.isFailed && !isStuck) {
                ledger.handle.close();
            }
        } catch (Exception error) {
            ledger.isFailed = true;
        }
        synchronized (this) {
            failedWriters += ledger.isFailed ? 1 : 0;
            stuckWriters += isStuck ? 1 : 0;
        }
    }

    private static long missing(BookKeeper client, Written ledger) throws Exception {
        long ledgerId = ledger.handle.getId();
        DigestType digest = DigestType.fromApiDigestType(ledger.handle.getLedgerMetadata().getDigestType());
        try (LedgerHandle reader = client.openLedger(ledgerId, digest, World.PASSWORD)) {
            long last = reader.getLastAddConfirmed();
            long acknowledged = ledger.acknowledged.get();
            if (last < acknowledged) {
                System.out.println("ledger " + ledgerId + " ends at " + last + ", acknowledged: " + acknowledged);
                return acknowledged - last;
            }
            if (last >= 0) {
                World.checkEntries(reader, 0, last);
            }
            return 0;
        }
    }
}
