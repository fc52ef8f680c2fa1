package fastbk.suite;

import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** Which tests of a class run: `-method=reason` for each that cannot apply, `+method` for the only ones to run. */
final class Choice {
    private static final int REASON_CHARS_MAX = 300;

    private final Map<String, String> excluded = new TreeMap<>();
    private final Set<String> only = new TreeSet<>();
    private final Set<String> unfound = new TreeSet<>();

    /** Takes the words about a class but the first one, its name. */
    Choice(String[] arguments) {
        for (int i = 1; i < arguments.length; i++) {
            String word = arguments[i].substring(1);
            if (arguments[i].startsWith("+")) {
                only.add(word);
            } else {
                excluded.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
            }
        }
        unfound.addAll(excluded.keySet());
    }

    boolean isWanted(String method) {
        return only.isEmpty() || only.contains(method);
    }

    /** Why a test that is wanted cannot apply, or null. */
    String reason(String method) {
        unfound.remove(method);
        return isWanted(method) ? excluded.get(method) : null;
    }

    /** Exclusions of what is not there, which would hide that a test was renamed. */
    Set<String> unfound() {
        return only.isEmpty() ? unfound : Set.of();
    }

    /** What an error says, cut, and the line of the test class where it came from. */
    static String reason(Throwable error, String className) {
        String text = String.valueOf(error);
        text = text.length() <= REASON_CHARS_MAX ? text : text.substring(0, REASON_CHARS_MAX) + "...";
        for (StackTraceElement frame : error.getStackTrace()) {
            if (frame.getClassName().equals(className)) {
                return text + " (" + frame.getFileName() + ":" + frame.getLineNumber() + ")";
            }
        }
        return text;
    }
}
