package fastbk.compat;

import java.util.Map;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Ledgers of a client that does not read the cluster's rule of placement; who runs this looks where they lie.
 *
 * <p>In every fourth ledger a bookie is killed in the middle, so that its ensemble changes. The property
 * {@code fastbk.compat.racks} names a script that says where bookies are: then the client is configured as its operator
 * would, to enforce two racks.
 */
final class PlacementCells {
    private static final int LEDGERS = Integer.getInteger("fastbk.compat.ledgers", 60);
    private static final String SCRIPT = System.getProperty("fastbk.compat.racks");
    private static final int[][] QUORUMS = {{3, 3, 2}, {3, 2, 2}, {2, 2, 2}, {5, 3, 2}, {4, 2, 2}};
    private static final int ENTRIES = 20;

    private PlacementCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("placement-of-writers", PlacementCells::write);
    }

    private static void write(World world) throws Exception {
        ClientConfiguration configuration = world.configuration();
        if (SCRIPT != null) {
            configuration.setProperty("reppDnsResolverClass", "org.apache.bookkeeper.net.ScriptBasedMapping");
            configuration.setProperty("networkTopologyScriptFileName", SCRIPT);
            configuration.setMinNumRacksPerWriteQuorum(2);
            configuration.setEnforceMinNumRacksPerWriteQuorum(true);
        }
        BookKeeper client = world.client(configuration);
        for (int i = 0; i < LEDGERS; i++) {
            int[] quorum = QUORUMS[i % QUORUMS.length];
            try (LedgerHandle writer =
                    client.createLedger(quorum[0], quorum[1], quorum[2], DigestType.CRC32C, World.PASSWORD)) {
                World.append(writer, 0, ENTRIES);
                if (i % 4 == 3) {
                    String lost = writer.getLedgerMetadata().getAllEnsembles().lastEntry().getValue().get(0).toString();
                    world.ask("kill", lost);
                    World.append(writer, ENTRIES, ENTRIES);
                    world.ask("restore", lost);
                }
            }
        }
    }
}
