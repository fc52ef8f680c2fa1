package org.apache.bookkeeper.util;

import fastbk.suite.BookieProcess;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.shims.zk.ZooKeeperServerShim;
import org.apache.bookkeeper.shims.zk.ZooKeeperServerShimFactory;
import org.apache.zookeeper.test.ClientBase;

/**
 * What DistributedLog's tests have for a cluster, over bookies of ours: each in processes of its own, with the
 * configuration that the test made for one of Apache's. ZooKeeper is Apache's, in this process.
 */
public class LocalBookKeeper implements AutoCloseable {
    private static final int ZOOKEEPER_MS_MAX = 30_000;

    private final ServerConfiguration baseConf;
    private final int numberOfBookies;
    private final List<BookieProcess> bookies = new ArrayList<>();

    private LocalBookKeeper(ServerConfiguration baseConf, int numberOfBookies) {
        this.baseConf = baseConf;
        this.numberOfBookies = numberOfBookies;
    }

    public static ZooKeeperServerShim runZookeeper(int connectionsMax, int port, File folder) throws IOException {
        ZooKeeperServerShim server =
                ZooKeeperServerShimFactory.createServer(folder, folder, port, connectionsMax);
        server.start();
        waitForServerUp("127.0.0.1:" + port, ZOOKEEPER_MS_MAX);
        return server;
    }

    public static boolean waitForServerUp(String address, long milliseconds) {
        return ClientBase.waitForServerUp(address, milliseconds);
    }

    public static LocalBookKeeper getLocalBookies(
            String zkHost, int zkPort, int numBookies, boolean shouldStartZK, ServerConfiguration conf) {
        if (shouldStartZK) {
            throw new UnsupportedOperationException("start ZooKeeper by runZookeeper");
        }
        conf.setMetadataServiceUri("zk+hierarchical://" + zkHost + ":" + zkPort + "/ledgers");
        return new LocalBookKeeper(conf, numBookies);
    }

    /** Starts the bookies at once instead of one behind the other. */
    public void start() throws Exception {
        BookKeeperAdmin.initNewCluster(baseConf);
        for (int i = 0; i < numberOfBookies; i++) {
            spawn();
        }
        for (BookieProcess bookie : bookies) {
            bookie.awaitReady();
        }
    }

    public void addBookie() throws Exception {
        spawn().awaitReady();
    }

    public void removeBookie() throws Exception {
        bookies.remove(bookies.size() - 1).stop();
    }

    @Override
    public void close() throws Exception {
        for (BookieProcess bookie : bookies) {
            bookie.stop();
        }
    }

    private BookieProcess spawn() throws Exception {
        String folder = IOUtils.createTempDir("localbookkeeper", "test").getPath();
        ServerConfiguration conf = new ServerConfiguration(baseConf);
        conf.setBookiePort(PortManager.nextFreePort());
        conf.setJournalDirName(folder);
        conf.setLedgerDirNames(new String[] {folder});
        BookieProcess bookie = new BookieProcess(conf);
        bookie.spawn();
        bookies.add(bookie);
        return bookie;
    }
}
