package fastbk.suite;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.junit.AssumptionViolatedException;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs one class of Apache's tests. It asks which, and the words of the answer are its name; `-method=reason` for each
 * test that cannot apply, with its parameters or for all of them; `+method` for the only ones to run.
 */
public final class Suite {
    private Suite() {}

    public static void main(String[] ignored) throws Exception {
        Asker.claimOutput();
        String[] arguments = Asker.ask("next").split("\t");
        Class<?> type = Class.forName(arguments[0]);
        Chosen chosen = new Chosen(new Choice(arguments));
        Listener listener = new Listener();
        JUnitCore core = new JUnitCore();
        core.addListener(listener);
        Request request = Request.aClass(type).filterWith(chosen);
        if (chosen.found > 0 || !chosen.hasLeftOut) {
            core.run(request);
        }
        for (String name : chosen.choice.unfound()) {
            Asker.cell(type.getSimpleName() + "#" + name, "fail", 0, "excluded, but there is no such test");
        }
        // Threads that a test left behind are not waited for.
        Runtime.getRuntime().halt(listener.failed == 0 ? 0 : 1);
    }

    static String name(Description test) {
        // A class that is ignored as a whole has no method here.
        String method = test.getMethodName() == null ? "*" : test.getMethodName();
        return test.getTestClass().getSimpleName() + "#" + method;
    }

    /** A test's name without the parameters of a class that runs several times. */
    static String method(Description test) {
        String name = test.getMethodName();
        return name.indexOf('[') < 0 ? name : name.substring(0, name.indexOf('['));
    }

    /** Leaves tests out and says so. */
    private static final class Chosen extends Filter {
        private final Set<String> said = new TreeSet<>();
        final Choice choice;
        boolean hasLeftOut;
        int found;

        Chosen(Choice choice) {
            this.choice = choice;
        }

        @Override
        public boolean shouldRun(Description test) {
            if (!test.isTest()) {
                return test.getChildren().stream().map(this::shouldRun).reduce(false, Boolean::logicalOr);
            }
            String ofThese = choice.reason(test.getMethodName());
            String reason = ofThese != null ? ofThese : choice.reason(method(test));
            if (reason == null) {
                boolean isWanted = choice.isWanted(method(test));
                found += isWanted ? 1 : 0;
                return isWanted;
            }
            hasLeftOut = true;
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
            String text = Choice.reason(failure.getException(), failure.getDescription().getClassName());
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
    }
}
