package org.apache.bookkeeper.client;

import fastbk.suite.Asker;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.testng.SkipException;

/**
 * The client of three real bookies, in place of Pulsar's mock that keeps ledgers in memory. A test that needs the
 * mock's own faults, or looks into it, is left out at that point.
 */
public class PulsarMockBookKeeper extends BookKeeper {
    private final Set<Long> before = listed();

    public PulsarMockBookKeeper(OrderedExecutor ignored) throws Exception {
        super(configuration());
    }

    private static ClientConfiguration configuration() throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(Asker.ask("cluster"));
        return configuration;
    }

    public static Collection<BookieId> getMockEnsemble() {
        throw needs("the mock's names of bookies");
    }

    @Override
    public ClientConfiguration getConf() {
        return super.getConf();
    }

    public void shutdown() {
        try {
            super.close();
        } catch (BKException error) {
            throw new IllegalStateException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** The ledgers that came since this client was made. */
    public Set<Long> getLedgers() {
        Set<Long> since = listed();
        since.removeAll(before);
        return since;
    }

    private Set<Long> listed() {
        Set<Long> found = new TreeSet<>();
        try (BookKeeperAdmin admin = new BookKeeperAdmin(this, getConf())) {
            admin.listLedgers().forEach(found::add);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        return found;
    }

    public Map<Long, PulsarMockLedgerHandle> getLedgerMap() {
        throw needs("the mock's ledgers");
    }

    public void delay(long milliseconds) {
        throw needs("the mock's delays");
    }

    public void failNow(int code) {
        throw needs("the mock's errors");
    }

    public void failAfter(int steps, int code) {
        throw needs("the mock's errors");
    }

    public void addEntryFailAfter(int steps, int code) {
        throw needs("the mock's errors");
    }

    public void returnEmptyLedgerAfter(int steps) {
        throw needs("the mock's empty ledgers");
    }

    public CompletableFuture<Void> promiseAfter(int steps) {
        throw needs("the mock's promises");
    }

    public void addEntryDelay(long delay, TimeUnit unit) {
        throw needs("the mock's delays");
    }

    public void addEntryResponseDelay(long delay, TimeUnit unit) {
        throw needs("the mock's delays");
    }

    public void setReadHandleInterceptor(PulsarMockReadHandleInterceptor interceptor) {
        // Tests take it away at their end whether they had one or not.
        if (interceptor != null) {
            throw needs("the mock's hook before reads");
        }
    }

    private static SkipException needs(String what) {
        return new SkipException("needs " + what);
    }
}
