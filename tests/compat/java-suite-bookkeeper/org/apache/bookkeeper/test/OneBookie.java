package org.apache.bookkeeper.test;

import fastbk.suite.BookieProcess;
import fastbk.suite.StandIns;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.MockUncleanShutdownDetection;
import org.apache.bookkeeper.common.allocator.ByteBufAllocatorWithOomHandler;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.replication.Auditor;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationWorker;

/** One bookie: ours, or one that the test brings along. */
public abstract class OneBookie {
    final ServerConfiguration conf;
    final BookieId bookieId;
    final BookieSocketAddress address;
    final BookieProcess process;
    final BookieServer server;
    final TestStatsProvider provider = new TestStatsProvider();
    private AutoRecoveryMain autoRecovery;

    OneBookie(ServerConfiguration conf) throws Exception {
        this.conf = conf;
        this.bookieId = BookieImpl.getBookieId(conf);
        this.address = BookieImpl.getBookieAddress(conf);
        this.process = new BookieProcess(conf);
        this.server = StandIns.server(process);
    }

    OneBookie(ServerConfiguration conf, Bookie bookie, ByteBufAllocatorWithOomHandler allocator) throws Exception {
        this.conf = conf;
        this.bookieId = BookieImpl.getBookieId(conf);
        this.address = BookieImpl.getBookieAddress(conf);
        this.process = null;
        this.server = new BookieServer(
                conf, bookie, provider.getStatsLogger(""), allocator, new MockUncleanShutdownDetection());
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

    public BookieSocketAddress getAddress() {
        return address;
    }

    public void shutdown() throws Exception {
        server.shutdown();
        stopAutoRecovery();
    }
}
