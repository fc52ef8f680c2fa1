package fastbk.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Writers that go on until they are ended, half of them in each version, from ledger to ledger. */
final class Load implements AutoCloseable {
    static final int WRITERS = 4;
    private static final int ENTRIES_MAX = 1000;
    private static final int WINDOW = 20;
    private static final int SECONDS_MAX = 40;

    final ConcurrentLinkedQueue<Written> ledgers = new ConcurrentLinkedQueue<>();
    final ConcurrentLinkedQueue<String> failures = new ConcurrentLinkedQueue<>();
    final AtomicLong acknowledged = new AtomicLong();
    private final List<BookKeeper> clients = new ArrayList<>();
    private final List<Thread> threads = new ArrayList<>();
    private final long[] generations = new long[WRITERS];
    private volatile long generation;
    private volatile boolean isOver;

    /** A ledger, and how far its writer was told. */
    static final class Written {
        final long ledgerId;
        volatile long last = -1;

        Written(long ledgerId) {
            this.ledgerId = ledgerId;
        }
    }

    Load(World world) throws Exception {
        for (boolean isV2 : new boolean[] {true, false}) {
            ClientConfiguration configuration = world.configuration();
            configuration.setUseV2WireProtocol(isV2);
            clients.add(new BookKeeper(configuration));
        }
        for (int i = 0; i < WRITERS; i++) {
            int number = i;
            Thread thread = new Thread(() -> run(number), "writer-" + i);
            thread.setDaemon(true);
            threads.add(thread);
            thread.start();
        }
    }

    /** Has all writers close their ledgers and begin new ones; returns when they have. */
    void roll() throws Exception {
        long wanted = ++generation;
        Check.until(() -> isAt(wanted), SECONDS_MAX, "all writers to begin new ledgers");
    }

    private synchronized boolean isAt(long wanted) {
        for (long each : generations) {
            if (each < wanted) {
                return false;
            }
        }
        return true;
    }

    /** Waits until so many more entries were acknowledged. */
    void advance(int entries) throws Exception {
        long target = acknowledged.get() + entries;
        Check.until(() -> acknowledged.get() >= target, SECONDS_MAX, entries + " more entries");
    }

    /** Demands that no writer has failed so far. */
    void checkNoFailure() {
        Check.equal(0, failures.size(), "failures of writers, the first of them " + failures.peek());
    }

    /** Ends all writers in order. */
    void end() throws InterruptedException {
        isOver = true;
        for (Thread each : threads) {
            each.join(TimeUnit.SECONDS.toMillis(SECONDS_MAX));
        }
    }

    private void run(int number) {
        while (!isOver) {
            try {
                write(number);
            } catch (Exception error) {
                failures.add(error.toString());
                pause(200);
            }
        }
    }

    private void write(int number) throws Exception {
        int ackQuorum = 1 + number / 2;
        long mine = generation;
        LedgerHandle writer =
                clients.get(number % 2).createLedger(2, 2, ackQuorum, DigestType.CRC32C, World.PASSWORD);
        Written ledger = new Written(writer.getId());
        ledgers.add(ledger);
        synchronized (this) {
            generations[number] = mine;
        }
        Semaphore window = new Semaphore(WINDOW);
        for (int entryId = 0; entryId < ENTRIES_MAX && mine == generation && !isOver; entryId++) {
            // As much as can be read back soon.
            if (entryId % 10 == 9) {
                pause(40);
            }
            acquire(window, 1);
            writer.asyncAddEntry(World.payload(writer.getId(), entryId), (rc, handle, id, context) -> {
                if (rc == BKException.Code.OK) {
                    ledger.last = id;
                    acknowledged.incrementAndGet();
                } else {
                    failures.add("ledger " + handle.getId() + ": " + BKException.getMessage(rc));
                }
                window.release();
            }, null);
        }
        acquire(window, WINDOW);
        writer.close();
    }

    private static void acquire(Semaphore window, int count) throws Exception {
        Check.isTrue(window.tryAcquire(count, SECONDS_MAX, TimeUnit.SECONDS), "an add got no answer");
    }

    private static void pause(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() throws Exception {
        end();
        for (BookKeeper each : clients) {
            each.close();
        }
    }
}
