package fastbk.compat;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Publishes messages with a producer's own batching, and prints what that came to.
 *
 * <p>Arguments: service URL, topic, seconds to warm up, seconds to measure, messages a second (0: as many as may be
 * under way), messages under way at most, bytes of a message. Prints {@code READY}, reads a line and starts to measure;
 * at the end prints {@code LOAD acknowledged seconds p50_us p99_us p999_us client_cpu_s failed}. At a rate a message's
 * time begins when it is due.
 */
public final class PulsarLoad {
    private static final int LATENCIES_MAX = 20_000_000;

    private final int[] latenciesUs = new int[LATENCIES_MAX];
    private final AtomicInteger count = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();
    private volatile boolean isMeasuring;

    public static void main(String[] arguments) throws Exception {
        new PulsarLoad().run(arguments);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void run(String[] arguments) throws Exception {
        double rate = Double.parseDouble(arguments[4]);
        byte[] data = new byte[Integer.parseInt(arguments[6])];
        new Random(1).nextBytes(data);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Producer<byte[]> producer = client.newProducer()
                        .topic(arguments[1])
                        .maxPendingMessages(Integer.parseInt(arguments[5]))
                        .blockIfQueueFull(true)
                        .create()) {
            publish(producer, data, rate, Double.parseDouble(arguments[2]));
            producer.flush();
            System.out.println("READY");
            System.out.flush();
            System.in.read();
            OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            long cpuBefore = system.getProcessCpuTime();
            isMeasuring = true;
            long started = System.nanoTime();
            publish(producer, data, rate, Double.parseDouble(arguments[3]));
            producer.flush();
            double seconds = (System.nanoTime() - started) / 1e9;
            double cpu = (system.getProcessCpuTime() - cpuBefore) / 1e9;
            int acknowledged = count.get();
            int kept = Math.min(acknowledged, LATENCIES_MAX);
            Arrays.sort(latenciesUs, 0, kept);
            System.out.printf("LOAD %d %.3f %d %d %d %.3f %d%n", acknowledged, seconds, at(kept, 0.5), at(kept, 0.99),
                    at(kept, 0.999), cpu, failed.get());
        }
    }

    private int at(int kept, double share) {
        return kept == 0 ? 0 : latenciesUs[Math.min((int) (kept * share), kept - 1)];
    }

    private void publish(Producer<byte[]> producer, byte[] data, double rate, double seconds) {
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        for (long number = 0; ; number++) {
            long due = rate > 0 ? began + (long) (number / rate * 1e9) : System.nanoTime();
            if (due >= end) {
                return;
            }
            while (System.nanoTime() < due) {
                LockSupport.parkNanos(due - System.nanoTime());
            }
            producer.sendAsync(data).whenComplete((id, error) -> {
                if (error != null) {
                    failed.incrementAndGet();
                } else if (isMeasuring) {
                    int at = count.getAndIncrement();
                    if (at < LATENCIES_MAX) {
                        latenciesUs[at] = (int) ((System.nanoTime() - due) / 1000);
                    }
                }
            });
        }
    }
}
