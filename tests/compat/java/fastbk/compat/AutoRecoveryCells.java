package fastbk.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerChecker;
import org.apache.bookkeeper.client.LedgerFragment;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.net.BookieId;

/** Apache's AutoRecovery beside the bookies. Its daemon is started by the one who started us. */
final class AutoRecoveryCells {
    private static final int ENTRIES = 40;

    private AutoRecoveryCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        cells.put("autorecovery-healthy", AutoRecoveryCells::healthy);
        cells.put("autorecovery-lost-bookie", AutoRecoveryCells::lostBookie);
    }

    /** The auditor goes over all ledgers, by reading entries and by lists of entries, and marks none. */
    private static void healthy(World world) throws Exception {
        for (int i = 0; i < 5; i++) {
            world.written(3, 2, 2, ENTRIES);
        }
        String before = world.ask("autorecovery-checks");
        Check.until(() -> isLater(before, world.ask("autorecovery-checks")), 80, "both checks of all ledgers");
        Check.equal("0", world.ask("autorecovery-marked"), "ledgers that the auditor marked");
    }

    private static boolean isLater(String before, String now) {
        String[] then = before.split(" ");
        String[] times = now.split(" ");
        return Long.parseLong(times[0]) > Long.parseLong(then[0]) && Long.parseLong(times[1]) > Long.parseLong(then[1]);
    }

    /** A bookie is lost for good: its copies of closed ledgers are made again, and an open ledger is closed. */
    private static void lostBookie(World world) throws Exception {
        LedgerHandle open = world.create(3, 3, 2);
        World.append(open, 0, ENTRIES);
        BookieId victim = World.ensemble(open).get(1);
        List<Long> ledgers = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            ledgers.add(world.written(3, i % 2 == 0 ? 3 : 2, 2, ENTRIES));
        }
        ledgers.add(open.getId());
        world.ask("lose", victim.toString());
        for (long ledgerId : ledgers) {
            Check.until(() -> isFree(world, ledgerId, victim), 80, "ledger " + ledgerId + " to be copied");
        }
        Check.until(() -> world.ask("autorecovery-marked").equals("0"), 60, "no ledger to be marked any more");
        for (long ledgerId : ledgers) {
            try (LedgerHandle reader = world.open(ledgerId)) {
                World.checkEntries(reader, 0, ENTRIES - 1);
                CompletableFuture<Set<LedgerFragment>> bad = new CompletableFuture<>();
                new LedgerChecker(world.client()).checkLedger(reader, (rc, found) -> bad.complete(found), 100);
                Check.equal(0, bad.get(30, TimeUnit.SECONDS).size(), "fragments that miss something");
            }
        }
        BookKeeperAdmin admin = world.admin();
        Check.equal(Map.of(), Map.copyOf(admin.getLedgersContainBookies(Set.of(victim))), "ledgers on the lost bookie");
    }

    private static boolean isFree(World world, long ledgerId, BookieId bookie) throws Exception {
        LedgerMetadata metadata = world.client().getLedgerMetadata(ledgerId).get();
        return metadata.getAllEnsembles().values().stream().noneMatch(ensemble -> ensemble.contains(bookie));
    }
}
