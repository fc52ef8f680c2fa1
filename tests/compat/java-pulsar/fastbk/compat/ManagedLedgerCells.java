package fastbk.compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.ManagedLedgerFactoryConfig;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerImpl;
import org.apache.pulsar.common.api.proto.CommandSubscribe.InitialPosition;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/** Pulsar's managed ledgers: what a topic of Pulsar does with bookies, cursors included. */
public final class ManagedLedgerCells {
    private static final int ENTRIES = 230;
    private static final int ENTRIES_PER_LEDGER = 50;

    private ManagedLedgerCells() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Cell> cells = new LinkedHashMap<>();
        cells.put("managed-ledger-write-read", ManagedLedgerCells::writeRead);
        cells.put("managed-ledger-reopen", ManagedLedgerCells::reopen);
        cells.put("managed-ledger-takeover", ManagedLedgerCells::takeOver);
        cells.put("managed-ledger-trim", ManagedLedgerCells::trim);
        cells.put("managed-ledger-bookie-killed", ManagedLedgerCells::bookieKilled);
        Cells.run(cells, arguments);
    }

    /** A broker, as far as managed ledgers go. */
    private static final class Broker implements AutoCloseable {
        private final MetadataStoreExtended store;
        private final ManagedLedgerFactoryImpl factory;

        Broker(World world) throws Exception {
            String address = world.metadataUri.replaceAll("^.*://([^/]*)/.*$", "$1");
            store = MetadataStoreExtended.create("zk:" + address, MetadataStoreConfig.builder().build());
            ClientConfiguration configuration = world.configuration();
            ManagedLedgerFactoryConfig cache = new ManagedLedgerFactoryConfig();
            // Nothing is kept: what is read comes from bookies.
            cache.setMaxCacheSize(0);
            factory = new ManagedLedgerFactoryImpl(store, configuration, cache);
        }

        ManagedLedger open(String name) throws Exception {
            ManagedLedgerConfig configuration = new ManagedLedgerConfig();
            configuration.setEnsembleSize(3).setWriteQuorumSize(3).setAckQuorumSize(2);
            configuration.setMetadataEnsembleSize(3).setMetadataWriteQuorumSize(3).setMetadataAckQuorumSize(2);
            configuration.setDigestType(DigestType.CRC32C).setPassword("secret");
            configuration.setMaxEntriesPerLedger(ENTRIES_PER_LEDGER);
            configuration.setMinimumRolloverTime(0, TimeUnit.MILLISECONDS);
            configuration.setRetentionTime(0, TimeUnit.SECONDS).setRetentionSizeInMB(0);
            return factory.open(name, configuration);
        }

        @Override
        public void close() throws Exception {
            factory.shutdown();
            store.close();
        }
    }

    private static byte[] text(int number) {
        return ("message " + number + " " + "y".repeat(number % 300)).getBytes(StandardCharsets.UTF_8);
    }

    private static List<Position> append(ManagedLedger ledger, int first, int count) throws Exception {
        List<Position> positions = new ArrayList<>();
        for (int number = first; number < first + count; number++) {
            positions.add(ledger.addEntry(text(number)));
        }
        return positions;
    }

    private static void check(ManagedCursor cursor, int first, int last) throws Exception {
        int next = first;
        while (next <= last) {
            for (Entry entry : cursor.readEntries(40)) {
                Check.equal(new String(text(next), StandardCharsets.UTF_8),
                        new String(entry.getDataAndRelease(), StandardCharsets.UTF_8), "message " + next);
                next++;
            }
        }
        Check.equal(last + 1, next, "where messages end");
    }

    private static String name(String what) {
        return "compat/" + what + "-" + System.nanoTime();
    }

    private static void writeRead(World world) throws Exception {
        try (Broker broker = new Broker(world)) {
            ManagedLedger ledger = broker.open(name("plain"));
            ManagedCursor cursor = ledger.openCursor("reader", InitialPosition.Earliest);
            append(ledger, 0, ENTRIES);
            int ledgers = ((ManagedLedgerImpl) ledger).getLedgersInfo().size();
            Check.isTrue(ledgers >= 4, "ledgers: " + ledgers);
            check(cursor, 0, ENTRIES - 1);
            ledger.close();
        }
    }

    private static void reopen(World world) throws Exception {
        String name = name("reopened");
        try (Broker broker = new Broker(world)) {
            ManagedLedger ledger = broker.open(name);
            ManagedCursor cursor = ledger.openCursor("reader", InitialPosition.Earliest);
            List<Position> positions = append(ledger, 0, ENTRIES);
            cursor.markDelete(positions.get(99));
            ledger.close();
        }
        try (Broker broker = new Broker(world)) {
            ManagedLedger ledger = broker.open(name);
            ManagedCursor cursor = ledger.openCursor("reader", InitialPosition.Earliest);
            append(ledger, ENTRIES, 20);
            check(cursor, 100, ENTRIES + 19);
            ledger.close();
        }
    }

    /** Another broker opens what the first one still writes: its cursor's ledger, too, is recovered. */
    private static void takeOver(World world) throws Exception {
        String name = name("taken");
        try (Broker first = new Broker(world); Broker second = new Broker(world)) {
            ManagedLedger lost = first.open(name);
            ManagedCursor cursor = lost.openCursor("reader", InitialPosition.Earliest);
            List<Position> positions = append(lost, 0, 70);
            cursor.markDelete(positions.get(29));
            ManagedLedger ledger = second.open(name);
            append(ledger, 70, 30);
            check(ledger.openCursor("reader", InitialPosition.Earliest), 30, 99);
            boolean isFenced = false;
            try {
                lost.addEntry(text(1000));
            } catch (ManagedLedgerException refused) {
                isFenced = true;
            }
            Check.isTrue(isFenced, "the first broker is refused");
            ledger.close();
        }
    }

    private static void trim(World world) throws Exception {
        try (Broker broker = new Broker(world)) {
            ManagedLedger ledger = broker.open(name("trimmed"));
            ManagedCursor cursor = ledger.openCursor("reader", InitialPosition.Earliest);
            List<Position> positions = append(ledger, 0, ENTRIES);
            long oldest = positions.get(0).getLedgerId();
            cursor.markDelete(positions.get(ENTRIES - 1));
            Check.until(() -> !((ManagedLedgerImpl) ledger).getLedgersInfo().containsKey(oldest), 30,
                    "the first ledger to be trimmed");
            Check.until(() -> !isThere(world, oldest), 30, "its ledger to be deleted");
            ledger.close();
        }
    }

    private static boolean isThere(World world, long ledgerId) throws Exception {
        try {
            world.client().getLedgerMetadata(ledgerId).get(20, TimeUnit.SECONDS);
            return true;
        } catch (java.util.concurrent.ExecutionException gone) {
            return false;
        }
    }

    private static void bookieKilled(World world) throws Exception {
        try (Broker broker = new Broker(world)) {
            ManagedLedger ledger = broker.open(name("killed"));
            ManagedCursor cursor = ledger.openCursor("reader", InitialPosition.Earliest);
            Position last = append(ledger, 0, 30).get(29);
            var victim = world.client().getLedgerMetadata(last.getLedgerId()).get().getAllEnsembles().lastEntry()
                    .getValue().get(0);
            world.kill(victim);
            append(ledger, 30, 100);
            check(cursor, 0, 129);
            world.start(victim);
            ledger.close();
        }
    }
}
