package fastbk.suite;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.testng.IAnnotationTransformer;
import org.testng.IConfigurationListener;
import org.testng.IMethodInstance;
import org.testng.IMethodInterceptor;
import org.testng.ITestContext;
import org.testng.ITestListener;
import org.testng.ITestResult;
import org.testng.SkipException;
import org.testng.TestNG;
import org.testng.annotations.ITestAnnotation;

/** Runs classes of TestNG's tests, one after the other; what it asks for and says is what Suite does. */
public final class TestNgSuite {
    private static final int TEST_MS_MAX = 300_000;

    private TestNgSuite() {}

    public static void main(String[] ignored) throws Exception {
        Asker.claimOutput();
        int failed = 0;
        for (String next = Asker.ask("next"); !next.isEmpty(); next = Asker.ask("next")) {
            failed += run(next.split("\t"));
        }
        // Threads that a test left behind are not waited for.
        Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
    }

    /** Runs one class and returns how many of its tests failed. */
    private static int run(String[] words) throws Exception {
        Class<?> type = Class.forName(words[0]);
        Choice choice = new Choice(words);
        Listener listener = new Listener(type.getSimpleName(), choice);
        TestNG runner = new TestNG(false);
        runner.setVerbose(0);
        runner.setTestClasses(new Class<?>[] {type});
        // Pulsar's build leaves these out, too.
        runner.setExcludedGroups("quarantine");
        runner.addListener(listener);
        runner.run();
        for (String name : choice.unfound()) {
            listener.cell(name, "fail", 0, "excluded, but there is no such test");
        }
        if (!listener.hasSaid) {
            listener.cell("*", "fail", 0, "no test ran");
        }
        return listener.failed;
    }

    /** Leaves tests out, bounds the others, and says how each ended. */
    private static final class Listener
            implements ITestListener, IConfigurationListener, IMethodInterceptor, IAnnotationTransformer {
        private final String prefix;
        private final Choice choice;
        private final Map<String, Integer> runs = new HashMap<>();
        int failed;
        boolean hasSaid;

        Listener(String className, Choice choice) {
            this.prefix = className + "#";
            this.choice = choice;
        }

        @Override
        @SuppressWarnings("rawtypes")
        public void transform(
                ITestAnnotation annotation, Class type, Constructor constructor, Method method) {
            if (annotation.getTimeOut() == 0) {
                annotation.setTimeOut(TEST_MS_MAX);
            }
        }

        @Override
        public List<IMethodInstance> intercept(List<IMethodInstance> methods, ITestContext context) {
            List<IMethodInstance> taken = new ArrayList<>();
            for (IMethodInstance one : methods) {
                String name = one.getMethod().getMethodName();
                String reason = choice.reason(name);
                if (reason != null) {
                    cell(name, "skip", 0, reason);
                } else if (choice.isWanted(name)) {
                    taken.add(one);
                }
            }
            return taken;
        }

        @Override
        public void onTestStart(ITestResult result) {
            System.err.println("=== " + prefix + result.getMethod().getMethodName());
        }

        @Override
        public void onTestSuccess(ITestResult result) {
            say(result, "pass", "");
        }

        @Override
        public void onTestFailure(ITestResult result) {
            say(result, "fail", reason(result));
        }

        @Override
        public void onTestSkipped(ITestResult result) {
            // A test whose preparation failed is "skipped", too.
            boolean isOwn = result.getThrowable() instanceof SkipException;
            say(result, isOwn ? "skip" : "fail", isOwn ? result.getThrowable().getMessage() : reason(result));
        }

        @Override
        public void onConfigurationFailure(ITestResult result) {
            if (!(result.getThrowable() instanceof SkipException)) {
                say(result, "fail", reason(result));
            }
        }

        private void say(ITestResult result, String verdict, String reason) {
            String name = result.getMethod().getMethodName();
            int run = runs.merge(name, 1, Integer::sum);
            if (verdict.equals("fail") && result.getThrowable() != null) {
                result.getThrowable().printStackTrace();
            }
            double seconds = (result.getEndMillis() - result.getStartMillis()) / 1e3;
            cell(name + (run == 1 ? "" : "[" + run + "]"), verdict, seconds, reason);
        }

        void cell(String name, String verdict, double seconds, String reason) {
            if (verdict.equals("fail")) {
                failed++;
                System.err.println("=== failed: " + prefix + name);
            }
            hasSaid = true;
            Asker.cell(prefix + name, verdict, seconds, reason);
        }

        private static String reason(ITestResult result) {
            return result.getThrowable() == null
                    ? "its preparation failed"
                    : Choice.reason(result.getThrowable(), result.getTestClass().getName());
        }
    }
}
