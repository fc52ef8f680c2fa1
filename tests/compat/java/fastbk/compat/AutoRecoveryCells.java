package fastbk.compat;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
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
        cells.put("autorecovery-lost-both-kinds", AutoRecoveryCells::lostBothKinds);
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
        checkCopied(world, ledgers, Set.of(victim));
        BookKeeperAdmin admin = world.admin();
        Check.equal(Map.of(), Map.copyOf(admin.getLedgersContainBookies(Set.of(victim))), "ledgers on the lost bookie");
    }

    /** One of ours and one of Apache's are lost at the same time: copies go from each kind to the other, too. */
    private static void lostBothKinds(World world) throws Exception {
        Map<Boolean, BookieId> victims = new HashMap<>();
        for (BookieId each : world.admin().getAvailableBookies()) {
            victims.putIfAbsent(isOurs(world, each), each);
        }
        if (victims.size() < 2) {
            throw new Cell.Skipped("there are bookies of one kind only");
        }
        Map<Long, List<BookieId>> before = new LinkedHashMap<>();
        LedgerHandle open = world.create(3, 3, 2);
        // An open ledger that loses its ack quorum can be closed by nobody: this one has to keep two of its bookies.
        while (World.ensemble(open).containsAll(victims.values())) {
            open.close();
            world.client().deleteLedger(open.getId());
            open = world.create(3, 3, 2);
        }
        World.append(open, 0, ENTRIES);
        before.put(open.getId(), World.ensemble(open));
        for (int i = 0; i < 24; i++) {
            long ledgerId = world.written(3, 3, 2, ENTRIES);
            before.put(ledgerId, ensemble(world, ledgerId));
        }
        for (BookieId each : victims.values()) {
            world.ask("lose", each.toString());
        }
        checkCopied(world, before.keySet(), Set.copyOf(victims.values()));
        Map<String, Integer> moves = new TreeMap<>();
        for (Map.Entry<Long, List<BookieId>> each : before.entrySet()) {
            List<BookieId> after = ensemble(world, each.getKey());
            for (int index = 0; index < 3; index++) {
                BookieId was = each.getValue().get(index);
                if (victims.containsValue(was)) {
                    String move = kind(world, was) + " to " + kind(world, after.get(index));
                    moves.merge(move, 1, Integer::sum);
                }
            }
        }
        System.out.println("copies: " + moves);
        Check.isTrue(moves.containsKey("ours to Apache's"), "copies of ours went to Apache's: " + moves);
        Check.isTrue(moves.containsKey("Apache's to ours"), "copies of Apache's went to ours: " + moves);
    }

    private static boolean isOurs(World world, BookieId bookie) throws Exception {
        return world.ask("kind", bookie.toString()).equals("ours");
    }

    private static String kind(World world, BookieId bookie) throws Exception {
        return isOurs(world, bookie) ? "ours" : "Apache's";
    }

    private static List<BookieId> ensemble(World world, long ledgerId) throws Exception {
        return world.client().getLedgerMetadata(ledgerId).get().getAllEnsembles().get(0L);
    }

    /** Waits until no ledger names a lost bookie and none is marked, and reads every entry from every copy. */
    private static void checkCopied(World world, Collection<Long> ledgers, Set<BookieId> lost) throws Exception {
        for (long ledgerId : ledgers) {
            Check.until(() -> isFree(world, ledgerId, lost), 80, "ledger " + ledgerId + " to be copied");
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
    }

    private static boolean isFree(World world, long ledgerId, Set<BookieId> lost) throws Exception {
        LedgerMetadata metadata = world.client().getLedgerMetadata(ledgerId).get();
        return metadata.getAllEnsembles().values().stream().noneMatch(
                ensemble -> ensemble.stream().anyMatch(lost::contains));
    }
}
