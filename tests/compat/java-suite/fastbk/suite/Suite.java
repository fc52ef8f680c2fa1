package fastbk.suite;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.junit.AssumptionViolatedException;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs one class of Apache's tests. Arguments: its name; `-method=reason` for each test that cannot apply, with its
 * parameters or for all of them; `+method` for the only ones to run.
 */
public final class Suite {
    private static final int REASON_CHARS_MAX = 300;

    private Suite() {}

    public static void main(String[] arguments) throws Exception {
        Asker.claimOutput();
        Class<?> type = Class.forName(arguments[0]);
        Map<String, String> excluded = new TreeMap<>();
        Set<String> only = new TreeSet<>();
        for (int i = 1; i < arguments.length; i++) {
            String word = arguments[i].substring(1);
            if (arguments[i].startsWith("+")) {
                only.add(word);
            } else {
                excluded.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
            }
        }
        Chosen chosen = new Chosen(only, excluded);
        Listener listener = new Listener();
        JUnitCore core = new JUnitCore();
        core.addListener(listener);
        Request request = Request.aClass(type).filterWith(chosen);
        if (chosen.found > 0 || chosen.left.isEmpty()) {
            core.run(request);
        }
        if (only.isEmpty()) {
            // An exclusion of what is not there would hide that a test was renamed.
            excluded.keySet().removeAll(chosen.left);
            for (String name : excluded.keySet()) {
                Asker.cell(type.getSimpleName() + "#" + name, "fail", 0, "excluded, but there is no such test");
            }
        }
        // Threads that a test left behind are not waited for.
        Runtime.getRuntime().halt(listener.failed == 0 ? 0 : 1);
    }

    static String name(Description test) {
        return test.getTestClass().getSimpleName() + "#" + test.getMethodName();
    }

    /** A test's name without the parameters of a class that runs several times. */
    static String method(Description test) {
        String name = test.getMethodName();
        return name.indexOf('[') < 0 ? name : name.substring(0, name.indexOf('['));
    }

    /** Leaves tests out and says so. */
    private static final class Chosen extends Filter {
        private final Set<String> only;
        private final Map<String, String> excluded;
        private final Set<String> said = new TreeSet<>();
        final Set<String> left = new TreeSet<>();
        int found;

        Chosen(Set<String> only, Map<String, String> excluded) {
            this.only = only;
            this.excluded = excluded;
        }

        @Override
        public boolean shouldRun(Description test) {
            if (!test.isTest()) {
                return test.getChildren().stream().map(this::shouldRun).reduce(false, Boolean::logicalOr);
            }
            if (!only.isEmpty() && !only.contains(method(test))) {
                return false;
            }
            String key = excluded.containsKey(test.getMethodName()) ? test.getMethodName() : method(test);
            String reason = excluded.get(key);
            if (reason == null) {
                found++;
                return true;
            }
            left.add(key);
            if (said.add(name(test))) {
                Asker.cell(name(test), "skip", 0, reason);
            }
            return false;
        }

        @Override
        public String describe() {
            return "those that apply";
        }
    }

    /** Says how each test ended. */
    private static final class Listener extends RunListener {
        private final Map<Description, Long> started = new HashMap<>();
        private final Map<Description, String> verdicts = new HashMap<>();
        int failed;

        @Override
        public void testStarted(Description test) {
            System.err.println("=== " + name(test));
            started.put(test, System.nanoTime());
        }

        @Override
        public void testFailure(Failure failure) {
            System.err.println("=== failed: " + failure.getTestHeader());
            failure.getException().printStackTrace();
            failed++;
            String text = String.valueOf(failure.getException());
            text = text.length() <= REASON_CHARS_MAX ? text : text.substring(0, REASON_CHARS_MAX) + "...";
            text += where(failure);
            if (failure.getDescription().isTest()) {
                verdicts.merge(failure.getDescription(), "fail\t" + text, (first, second) -> first);
            } else {
                Asker.cell(failure.getTestHeader(), "fail", 0, text);
            }
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            AssumptionViolatedException error = (AssumptionViolatedException) failure.getException();
            verdicts.put(failure.getDescription(), "skip\tby itself: " + error.getMessage());
        }

        @Override
        public void testIgnored(Description test) {
            Asker.cell(name(test), "skip", 0, "ignored in Apache's build, too");
        }

        @Override
        public void testFinished(Description test) {
            String[] verdict = verdicts.getOrDefault(test, "pass\t").split("\t", 2);
            double seconds = (System.nanoTime() - started.get(test)) / 1e9;
            Asker.cell(name(test), verdict[0], seconds, verdict[1]);
        }

        private static String where(Failure failure) {
            for (StackTraceElement frame : failure.getException().getStackTrace()) {
                if (frame.getClassName().equals(failure.getDescription().getClassName())) {
                    return " (" + frame.getFileName() + ":" + frame.getLineNumber() + ")";
                }
            }
            return "";
        }
    }
}
