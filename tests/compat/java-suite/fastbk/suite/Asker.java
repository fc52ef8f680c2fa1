package fastbk.suite;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * What we say to the one who started us: a line for each test that ended, and questions, which it answers in a line
 * each. It has standard output for itself; whatever else is printed goes to standard error.
 */
public final class Asker {
    private static final PrintStream OUT = System.out;
    private static final BufferedReader ANSWERS =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Asker() {}

    /** Has everything that tests print go to standard error from now on. */
    static void claimOutput() {
        System.setOut(System.err);
    }

    /** Asks and waits for the answer; IOException with the answer's text if it is an error. */
    public static synchronized String ask(String... words) throws IOException {
        OUT.println("ASK\t" + String.join("\t", words));
        OUT.flush();
        String answer = ANSWERS.readLine();
        if (answer == null || !answer.startsWith("ok")) {
            throw new IOException(String.join(" ", words) + ": " + answer);
        }
        return answer.substring(2).trim();
    }

    /** Says what a test came to: pass, fail or skip. */
    static synchronized void cell(String name, String verdict, double seconds, String reason) {
        OUT.printf("CELL\t%s\t%s\t%.2f\t%s%n", name, verdict, seconds, reason.replaceAll("\\s+", " "));
        OUT.flush();
    }
}
