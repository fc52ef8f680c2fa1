package fastbk.compat;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Appends with a window of entries under way, and prints what that came to.
 *
 * <p>Arguments: metadata URI, protocol (v2 or v3), window, seconds to warm up, seconds to measure, bytes of an entry,
 * ledgers, their ensemble, write quorum and ack quorum. Prints {@code READY}, reads a line and starts to measure; at the end prints {@code BENCH entries seconds
 * p50_us p99_us client_cpu_s failed}.
 */
public final class Bench {
    private static final int LATENCIES_MAX = 20_000_000;

    private final int[] latenciesUs = new int[LATENCIES_MAX];
    private final AtomicInteger count = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();
    private volatile boolean isMeasuring;

    public static void main(String[] arguments) throws Exception {
        new Bench().run(arguments);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void run(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol(arguments[1].equals("v2"));
        // The default of 5,000 is a rate limit for each handle, not a window.
        configuration.setThrottleValue(0);
        int window = Integer.parseInt(arguments[2]);
        byte[] data = new byte[Integer.parseInt(arguments[5])];
        Arrays.fill(data, (byte) 7);
        int ledgers = Integer.parseInt(arguments[6]);
        try (BookKeeper client = new BookKeeper(configuration)) {
            LedgerHandle[] writers = new LedgerHandle[ledgers];
            for (int i = 0; i < ledgers; i++) {
                writers[i] = client.createLedger(Integer.parseInt(arguments[7]), Integer.parseInt(arguments[8]),
                        Integer.parseInt(arguments[9]), DigestType.CRC32C, new byte[0]);
            }
            Semaphore room = new Semaphore(window);
            append(writers, data, room, Double.parseDouble(arguments[3]));
            System.out.println("READY");
            System.out.flush();
            System.in.read();
            OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            long cpuBefore = system.getProcessCpuTime();
            isMeasuring = true;
            long started = System.nanoTime();
            append(writers, data, room, Double.parseDouble(arguments[4]));
            double seconds = (System.nanoTime() - started) / 1e9;
            int entries = Math.min(count.get(), LATENCIES_MAX);
            isMeasuring = false;
            double cpu = (system.getProcessCpuTime() - cpuBefore) / 1e9;
            room.acquire(window);
            Arrays.sort(latenciesUs, 0, entries);
            System.out.printf("BENCH %d %.3f %d %d %.3f %d%n", entries, seconds, latenciesUs[entries / 2],
                    latenciesUs[(int) (entries * 0.99)], cpu, failed.get());
        }
    }

    private void append(LedgerHandle[] writers, byte[] data, Semaphore room, double seconds) throws Exception {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        int next = 0;
        while (System.nanoTime() < end) {
            room.acquire();
            long sent = System.nanoTime();
            writers[next].asyncAddEntry(data, (rc, handle, entryId, context) -> {
                room.release();
                if (rc != 0) {
                    failed.incrementAndGet();
                } else if (isMeasuring) {
                    int at = count.getAndIncrement();
                    if (at < LATENCIES_MAX) {
                        latenciesUs[at] = (int) ((System.nanoTime() - sent) / 1000);
                    }
                }
            }, null);
            next = next + 1 == writers.length ? 0 : next + 1;
        }
    }
}
