package fastbk.compat;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** The last add confirmed, as readers of a ledger that is being written learn it. */
final class LacCells {
    private LacCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("lac-read", LacCells::read);
        cells.put("lac-try-read", LacCells::tryRead);
        cells.put("lac-of-empty-ledger", LacCells::empty);
        cells.put("lac-explicit", LacCells::explicit);
        cells.put("lac-piggybacked-on-reads", LacCells::piggybacked);
        cells.put("lac-long-poll", world -> longPoll(world, false));
        cells.put("lac-long-poll-parallel", world -> longPoll(world, true));
        cells.put("lac-long-poll-timeout", LacCells::longPollTimeout);
        cells.put("lac-long-poll-fenced", LacCells::longPollFenced);
        cells.put("lac-tail", LacCells::tail);
    }

    private static void read(World world) throws Exception {
        try (LedgerHandle writer = world.create(3, 2, 2)) {
            World.append(writer, 0, 10);
            try (LedgerHandle reader = world.openNoRecovery(writer.getId())) {
                Check.equal(8L, reader.readLastConfirmed(), "what the last entry says");
                World.append(writer, 10, 5);
                Check.equal(13L, reader.readLastConfirmed(), "what the last entry says later");
                World.checkEntries(reader, 0, 13);
            }
        }
    }

    private static void tryRead(World world) throws Exception {
        try (LedgerHandle writer = world.create(3, 3, 2)) {
            World.append(writer, 0, 10);
            try (LedgerHandle reader = world.openNoRecovery(writer.getId())) {
                long found = reader.tryReadLastConfirmed();
                Check.isTrue(found >= 7 && found <= 8, "last add confirmed " + found);
            }
        }
    }

    private static void empty(World world) throws Exception {
        try (LedgerHandle writer = world.create(3, 3, 2);
                LedgerHandle reader = world.openNoRecovery(writer.getId())) {
            Check.equal(-1L, reader.readLastConfirmed(), "last add confirmed of an empty ledger");
        }
    }

    private static void explicit(World world) throws Exception {
        ClientConfiguration configuration = world.configuration();
        configuration.setExplictLacInterval(100);
        BookKeeper client = world.client(configuration);
        try (LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, World.PASSWORD)) {
            World.append(writer, 0, 10);
            // What the writer tells by itself from its second turn on covers the last entry, too.
            try (LedgerHandle reader =
                    client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, World.PASSWORD)) {
                Check.until(() -> reader.readExplicitLastConfirmed() == 9, 20, "the explicit LAC");
                if (!world.isV2) {
                    Check.equal(9L, reader.readLastConfirmed(), "last add confirmed, the explicit one with it");
                }
                World.checkEntries(reader, 0, 9);
            }
        }
    }

    private static void piggybacked(World world) throws Exception {
        if (world.isV2) {
            throw new Cell.Skipped("v2's replies have no room for it");
        }
        try (LedgerHandle writer = world.create(3, 3, 3)) {
            World.append(writer, 0, 5);
            try (LedgerHandle reader = world.openNoRecovery(writer.getId())) {
                World.append(writer, 5, 5);
                World.checkEntries(reader, 0, 2);
                // Of three replies each tells what its bookie had heard.
                Check.isTrue(reader.getLastAddConfirmed() >= 7, "after reads: " + reader.getLastAddConfirmed());
            }
        }
    }

    private static void longPoll(World world, boolean inParallel) throws Exception {
        skipInV2(world);
        try (LedgerHandle writer = world.create(3, 3, 3);
                LedgerHandle reader = world.openNoRecovery(writer.getId())) {
            // A bookie that has nothing of a ledger says so at once: all have something first.
            World.append(writer, 0, 3);
            CompletableFuture<LastConfirmedAndEntry> poll =
                    reader.readLastAddConfirmedAndEntryAsync(2, 20_000, inParallel);
            World.append(writer, 3, 2);
            try (LastConfirmedAndEntry found = poll.get(15, TimeUnit.SECONDS)) {
                Check.isTrue(found.getLastAddConfirmed() >= 2, "last add confirmed " + found.getLastAddConfirmed());
                Check.isTrue(found.hasEntry(), "the entry came along");
                Check.equal(2L, found.getEntry().getEntryId(), "its id");
            }
            // What is confirmed already comes at once.
            try (LastConfirmedAndEntry found =
                    reader.readLastAddConfirmedAndEntryAsync(1, 20_000, inParallel).get(15, TimeUnit.SECONDS)) {
                Check.equal(1L, found.getEntry().getEntryId(), "id of an entry that was there");
            }
        }
    }

    private static void longPollTimeout(World world) throws Exception {
        skipInV2(world);
        try (LedgerHandle writer = world.create(3, 3, 3);
                LedgerHandle reader = world.openNoRecovery(writer.getId())) {
            World.append(writer, 0, 3);
            long started = System.nanoTime();
            try (LastConfirmedAndEntry found =
                    reader.readLastAddConfirmedAndEntryAsync(2, 1_000, false).get(30, TimeUnit.SECONDS)) {
                double seconds = (System.nanoTime() - started) / 1e9;
                Check.isTrue(!found.hasEntry(), "an entry that is not confirmed came");
                Check.equal(1L, found.getLastAddConfirmed(), "last add confirmed");
                Check.isTrue(seconds > 0.9 && seconds < 20, "a poll of one second took " + seconds + " s");
            }
        }
    }

    private static void longPollFenced(World world) throws Exception {
        skipInV2(world);
        LedgerHandle writer = world.create(3, 3, 3);
        World.append(writer, 0, 3);
        try (LedgerHandle reader = world.openNoRecovery(writer.getId())) {
            CompletableFuture<LastConfirmedAndEntry> poll =
                    reader.readLastAddConfirmedAndEntryAsync(2, 25_000, false);
            long started = System.nanoTime();
            world.open(writer.getId()).close();
            poll.get(30, TimeUnit.SECONDS).close();
            double seconds = (System.nanoTime() - started) / 1e9;
            Check.isTrue(seconds < 15, "a poll of a ledger that was closed went on for " + seconds + " s");
        }
    }

    private static void tail(World world) throws Exception {
        try (LedgerHandle writer = world.create(3, 2, 2);
                LedgerHandle reader = world.openNoRecovery(writer.getId())) {
            Thread thread = new Thread(() -> {
                try {
                    World.append(writer, 0, 300);
                    writer.close();
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            });
            thread.start();
            long next = 0;
            while (next < 300) {
                long last = Math.max(reader.readLastConfirmed(), reader.getLastAddConfirmed());
                if (last >= next) {
                    World.checkEntries(reader, next, last);
                    next = last + 1;
                }
            }
            thread.join();
        }
    }

    private static void skipInV2(World world) throws Cell.Skipped {
        if (world.isV2) {
            throw new Cell.Skipped("v2 has no long poll");
        }
    }
}
