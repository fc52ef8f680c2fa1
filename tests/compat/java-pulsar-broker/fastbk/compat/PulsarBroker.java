package fastbk.compat;

import java.io.IOException;
import java.util.Optional;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.offload.filesystem.impl.FileSystemManagedLedgerOffloader;
import org.apache.pulsar.broker.PulsarServerException;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.common.configuration.PulsarConfigurationLoader;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/** Pulsar's broker with a broker.conf, which is the argument. It ends when its standard input does. */
public final class PulsarBroker {
    private PulsarBroker() {
    }

    public static void main(String[] arguments) throws Exception {
        ServiceConfiguration configuration =
                PulsarConfigurationLoader.create(arguments[0], ServiceConfiguration.class);
        new Service(configuration).start();
        while (System.in.read() >= 0) {
            // Nobody writes here; the end of the one who started us is the end of the input.
            continue;
        }
        Runtime.getRuntime().halt(0);
    }

    private static final class Service extends PulsarService {
        Service(ServiceConfiguration configuration) {
            super(configuration, Optional.empty(), code -> Runtime.getRuntime().halt(code));
        }

        /** Pulsar loads offloaders from archives that are not released; this one is released as a jar. */
        @Override
        public LedgerOffloader createManagedLedgerOffloader(OffloadPoliciesImpl policies) throws PulsarServerException {
            if (!FileSystemManagedLedgerOffloader.driverSupported(String.valueOf(policies.getManagedLedgerOffloadDriver()))) {
                return super.createManagedLedgerOffloader(policies);
            }
            try {
                return FileSystemManagedLedgerOffloader.create(
                        policies, getOffloaderScheduler(policies), getOffloaderStats());
            } catch (IOException error) {
                throw new PulsarServerException(error);
            }
        }
    }
}
