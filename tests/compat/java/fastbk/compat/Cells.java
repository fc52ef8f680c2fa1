package fastbk.compat;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Runs cells, one after the other, and prints a line for each.
 *
 * <p>Arguments: metadata URI, protocol (v2 or v3), group, then what a cell's name has to contain (one of them; none:
 * all).
 * On standard output: {@code CELL<TAB>name<TAB>pass|fail|skip<TAB>seconds<TAB>reason}, and {@code ASK<TAB>words}, which
 * the one who started us answers with a line on standard input.
 */
public final class Cells {
    private static final int SECONDS_MAX = Integer.getInteger("fastbk.compat.seconds", 90);

    private Cells() {
    }

    private static Map<String, Cell> group(String name) {
        Map<String, Cell> cells = new LinkedHashMap<>();
        switch (name) {
            case "client":
                WriteCells.addTo(cells);
                ReadCells.addTo(cells);
                LacCells.addTo(cells);
                WireCells.addTo(cells);
                RecoveryCells.addTo(cells);
                AdminCells.addTo(cells);
                FaultCells.addTo(cells);
                ReadOnlyCells.addTo(cells);
                break;
            case "disk-full":
                ReadOnlyCells.addDiskFullTo(cells);
                break;
            case "limits":
                LimitCells.addTo(cells);
                break;
            case "autorecovery":
                AutoRecoveryCells.addTo(cells);
                break;
            case "distributedlog":
                LogCells.addTo(cells);
                break;
            case "rolling":
                RollingCells.addTo(cells);
                break;
            case "placement":
                PlacementCells.addTo(cells);
                break;
            case "kills":
                cells.put("kill-rounds", new KillRounds());
                break;
            default:
                throw new IllegalArgumentException(name);
        }
        return cells;
    }

    public static void main(String[] arguments) throws Exception {
        run(group(arguments[2]), arguments);
    }

    /** Runs those of `cells` that the arguments name, and ends the process. */
    public static void run(Map<String, Cell> cells, String[] arguments) throws Exception {
        int failed = 0;
        try (World world = new World(arguments[0], arguments[1])) {
            for (Map.Entry<String, Cell> each : cells.entrySet()) {
                if (isWanted(each.getKey(), arguments)) {
                    failed += runOne(each.getKey(), each.getValue(), world) ? 0 : 1;
                }
            }
        }
        System.out.flush();
        // Threads of a cell that hung are not waited for.
        Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
    }

    private static boolean isWanted(String name, String[] arguments) {
        for (int i = 3; i < arguments.length; i++) {
            if (name.contains(arguments[i])) {
                return true;
            }
        }
        return arguments.length == 3;
    }

    private static boolean runOne(String name, Cell cell, World world) throws InterruptedException {
        long started = System.nanoTime();
        FutureTask<Void> task = new FutureTask<>(() -> {
            cell.run(world);
            return null;
        });
        Thread thread = new Thread(task, "cell-" + name);
        thread.setDaemon(true);
        thread.start();
        String verdict = "pass";
        String reason = "";
        try {
            task.get(SECONDS_MAX, TimeUnit.SECONDS);
        } catch (TimeoutException timeout) {
            verdict = "fail";
            reason = "not done within " + SECONDS_MAX + " s, at " + where(thread);
            thread.interrupt();
        } catch (ExecutionException error) {
            boolean isSkipped = error.getCause() instanceof Cell.Skipped;
            verdict = isSkipped ? "skip" : "fail";
            reason = isSkipped ? error.getCause().getMessage() : describe(error.getCause());
            if (!isSkipped) {
                System.err.println("cell " + name);
                error.getCause().printStackTrace();
            }
        }
        try {
            world.afterCell();
        } catch (Exception error) {
            verdict = "fail";
            reason += " afterwards: " + describe(error);
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        System.out.printf("CELL\t%s\t%s\t%.2f\t%s%n", name, verdict, seconds, reason.replaceAll("\\s+", " "));
        System.out.flush();
        return !verdict.equals("fail");
    }

    private static String describe(Throwable error) {
        String text = error.getClass().getSimpleName() + ": " + error.getMessage();
        for (StackTraceElement frame : error.getStackTrace()) {
            if (frame.getClassName().startsWith("fastbk.compat.") && !frame.getClassName().endsWith("Check")) {
                return text + " (" + frame.getFileName() + ":" + frame.getLineNumber() + ")";
            }
        }
        return text;
    }

    private static String where(Thread thread) {
        for (StackTraceElement frame : thread.getStackTrace()) {
            if (frame.getClassName().startsWith("fastbk.compat.")) {
                return frame.getFileName() + ":" + frame.getLineNumber();
            }
        }
        return "an unknown place";
    }
}
