package fastbk.compat;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Enumeration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/** Reading entries. */
final class ReadCells {
    private static final int ENTRIES = 120;

    private ReadCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("read-range", ReadCells::range);
        cells.put("read-unconfirmed", ReadCells::unconfirmed);
        cells.put("read-last-entry", ReadCells::lastEntry);
        cells.put("read-beyond-end", ReadCells::beyondEnd);
        cells.put("read-missing-ledger", ReadCells::missingLedger);
        cells.put("batch-read", world -> batch(world, 3, 3));
        cells.put("batch-read-striped", world -> batch(world, 3, 2));
        cells.put("batch-read-size-limit", ReadCells::batchSizeLimit);
        cells.put("batch-read-unconfirmed", ReadCells::batchUnconfirmed);
        cells.put("read-sticky", world -> option(world, configuration -> configuration.setStickyReadsEnabled(true)));
        cells.put("read-reordered",
                world -> option(world, configuration -> configuration.setReorderReadSequenceEnabled(true)));
        cells.put("read-several-channels",
                world -> option(world, configuration -> configuration.setNumChannelsPerBookie(4)));
        cells.put("read-speculative", ReadCells::speculative);
        cells.put("auth-plugin", AuthPlugin::cell);
        cells.put("tls-refused", ReadCells::tlsRefused);
    }

    private static void range(World world) throws Exception {
        try (LedgerHandle reader = world.open(world.written(3, 3, 2, ENTRIES))) {
            World.checkEntries(reader, 0, ENTRIES - 1);
            World.checkEntries(reader, 17, 17);
            World.checkEntries(reader, 40, 99);
            try (LedgerEntries entries = reader.read(5, 9)) {
                Check.equal(5L, entries.iterator().next().getEntryId(), "first entry of the new interface");
            }
        }
    }

    private static void unconfirmed(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 3);
        World.append(writer, 0, 20);
        try (LedgerHandle reader = world.openNoRecovery(writer.getId())) {
            World.checkEntries(reader.readUnconfirmedEntries(0, 19), writer.getId(), 0, 19);
            Check.fails(() -> reader.readUnconfirmedEntries(20, 20), Code.NoSuchEntryException);
        }
        writer.close();
    }

    private static void lastEntry(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 3);
        World.append(writer, 0, 20);
        try (LedgerHandle reader = world.openNoRecovery(writer.getId())) {
            // The writer's last add carried the confirmation of the one before.
            Check.equal(18L, reader.readLastEntry().getEntryId(), "last confirmed entry");
        }
        writer.close();
        try (LedgerHandle reader = world.open(writer.getId())) {
            Check.equal(19L, reader.readLastEntry().getEntryId(), "last entry");
        }
    }

    private static void beyondEnd(World world) throws Exception {
        try (LedgerHandle reader = world.open(world.written(3, 3, 2, 5))) {
            Check.fails(() -> reader.readEntries(3, 7), Code.ReadException);
            Check.fails(() -> reader.readUnconfirmedEntries(5, 5), Code.NoSuchEntryException);
        }
    }

    private static void missingLedger(World world) throws Exception {
        Check.fails(() -> world.open(99_999_999L), Code.NoSuchLedgerExistsException,
                Code.NoSuchLedgerExistsOnMetadataServerException);
    }

    private static void batch(World world, int ensemble, int writeQuorum) throws Exception {
        if (ensemble == writeQuorum) {
            skipInV3(world);
        }
        try (LedgerHandle reader = world.open(world.written(ensemble, writeQuorum, 2, ENTRIES))) {
            World.checkEntries(reader.batchReadEntries(0, 50, 1 << 20), reader.getId(), 0, 49);
            World.checkEntries(reader.batchReadEntries(100, 500, 1 << 20), reader.getId(), 100, ENTRIES - 1);
        }
    }

    private static void skipInV3(World world) throws Cell.Skipped {
        if (!world.isV2) {
            throw new Cell.Skipped("the client throws: it has no batch read over v3");
        }
    }

    private static void batchSizeLimit(World world) throws Exception {
        skipInV3(world);
        try (LedgerHandle reader = world.open(world.written(3, 3, 2, ENTRIES))) {
            Enumeration<LedgerEntry> entries = reader.batchReadEntries(10, 50, 4000);
            long bytes = 0;
            long next = 10;
            while (entries.hasMoreElements()) {
                LedgerEntry entry = entries.nextElement();
                Check.equal(next++, entry.getEntryId(), "id of an entry of a batch");
                bytes += entry.getLength();
            }
            Check.isTrue(next > 10 && next < 60, "a batch of 4,000 bytes ends at entry " + next);
            Check.isTrue(bytes > 0, "a batch has bytes");
            // One entry comes whatever the limit.
            entries = reader.batchReadEntries(26, 50, 10);
            Check.equal(26L, entries.nextElement().getEntryId(), "first entry of a batch with a tiny limit");
        }
    }

    private static void batchUnconfirmed(World world) throws Exception {
        skipInV3(world);
        LedgerHandle writer = world.create(3, 3, 3);
        World.append(writer, 0, 20);
        try (LedgerHandle reader = world.openNoRecovery(writer.getId())) {
            World.checkEntries(reader.batchReadUnconfirmedEntries(0, 20, 1 << 20), writer.getId(), 0, 19);
        }
        writer.close();
    }

    /** What a cell changes in the configuration. */
    @FunctionalInterface
    private interface Option {
        void set(ClientConfiguration configuration);
    }

    private static void option(World world, Option option) throws Exception {
        long ledgerId = world.written(3, 3, 2, ENTRIES);
        ClientConfiguration configuration = world.configuration();
        option.set(configuration);
        BookKeeper client = world.client(configuration);
        try (LedgerHandle reader = client.openLedger(ledgerId, DigestType.CRC32C, World.PASSWORD)) {
            World.checkEntries(reader, 0, ENTRIES - 1);
        }
        try (LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, World.PASSWORD)) {
            World.append(writer, 0, 20);
            World.checkEntries(writer, 0, 19);
        }
    }

    /** A client that insists on TLS gets no further than asking for it; the bookies go on serving others. */
    private static void tlsRefused(World world) throws Exception {
        Path password = Files.createTempFile("compat", ".password");
        try {
            Files.writeString(password, "changeit");
            ClientConfiguration configuration = world.configuration();
            configuration.setTLSProviderFactoryClass("org.apache.bookkeeper.tls.TLSContextFactory");
            configuration.setTLSProvider("JDK");
            configuration.setTLSTrustStoreType("JKS");
            Path trusted = Path.of(System.getProperty("java.home"), "lib", "security", "cacerts");
            configuration.setTLSTrustStore(trusted.toString());
            configuration.setTLSTrustStorePasswordPath(password.toString());
            BookKeeper client = world.client(configuration);
            LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, World.PASSWORD);
            CompletableFuture<Long> add = writer.appendAsync(new byte[10]);
            try {
                // The client goes on looking for bookies that have it, or gives up: it must not go on in the clear.
                add.get(3, TimeUnit.SECONDS);
                throw new AssertionError("an add went through without the TLS that was demanded");
            } catch (ExecutionException | TimeoutException refused) {
                System.err.println("refused as it should be: " + refused);
            }
        } finally {
            Files.delete(password);
        }
        world.written(3, 3, 2, 5);
    }

    private static void speculative(World world) throws Exception {
        long ledgerId = world.written(3, 3, 2, ENTRIES);
        ClientConfiguration configuration = world.configuration();
        configuration.setFirstSpeculativeReadTimeout(100);
        configuration.setSpeculativeReadTimeout(100);
        BookKeeper client = world.client(configuration);
        try (LedgerHandle reader = client.openLedger(ledgerId, DigestType.CRC32C, World.PASSWORD)) {
            World.checkEntries(reader, 0, 9);
            List<BookieId> ensemble = World.ensemble(reader);
            world.pause(ensemble.get(1));
            long started = System.nanoTime();
            World.checkEntries(reader, 0, ENTRIES - 1);
            double seconds = (System.nanoTime() - started) / 1e9;
            world.resume(ensemble.get(1));
            // The silent bookie's share would time out after 10 s.
            Check.isTrue(seconds < 8, "reads beside a silent bookie took " + seconds + " s");
        }
    }
}
