package fastbk.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.BookieInfoReader.BookieInfo;
import org.apache.bookkeeper.client.LedgerChecker;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerFragment;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/** What administrators and AutoRecovery ask of bookies. */
final class AdminCells {
    private AdminCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("ledger-list", AdminCells::list);
        cells.put("ledger-delete", AdminCells::delete);
        cells.put("ledger-is-closed", AdminCells::isClosed);
        cells.put("admin-bookies", AdminCells::bookies);
        cells.put("admin-bookie-info", AdminCells::bookieInfo);
        cells.put("admin-entries-of-ledger", AdminCells::entriesOfLedger);
        cells.put("admin-entries-of-missing-ledger", AdminCells::entriesOfMissingLedger);
        cells.put("admin-read-entries", AdminCells::readEntries);
        cells.put("admin-check-ledger", AdminCells::checkLedger);
        cells.put("admin-recover-bookie", AdminCells::recoverBookie);
    }

    private static void list(World world) throws Exception {
        long ledgerId = world.written(3, 3, 2, 3);
        boolean isListed = false;
        for (long each : world.admin().listLedgers()) {
            isListed |= each == ledgerId;
        }
        Check.isTrue(isListed, "the ledger is listed");
    }

    private static void delete(World world) throws Exception {
        long ledgerId = world.written(3, 3, 2, 3);
        world.client().deleteLedger(ledgerId);
        Check.fails(() -> world.open(ledgerId), Code.NoSuchLedgerExistsException,
                Code.NoSuchLedgerExistsOnMetadataServerException);
    }

    private static void isClosed(World world) throws Exception {
        LedgerHandle writer = world.create(3, 3, 2);
        Check.isTrue(!world.client().isClosed(writer.getId()), "open");
        writer.close();
        Check.isTrue(world.client().isClosed(writer.getId()), "closed");
    }

    private static void bookies(World world) throws Exception {
        BookKeeperAdmin admin = world.admin();
        Check.isTrue(admin.getAvailableBookies().size() >= 3, "bookies " + admin.getAvailableBookies());
        Check.isTrue(admin.getAllBookies().containsAll(admin.getAvailableBookies()),
                "cookies of all bookies that are there: " + admin.getAllBookies());
        for (BookieId each : admin.getAvailableBookies()) {
            Check.isTrue(admin.getBookieServiceInfo(each) != null, "service information of " + each);
            Check.isTrue(admin.getBookieAddressResolver().resolve(each).getPort() > 0, "port of " + each);
        }
    }

    private static void bookieInfo(World world) throws Exception {
        Map<BookieId, BookieInfo> found = world.client().getBookieInfo();
        Check.equal(Set.copyOf(world.admin().getAvailableBookies()), Set.copyOf(found.keySet()), "bookies that told");
        for (BookieInfo each : found.values()) {
            Check.isTrue(each.getTotalDiskSpace() > each.getFreeDiskSpace() && each.getFreeDiskSpace() > 0, "" + each);
        }
    }

    private static void entriesOfLedger(World world) throws Exception {
        skipInV2(world);
        int count = 200;
        LedgerHandle writer = world.create(3, 2, 2);
        World.append(writer, 0, count);
        writer.close();
        List<BookieId> ensemble = World.ensemble(writer);
        for (int index = 0; index < 3; index++) {
            if (world.ask("kind", ensemble.get(index).toString()).equals("db")) {
                continue; // Apache's DbLedgerStorage has no such lists, and does not answer.
            }
            AvailabilityOfEntriesOfLedger found = world.client().getClientCtx().getBookieClient()
                    .getListOfEntriesOfLedger(ensemble.get(index), writer.getId()).get(20, TimeUnit.SECONDS);
            long expected = 0;
            for (long entryId = 0; entryId < count; entryId++) {
                boolean isHere = entryId % 3 == index || (entryId + 1) % 3 == index;
                expected += isHere ? 1 : 0;
                Check.equal(isHere, found.isEntryAvailable(entryId), "entry " + entryId + " on " + index);
            }
            Check.equal(expected, found.getTotalNumOfAvailableEntries(), "entries on " + index);
        }
    }

    private static void entriesOfMissingLedger(World world) throws Exception {
        skipInV2(world);
        BookieId bookie = world.admin().getAvailableBookies().iterator().next();
        Check.fails(() -> world.client().getClientCtx().getBookieClient()
                .getListOfEntriesOfLedger(bookie, 8_888_888_888L).get(20, TimeUnit.SECONDS),
                Code.NoSuchLedgerExistsException);
    }

    private static void skipInV2(World world) throws Cell.Skipped {
        if (world.isV2) {
            throw new Cell.Skipped("the client asks in v3 on its v2 connection, and cannot read the answer");
        }
    }

    private static void readEntries(World world) throws Exception {
        long ledgerId = world.written(3, 2, 2, 20);
        long next = 0;
        for (LedgerEntry entry : world.admin().readEntries(ledgerId, 0, 19)) {
            Check.equal(next++, entry.getEntryId(), "id");
        }
        Check.equal(20L, next, "entries");
    }

    private static void checkLedger(World world) throws Exception {
        LedgerHandle writer = world.create(3, 2, 2);
        World.append(writer, 0, 50);
        writer.close();
        Check.equal(0, badFragments(world, writer.getId()), "fragments that miss something");
        BookieId victim = World.ensemble(writer).get(1);
        world.kill(victim);
        Check.equal(1, badFragments(world, writer.getId()), "fragments that miss something with a bookie away");
        world.start(victim);
        Check.until(() -> badFragments(world, writer.getId()) == 0, 20, "the bookie that came back");
    }

    private static int badFragments(World world, long ledgerId) throws Exception {
        LedgerHandle ledger = world.openNoRecovery(ledgerId);
        CompletableFuture<Set<LedgerFragment>> found = new CompletableFuture<>();
        new LedgerChecker(world.client()).checkLedger(ledger, (rc, fragments) -> found.complete(fragments), 100);
        int count = found.get(60, TimeUnit.SECONDS).size();
        ledger.close();
        return count;
    }

    private static void recoverBookie(World world) throws Exception {
        List<Long> ledgers = new ArrayList<>();
        LedgerHandle open = world.create(3, 3, 2);
        World.append(open, 0, 30);
        BookieId victim = World.ensemble(open).get(0);
        for (int i = 0; i < 3; i++) {
            ledgers.add(world.written(3, 2, 2, 30));
        }
        ledgers.add(open.getId());
        world.kill(victim);
        try (BookKeeperAdmin admin = new BookKeeperAdmin(world.configuration())) {
            for (long ledgerId : ledgers) {
                admin.recoverBookieData(ledgerId, Set.of(victim), false, false);
            }
        }
        for (long ledgerId : ledgers) {
            try (LedgerHandle reader = world.open(ledgerId)) {
                Check.isTrue(!World.ensemble(reader).contains(victim), "the lost bookie is out of ledger " + ledgerId);
                World.checkEntries(reader, 0, 29);
            }
            Check.equal(0, badFragments(world, ledgerId), "fragments that miss something");
        }
        world.start(victim);
    }
}
