package org.apache.bookkeeper.test;

import fastbk.suite.BookieProcess;
import fastbk.suite.StandIns;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.client.TestStatsProvider;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.replication.Auditor;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationWorker;

/** A bookie of ours, in place of the one that Pulsar's BookKeeperClusterTestCase starts in its own process. */
public class ServerTester {
    public AutoRecoveryMain autoRecovery;

    private final ServerConfiguration conf;
    private final BookieServer server;
    private final TestStatsProvider provider = new TestStatsProvider();

    public ServerTester(ServerConfiguration conf) throws Exception {
        this.conf = conf;
        this.server = StandIns.server(new BookieProcess(conf));
    }

    public ServerTester(ServerConfiguration conf, Bookie bookie) throws Exception {
        throw new UnsupportedOperationException("a bookie that the test brings along is Apache's");
    }

    public void startAutoRecovery() throws Exception {
        autoRecovery = new AutoRecoveryMain(conf);
        autoRecovery.start();
    }

    public void stopAutoRecovery() {
        if (autoRecovery != null) {
            autoRecovery.shutdown();
        }
    }

    public Auditor getAuditor() {
        return autoRecovery == null ? null : autoRecovery.getAuditor();
    }

    public ReplicationWorker getReplicationWorker() {
        return autoRecovery == null ? null : autoRecovery.getReplicationWorker();
    }

    public ServerConfiguration getConfiguration() {
        return conf;
    }

    public BookieServer getServer() {
        return server;
    }

    public TestStatsProvider getStatsProvider() {
        return provider;
    }

    public BookieSocketAddress getAddress() throws Exception {
        return BookieImpl.getBookieAddress(conf);
    }

    public void shutdown() throws Exception {
        server.shutdown();
        stopAutoRecovery();
    }
}
