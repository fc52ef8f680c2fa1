package fastbk.compat;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Creates, closes, opens and recovers ledgers of ten entries, one after the other, and prints the medians.
 *
 * <p>Arguments: metadata URI, protocol (v2 or v3), ledgers of each kind, bytes of an entry. Does all of it once to warm up,
 * prints {@code READY}, does it again, and prints {@code LEDGERS create_p50_us close_p50_us open_p50_us recover_p50_us
 * client_cpu_s}.
 */
public final class LedgerBench {
    private static final int ENTRIES = 10;

    private LedgerBench() {}

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol(arguments[1].equals("v2"));
        configuration.setThrottleValue(0);
        int count = Integer.parseInt(arguments[2]);
        byte[] data = new byte[Integer.parseInt(arguments[3])];
        run(configuration, count, data);
        System.out.println("READY");
        System.out.flush();
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long cpuBefore = system.getProcessCpuTime();
        double[] medians = run(configuration, count, data);
        double cpu = (system.getProcessCpuTime() - cpuBefore) / 1e9;
        System.out.printf("LEDGERS %.1f %.1f %.1f %.1f %.3f%n", medians[0], medians[1], medians[2], medians[3], cpu);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static double[] run(ClientConfiguration configuration, int count, byte[] data) throws Exception {
        long[][] tookNs = {new long[2 * count], new long[count], new long[count], new long[count]};
        long[] closed = new long[count];
        long[] open = new long[count];
        // Handles that are not closed leave their ledgers open: recovery has something to do.
        BookKeeper writers = new BookKeeper(configuration);
        for (int i = 0; i < 2 * count; i++) {
            long started = System.nanoTime();
            LedgerHandle writer = writers.createLedger(3, 3, 2, DigestType.CRC32C, new byte[0]);
            tookNs[0][i] = System.nanoTime() - started;
            append(writer, data);
            if (i < count) {
                started = System.nanoTime();
                writer.close();
                tookNs[1][i] = System.nanoTime() - started;
                closed[i] = writer.getId();
            } else {
                open[i - count] = writer.getId();
            }
        }
        try (BookKeeper readers = new BookKeeper(configuration)) {
            for (int kind = 0; kind < 2; kind++) {
                long[] ids = kind == 0 ? closed : open;
                for (int i = 0; i < count; i++) {
                    long started = System.nanoTime();
                    LedgerHandle reader = readers.openLedger(ids[i], DigestType.CRC32C, new byte[0]);
                    tookNs[2 + kind][i] = System.nanoTime() - started;
                    if (reader.getLastAddConfirmed() != ENTRIES - 1) {
                        throw new IllegalStateException("ledger " + ids[i] + " ends at " + reader.getLastAddConfirmed());
                    }
                }
            }
        }
        writers.close();
        double[] medians = new double[tookNs.length];
        for (int i = 0; i < medians.length; i++) {
            Arrays.sort(tookNs[i]);
            medians[i] = tookNs[i][tookNs[i].length / 2] / 1e3;
        }
        return medians;
    }

    private static void append(LedgerHandle writer, byte[] data) throws Exception {
        java.util.concurrent.CountDownLatch answered = new java.util.concurrent.CountDownLatch(ENTRIES);
        for (int i = 0; i < ENTRIES; i++) {
            writer.asyncAddEntry(data, (rc, handle, entryId, context) -> answered.countDown(), null);
        }
        answered.await();
    }
}
