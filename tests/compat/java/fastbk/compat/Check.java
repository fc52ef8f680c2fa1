package fastbk.compat;

import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.BKException;

/** What cells demand. Each throws an AssertionError that says what was found instead. */
final class Check {
    private Check() {
    }

    /** Something that may throw. */
    @FunctionalInterface
    interface Action {
        void run() throws Exception;
    }

    static void isTrue(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object expected, Object found, String what) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError(what + ": " + found + " instead of " + expected);
        }
    }

    /** The code of the BKException that `action` has to end with, one of `codes`. */
    static int fails(Action action, int... codes) throws Exception {
        try {
            action.run();
        } catch (Exception error) {
            int code = codeOf(error);
            for (int each : codes) {
                if (each == code) {
                    return code;
                }
            }
            throw error;
        }
        throw new AssertionError("went through instead of failing with " + BKException.getMessage(codes[0]));
    }

    static int codeOf(Throwable error) {
        Throwable cause = error;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause instanceof BKException ? ((BKException) cause).getCode() : Integer.MIN_VALUE;
    }

    /** Waits for all of `futures`, which must go well. */
    static <T> void allDone(List<CompletableFuture<T>> futures, int secondsMax) throws Exception {
        CompletableFuture.allOf(futures.toArray(new CompletableFuture<?>[0])).get(secondsMax, TimeUnit.SECONDS);
    }

    /** Waits until `condition` holds; fails after `secondsMax`. */
    static void until(java.util.concurrent.Callable<Boolean> condition, int secondsMax, String what) throws Exception {
        long deadline = System.nanoTime() + secondsMax * 1_000_000_000L;
        while (!condition.call()) {
            isTrue(System.nanoTime() < deadline, "waited " + secondsMax + " s for " + what);
            Thread.sleep(20);
        }
    }
}
