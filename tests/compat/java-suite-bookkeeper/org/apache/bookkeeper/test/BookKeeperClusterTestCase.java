package org.apache.bookkeeper.test;

import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.common.allocator.PoolingPolicy;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.zk.ZKMetadataDriverBase;
import org.apache.bookkeeper.metastore.InMemoryMetaStore;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.replication.Auditor;
import org.apache.bookkeeper.replication.ReplicationWorker;
import org.junit.After;
import org.junit.Before;

/**
 * What Apache's tests extend, with the names that they know, over bookies of ours: each in processes of its own, with
 * the configuration that the test made for it. ZooKeeper, the client and AutoRecovery are Apache's, in this process, and
 * so is a bookie that a test brings along because it shall misbehave.
 */
public abstract class BookKeeperClusterTestCase extends TestSurroundings {
    private static final int REGISTERED_SECONDS_MAX = 60;
    private static final int NEWS_MS = 250;

    protected final List<ServerTester> servers = new LinkedList<>();

    private boolean hasAutoRecovery;

    public BookKeeperClusterTestCase(int numBookies) {
        this(numBookies, 120);
    }

    public BookKeeperClusterTestCase(int numBookies, int testTimeoutSecs) {
        this(numBookies, 1, testTimeoutSecs);
    }

    public BookKeeperClusterTestCase(int numBookies, int numOfZKNodes, int testTimeoutSecs) {
        super(numBookies, numOfZKNodes, testTimeoutSecs);
    }

    // --- start and end

    @Before
    public void setUp() throws Exception {
        setUp("/ledgers");
    }

    protected void setUp(String ledgersRootPath) throws Exception {
        InMemoryMetaStore.reset();
        setMetastoreImplClass(baseConf);
        setMetastoreImplClass(baseClientConf);
        startZKCluster();
        metadataServiceUri = getMetadataServiceUri(ledgersRootPath);
        startBKCluster(metadataServiceUri);
    }

    @After
    public void tearDown() throws Exception {
        List<Exception> errors = new ArrayList<>();
        for (Step step : List.<Step>of(this::stopBKCluster, this::stopZKCluster, tmpDirs::cleanup)) {
            try {
                step.run();
            } catch (Exception error) {
                errors.add(error);
            }
        }
        assertTrue("in the background: " + captured, captured.isEmpty());
        if (!errors.isEmpty()) {
            throw errors.get(0);
        }
    }

    protected void startBKCluster(String uri) throws Exception {
        baseConf.setMetadataServiceUri(uri);
        baseClientConf.setMetadataServiceUri(uri);
        baseClientConf.setAllocatorPoolingPolicy(PoolingPolicy.UnpooledHeap);
        if (numBookies > 0) {
            bkc = null;
            client();
        }
        List<ServerConfiguration> confs = new ArrayList<>();
        for (int i = 0; i < numBookies; i++) {
            confs.add(newServerConfiguration());
        }
        startTogether(confs);
    }

    protected void stopBKCluster() throws Exception {
        if (bkc != null) {
            bkc.close();
        }
        stopReplicationService();
        stopServers();
    }

    protected void stopAllBookies() throws Exception {
        stopAllBookies(true);
    }

    protected void stopAllBookies(boolean shutdownClient) throws Exception {
        stopReplicationService();
        stopServers();
        if (shutdownClient && bkc != null) {
            bkc.close();
            bkc = null;
        }
    }

    // --- who is there

    public BookieId getBookie(int index) throws Exception {
        return servers.get(index).bookieId;
    }

    protected BookieId addressByIndex(int index) throws Exception {
        return getBookie(index);
    }

    protected BookieServer serverByIndex(int index) throws Exception {
        return servers.get(index).getServer();
    }

    protected ServerConfiguration confByIndex(int index) throws Exception {
        return servers.get(index).getConfiguration();
    }

    protected List<BookieId> bookieAddresses() throws Exception {
        return servers.stream().map(each -> each.bookieId).toList();
    }

    protected List<File> bookieLedgerDirs() throws Exception {
        return servers.stream().flatMap(each -> List.of(each.conf.getLedgerDirs()).stream()).toList();
    }

