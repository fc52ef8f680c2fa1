package fastbk.compat;

import java.util.Map;
import org.apache.bookkeeper.client.LedgerHandle;

/** A cluster that is moved to other bookies under load. Who started us does what an operator does. */
final class RollingCells {
    private static final int ENTRIES = 400;

    private Load load;
    private String[] bookies;

    private RollingCells() {
    }

    static void addTo(Map<String, Cell> cells) {
        RollingCells rolling = new RollingCells();
        cells.put("rolling-import-taken-back", world -> rolling.replace(world, 0, "move-import-taken-back"));
        cells.put("rolling-import-first", world -> rolling.replace(world, 0, "move-import"));
        cells.put("rolling-import-second", world -> rolling.replace(world, 1, "move-import"));
        cells.put("rolling-import-third", world -> rolling.replace(world, 2, "move-import"));
        cells.put("rolling-way-back", rolling::wayBack);
        cells.put("rolling-all-read-back", rolling::readBack);
    }

    /** One bookie: read-only, writers begin new ledgers without it, and then `how`. Writers notice nothing. */
    private void replace(World world, int number, String how) throws Exception {
        begin(world);
        world.ask("move-read-only", bookies[number]);
        load.roll();
        // A client may hear late that the bookie is read-only: of these ledgers none has it.
        load.roll();
        long before = load.acknowledged.get();
        world.ask(how, bookies[number]);
        Check.isTrue(load.acknowledged.get() > before, "writers went on meanwhile");
        load.advance(ENTRIES);
        load.checkNoFailure();
    }

    /** One of ours goes; one of Apache's, with a new id, comes. */
    private void wayBack(World world) throws Exception {
        begin(world);
        world.ask("move-new-apache");
        load.advance(ENTRIES);
        world.ask("move-read-only", bookies[0]);
        load.roll();
        load.roll();
        world.ask("move-decommission", bookies[0]);
        load.advance(ENTRIES);
        load.checkNoFailure();
    }

    /** All that was acknowledged since the first cell, by Java's client and by ours. */
    private void readBack(World world) throws Exception {
        begin(world);
        load.end();
        load.checkNoFailure();
        long entries = 0;
        for (Load.Written each : load.ledgers) {
            try (LedgerHandle reader = world.open(each.ledgerId)) {
                Check.equal(each.last, reader.getLastAddConfirmed(), "last entry of ledger " + each.ledgerId);
                if (each.last >= 0) {
                    World.checkEntries(reader, 0, each.last);
                }
                Check.equal("" + each.last, world.ask("python-read", "" + each.ledgerId), "by the Python client");
                entries += each.last + 1;
            }
        }
        Check.equal(load.acknowledged.get(), entries, "entries");
        System.out.printf("%d ledgers, %,d acknowledged entries read back, 0 lost%n", load.ledgers.size(), entries);
    }

    private void begin(World world) throws Exception {
        if (load == null) {
            bookies = world.ask("move-bookies").split(" ");
            load = new Load(world);
            // Of several ledgers each, so that every bookie has some.
            for (int i = 0; i < 6; i++) {
                load.advance(ENTRIES / 2);
                load.roll();
            }
        }
    }
}
