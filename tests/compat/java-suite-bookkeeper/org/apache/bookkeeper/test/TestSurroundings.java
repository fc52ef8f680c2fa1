package org.apache.bookkeeper.test;

import java.io.File;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.bookkeeper.bookie.BookieResources;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.common.allocator.ByteBufAllocatorWithOomHandler;
import org.apache.bookkeeper.common.allocator.PoolingPolicy;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.conf.TestBKConfiguration;
import org.apache.bookkeeper.metastore.InMemoryMetaStore;
import org.apache.bookkeeper.util.PortManager;
import org.apache.zookeeper.ZooKeeper;
import org.junit.Rule;
import org.junit.rules.TestName;
import org.junit.rules.Timeout;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a test has beside its bookies: ZooKeeper, a client, configurations, folders. All of that is Apache's, in this
 * process.
 *
 * <p>Tests get PATIENCE times the time that they ask for: our bookies are processes that have to start.
 */
public abstract class TestSurroundings {
    static final Logger LOG = LoggerFactory.getLogger(BookKeeperClusterTestCase.class);

    private static final int PATIENCE = 3;

    @Rule
    public final TestName runtime = new TestName();

    @Rule
    public final Timeout globalTimeout;

    protected final ZooKeeperCluster zkUtil;
    protected ZooKeeper zkc;
    protected String metadataServiceUri;
    protected final TmpDirs tmpDirs = new TmpDirs();
    protected int numBookies;
    protected BookKeeperTestClient bkc;
    protected boolean useUUIDasBookieId = true;
    protected final ServerConfiguration baseConf = TestBKConfiguration.newServerConfiguration();
    protected final ClientConfiguration baseClientConf = TestBKConfiguration.newClientConfiguration();

    final ByteBufAllocatorWithOomHandler allocator = BookieResources.createAllocator(baseConf);
    final ConcurrentLinkedQueue<Throwable> captured = new ConcurrentLinkedQueue<>();

    TestSurroundings(int numBookies, int numOfZKNodes, int testTimeoutSecs) {
        this.numBookies = numBookies;
        this.globalTimeout = Timeout.seconds((long) testTimeoutSecs * PATIENCE);
        try {
            this.zkUtil = numOfZKNodes == 1 ? new ZooKeeperUtil() : new ZooKeeperClusterUtil(numOfZKNodes);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** Runs `action`, as a test's thread does; what it throws fails the test at its end. */
    protected void captureThrowable(Runnable action) {
        try {
            action.run();
        } catch (Throwable error) {
            captured.add(error);
        }
    }

    protected String getMetadataServiceUri(String ledgersRootPath) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath);
    }

    protected String newMetadataServiceUri(String ledgersRootPath) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath);
    }

    protected String newMetadataServiceUri(String ledgersRootPath, String type) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath, type);
    }

    protected void startZKCluster() throws Exception {
        zkUtil.startCluster();
        zkc = zkUtil.getZooKeeperClient();
    }

    protected void stopZKCluster() throws Exception {
        zkUtil.killCluster();
    }

    protected ClientConfiguration newClientConfiguration() {
        return new ClientConfiguration(baseClientConf);
    }

    protected ServerConfiguration newServerConfiguration() throws Exception {
        File folder = tmpDirs.createNew("bookie", "test");
        return newServerConfiguration(PortManager.nextFreePort(), folder, new File[] {folder});
    }

    protected ServerConfiguration newServerConfiguration(int port, File journalDir, File[] ledgerDirs) {
        String[] names = new String[ledgerDirs.length];
        for (int i = 0; i < names.length; i++) {
            names[i] = ledgerDirs[i].getPath();
        }
        ServerConfiguration conf = new ServerConfiguration(baseConf);
        conf.setBookiePort(port);
        conf.setJournalDirName(journalDir.getPath());
        conf.setLedgerDirNames(names);
        conf.setAllocatorPoolingPolicy(PoolingPolicy.UnpooledHeap);
        return conf;
    }

    public void setMetastoreImplClass(AbstractConfiguration<?> conf) {
        conf.setMetastoreImplClass(InMemoryMetaStore.class.getName());
    }

    /** Gives the client, made if there is none. */
    BookKeeperTestClient client() throws Exception {
        if (bkc == null) {
            bkc = new BookKeeperTestClient(baseClientConf, new TestStatsProvider());
        }
        return bkc;
    }

    interface Step {
        void run() throws Exception;
    }
}
