package org.apache.bookkeeper.server;

import fastbk.suite.BookieProcess;
import fastbk.suite.StandIns;
import org.apache.bookkeeper.bookie.BookieResources;
import org.apache.bookkeeper.common.component.ComponentInfoPublisher;
import org.apache.bookkeeper.common.component.LifecycleComponentStack;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.util.PortManager;

/** Where Pulsar's LocalBookkeeperEnsemble gets its bookies: ours, each in processes of its own. */
public class Main {
    private Main() {}

    public static LifecycleComponentStack buildBookieServer(BookieConfiguration configuration) throws Exception {
        ServerConfiguration conf = configuration.getServerConf();
        if (conf.getBookiePort() == 0) {
            conf.setBookiePort(PortManager.nextFreePort());
        }
        // The ensemble makes the nodes of a cluster but LAYOUT, which Apache's driver makes here.
        try (MetadataBookieDriver driver = BookieResources.createMetadataDriver(conf, NullStatsLogger.INSTANCE)) {
            driver.getLedgerManagerFactory();
        }
        return LifecycleComponentStack.newBuilder()
                .withName("bookie-server")
                .withComponentInfoPublisher(new ComponentInfoPublisher())
                .addComponent(StandIns.service(new BookieProcess(conf)))
                .build();
    }
}
