package fastbk.suite;

import java.io.File;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Iterator;
import java.util.stream.Collectors;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;

/** A bookie of ours, started with the configuration that a test made for one of Apache's. */
public final class BookieProcess {
    private final ServerConfiguration conf;
    private final BookieId bookieId;
    private boolean isSpawned;

    public BookieProcess(ServerConfiguration conf) throws IOException {
        this.conf = conf;
        this.bookieId = BookieImpl.getBookieId(conf);
    }

    public ServerConfiguration conf() {
        return conf;
    }

    public BookieId bookieId() {
        return bookieId;
    }

    /** Starts it and returns at once. */
    public synchronized void spawn() throws IOException {
        File file = File.createTempFile("bk_server", ".conf");
        try (PrintWriter out = new PrintWriter(file, StandardCharsets.ISO_8859_1)) {
            for (Iterator<String> keys = conf.getKeys(); keys.hasNext();) {
                String key = keys.next();
                out.println(key + " = " + text(conf.getProperty(key)));
            }
        }
        Asker.ask("spawn", bookieId.toString(), file.getPath());
        isSpawned = true;
    }

    /** Waits until it serves. */
    public void awaitReady() throws IOException {
        Asker.ask("wait-ready", bookieId.toString());
    }

    /** Whether its main process is there. */
    public synchronized boolean isRunning() throws IOException {
        return isSpawned && Asker.ask("is-running", bookieId.toString()).equals("true");
    }

    /** Ends it in order; nothing if it does not run. */
    public synchronized void stop() throws IOException {
        if (isSpawned) {
            Asker.ask("stop", bookieId.toString());
            isSpawned = false;
        }
    }

    /** Stops what serves the network, without a word to anybody; connections stay. */
    public void suspend() throws IOException {
        Asker.ask("suspend", bookieId.toString());
    }

    /** Lets it go on. */
    public void resume() throws IOException {
        Asker.ask("resume", bookieId.toString());
    }

    /** Has it refuse writes, or take them again, as an operator would; IOException if it does not. */
    public void setReadOnly(boolean isReadOnly) throws IOException {
        String refusal = askReadOnly(isReadOnly);
        if (!refusal.isEmpty()) {
            throw new IOException(refusal);
        }
    }

    /** The same, and returns why it does not, or nothing. */
    public String askReadOnly(boolean isReadOnly) throws IOException {
        return Asker.ask("read-only", bookieId.toString(), String.valueOf(isReadOnly));
    }

    /** Whether it says of itself that it refuses writes. */
    public boolean isReadOnly() throws IOException {
        return Asker.ask("is-read-only", bookieId.toString()).equals("true");
    }

    /** Has it collect garbage, and waits until that is done. */
    public void collectGarbage() throws IOException {
        Asker.ask("collect-garbage", bookieId.toString());
    }

    private static String text(Object value) {
        String joined = value instanceof Collection<?> all
                ? all.stream().map(String::valueOf).collect(Collectors.joining(","))
                : String.valueOf(value);
        return joined.replace("\\", "\\\\");
    }
}