    protected List<File> bookieJournalDirs() throws Exception {
        return servers.stream().flatMap(each -> List.of(each.conf.getJournalDirs()).stream()).toList();
    }

    protected int indexOfServer(BookieServer server) throws Exception {
        return servers.stream().map(each -> each.server).toList().indexOf(server);
    }

    protected int lastBookieIndex() {
        return servers.size() - 1;
    }

    protected int bookieCount() {
        return servers.size();
    }

    public ServerConfiguration getBkConf(BookieId bookieId) throws Exception {
        return known(bookieId).conf;
    }

    public boolean isCreatedFromIp(BookieId bookieId) {
        return bkc.getBookieAddressResolver().resolve(bookieId).getSocketAddress().toString().startsWith("/");
    }

    // --- faults

    public ServerConfiguration killBookie(BookieId bookieId) throws Exception {
        ServerTester tester = find(bookieId);
        return tester == null ? null : killBookie(servers.indexOf(tester));
    }

    public ServerConfiguration killBookie(int index) throws Exception {
        ServerTester tester = servers.remove(index);
        tester.shutdown();
        return tester.conf;
    }

    public ServerConfiguration killBookieAndWaitForZK(int index) throws Exception {
        String node = ZKMetadataDriverBase.resolveZkLedgersRootPath(baseConf) + "/available/" + getBookie(index);
        ServerConfiguration conf = killBookie(index);
        while (zkc.exists(node, false) != null) {
            Thread.sleep(100);
        }
        return conf;
    }

    public void setBookieToReadOnly(BookieId bookieId) throws Exception {
        ServerTester tester = find(bookieId);
        if (tester != null) {
            tester.server.getBookie().getStateManager().transitionToReadOnlyMode().get();
        }
    }

    /** Has a bookie answer nobody for some seconds; the latch goes down when that begins. */
    public CountDownLatch sleepBookie(BookieId bookieId, int seconds) throws Exception {
        CountDownLatch begun = new CountDownLatch(1);
        suspend(bookieId, begun, () -> TimeUnit.SECONDS.sleep(seconds));
        return begun;
    }

    public void sleepBookie(BookieId bookieId, CountDownLatch end) throws InterruptedException, IOException {
        CountDownLatch begun = new CountDownLatch(1);
        sleepBookie(bookieId, end, begun);
        begun.await();
    }

    public void sleepBookie(BookieId bookieId, CountDownLatch end, CountDownLatch begun)
            throws InterruptedException, IOException {
        suspend(bookieId, begun, end::await);
    }

    // --- more of them, and again

    public void restartBookies() throws Exception {
        restartBookies(conf -> conf);
    }

    public void restartBookies(Function<ServerConfiguration, ServerConfiguration> change) throws Exception {
        List<ServerConfiguration> confs = servers.stream().map(each -> each.conf).toList();
        stopReplicationService();
        stopServers();
        startTogether(confs.stream().map(change).toList());
    }

    public void restartBookie(BookieId bookieId) throws Exception {
        startAndAddBookie(killBookie(servers.indexOf(known(bookieId))));
    }

    public int startNewBookie() throws Exception {
        return startNewBookieAndReturnAddress().getPort();
    }

    public BookieSocketAddress startNewBookieAndReturnAddress() throws Exception {
        return startAndAddBookie(newServerConfiguration()).getAddress();
    }

    public BookieId startNewBookieAndReturnBookieId() throws Exception {
        return startAndAddBookie(newServerConfiguration()).bookieId;
    }

    protected ServerTester startAndAddBookie(ServerConfiguration conf) throws Exception {
        ServerTester tester = startBookie(conf);
        servers.add(tester);
        return tester;
    }

    protected ServerTester startAndAddBookie(ServerConfiguration conf, Bookie bookie) throws Exception {
        ServerTester tester = startBookie(conf, bookie);
        servers.add(tester);
        return tester;
    }

    protected ServerTester startBookie(ServerConfiguration conf) throws Exception {
        return start(new ServerTester(conf));
    }

