package fastbk.compat;

/** One thing that a client expects of a cluster. It throws what went wrong. */
@FunctionalInterface
interface Cell {
    void run(World world) throws Exception;

    /** That a cell means nothing in the protocol or the cluster that it runs with; the message says why. */
    final class Skipped extends Exception {
        Skipped(String reason) {
            super(reason);
        }
    }
}