    protected ServerTester startBookie(ServerConfiguration conf, Bookie bookie) throws Exception {
        return start(new ServerTester(conf, bookie));
    }

    private ServerTester start(ServerTester tester) throws Exception {
        tester.server.start();
        awaitRegistered(tester);
        // The client's choice of bookies hears of it beside us, by nothing that could be waited for.
        Thread.sleep(NEWS_MS);
        return tester;
    }

    /** Starts bookies at once instead of one behind the other. */
    private void startTogether(List<ServerConfiguration> confs) throws Exception {
        List<ServerTester> starting = new ArrayList<>();
        for (ServerConfiguration conf : confs) {
            ServerTester tester = new ServerTester(conf);
            tester.process.spawn();
            starting.add(tester);
        }
        for (ServerTester tester : starting) {
            tester.process.awaitReady();
            servers.add(awaitRegistered(tester));
        }
        // The client's choice of bookies hears of them beside us, by nothing that could be waited for.
        Thread.sleep(NEWS_MS);
    }

    private ServerTester awaitRegistered(ServerTester tester) throws Exception {
        Future<?> registered = tester.conf.isForceReadOnlyBookie()
                ? client().waitForReadOnlyBookie(tester.bookieId)
                : client().waitForWritableBookie(tester.bookieId);
        registered.get(REGISTERED_SECONDS_MAX, TimeUnit.SECONDS);
        if (hasAutoRecovery) {
            tester.startAutoRecovery();
        }
        return tester;
    }

    private void stopServers() throws Exception {
        for (ServerTester tester : servers) {
            tester.shutdown();
        }
        servers.clear();
    }

    private ServerTester find(BookieId bookieId) {
        return servers.stream().filter(each -> each.bookieId.equals(bookieId)).findFirst().orElse(null);
    }

    private ServerTester known(BookieId bookieId) throws IOException {
        ServerTester tester = find(bookieId);
        if (tester == null) {
            throw new IOException("no bookie " + bookieId);
        }
        return tester;
    }

    private void suspend(BookieId bookieId, CountDownLatch begun, Step wait) throws IOException {
        BookieServer server = known(bookieId).server;
        Thread thread = new Thread(() -> captureThrowable(() -> {
            try {
                server.suspendProcessing();
                begun.countDown();
                wait.run();
                server.resumeProcessing();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }));
        thread.setDaemon(true);
        thread.start();
    }

    // --- AutoRecovery, which is Apache's

    public void setAutoRecoveryEnabled(boolean isAutoRecoveryEnabled) {
        hasAutoRecovery = isAutoRecoveryEnabled;
    }

    public boolean isAutoRecoveryEnabled() {
        return hasAutoRecovery;
    }

    public void startReplicationService() throws Exception {
        for (ServerTester tester : servers) {
            tester.startAutoRecovery();
        }
    }

    public void stopReplicationService() throws Exception {
        servers.forEach(OneBookie::stopAutoRecovery);
    }

    public Auditor getAuditor(int timeout, TimeUnit unit) throws Exception {
        long end = System.nanoTime() + unit.toNanos(timeout);
        while (System.nanoTime() < end) {
            for (ServerTester tester : servers) {
                Auditor auditor = tester.getAuditor();
                ReplicationWorker worker = tester.getReplicationWorker();
                if (auditor != null && auditor.isRunning() && worker != null && worker.isRunning()) {
                    return auditor;
                }
            }
            Thread.sleep(100);
        }
        throw new Exception("there is no auditor");
    }

    // --- figures of Apache's bookies

    public void resetBookieOpLoggers() {
        servers.forEach(each -> each.provider.clear());
    }

    public TestStatsProvider getStatsProvider(BookieId bookieId) {
        return find(bookieId).provider;
    }

    public TestStatsProvider getStatsProvider(int index) throws Exception {
        return servers.get(index).provider;
    }

    /** One bookie: ours, or one that the test brings along. */
    public class ServerTester extends OneBookie {
        public ServerTester(ServerConfiguration conf) throws Exception {
            super(conf);
        }

        public ServerTester(ServerConfiguration conf, Bookie bookie) throws Exception {
            super(conf, bookie, allocator);
        }
    }
}
