package fastbk.compat;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.BKException;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/** The cluster as a cell sees it: clients, ledgers, and the one who can kill bookies. */
final class World implements AutoCloseable {
    static final byte[] PASSWORD = "secret".getBytes(StandardCharsets.UTF_8);

    final String metadataUri;
    final boolean isV2;
    private final BufferedReader answers =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final List<BookKeeper> opened = new ArrayList<>();
    private final Set<String> touched = new HashSet<>();
    private BookKeeper shared;

    World(String metadataUri, String protocol) {
        this.metadataUri = metadataUri;
        this.isV2 = protocol.equals("v2");
    }

    /** Whether to authenticate, as the login configuration of this Java says. */
    private static final boolean IS_SASL = Boolean.getBoolean("fastbk.compat.sasl");

    /** A folder with certificates; none: in the clear. */
    private static final String TLS = System.getProperty("fastbk.compat.tls");

    /** A configuration with the protocol of this run and Apache's defaults, but for shorter waits. */
    ClientConfiguration configuration() {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(metadataUri);
        configuration.setUseV2WireProtocol(isV2);
        configuration.setAddEntryTimeout(10);
        configuration.setReadEntryTimeout(10);
        configuration.setZkTimeout(10_000);
        if (TLS != null) {
            configuration.setTLSProviderFactoryClass("org.apache.bookkeeper.tls.TLSContextFactory");
            configuration.setTLSProvider("JDK");
            configuration.setTLSClientAuthentication(true);
            configuration.setHostnameVerificationEnabled(true);
            configuration.setTLSKeyStoreType("PEM");
            configuration.setTLSKeyStore(TLS + "/client/tls.key");
            configuration.setTLSCertificatePath(TLS + "/client/tls.crt");
            configuration.setTLSTrustStoreType("PEM");
            configuration.setTLSTrustStore(TLS + "/ca/ca.crt");
        }
        if (IS_SASL) {
            configuration.setClientAuthProviderFactoryClass(
                    "org.apache.bookkeeper.sasl.SASLClientProviderFactory");
        }
        return configuration;
    }

    /** The client that cells share. */
    synchronized BookKeeper client() throws Exception {
        if (shared == null) {
            shared = new BookKeeper(configuration());
        }
        return shared;
    }

    /** A client of this cell's own, closed after the cell. */
    BookKeeper client(ClientConfiguration configuration) throws Exception {
        BookKeeper client = new BookKeeper(configuration);
        opened.add(client);
        return client;
    }

    BookKeeperAdmin admin() throws Exception {
        return new BookKeeperAdmin(client());
    }

    LedgerHandle create(int ensemble, int writeQuorum, int ackQuorum) throws Exception {
        return client().createLedger(ensemble, writeQuorum, ackQuorum, DigestType.CRC32C, PASSWORD);
    }

    LedgerHandle open(long ledgerId) throws Exception {
        return client().openLedger(ledgerId, DigestType.CRC32C, PASSWORD);
    }

    LedgerHandle openNoRecovery(long ledgerId) throws Exception {
        return client().openLedgerNoRecovery(ledgerId, DigestType.CRC32C, PASSWORD);
    }

    /** A closed ledger with `count` entries of {@link #payload}. */
    long written(int ensemble, int writeQuorum, int ackQuorum, int count) throws Exception {
        try (LedgerHandle writer = create(ensemble, writeQuorum, ackQuorum)) {
            append(writer, 0, count);
            return writer.getId();
        }
    }

    static byte[] payload(long ledgerId, long entryId) {
        byte[] payload = new byte[16 + (int) ((entryId * 37) % 1000)];
        Arrays.fill(payload, (byte) (ledgerId + entryId));
        return payload;
    }

    static void append(LedgerHandle writer, long first, int count) throws Exception {
        for (long entryId = first; entryId < first + count; entryId++) {
            Check.equal(entryId, writer.addEntry(payload(writer.getId(), entryId)), "id of an added entry");
        }
    }

    /** Demands that the entries first..last are there as {@link #append} wrote them. */
    static void checkEntries(LedgerHandle reader, long first, long last) throws Exception {
        checkEntries(reader.readEntries(first, last), reader.getId(), first, last);
    }

    static void checkEntries(Enumeration<LedgerEntry> entries, long ledgerId, long first, long last) {
        long next = first;
        while (entries.hasMoreElements()) {
            LedgerEntry entry = entries.nextElement();
            Check.equal(next, entry.getEntryId(), "id of a read entry");
            Check.isTrue(Arrays.equals(payload(ledgerId, next), entry.getEntry()), "bytes of entry " + next);
            next++;
        }
        Check.equal(last + 1, next, "where the entries end");
    }

    static List<BookieId> ensemble(LedgerHandle ledger) {
        return new ArrayList<>(ledger.getLedgerMetadata().getAllEnsembles().lastEntry().getValue());
    }

    /** SIGKILLs a bookie. It is started again after the cell, if nobody did before. */
    void kill(BookieId bookie) throws Exception {
        touched.add(bookie.toString());
        ask("kill", bookie.toString());
    }

    /** Starts a killed bookie again and waits until it is registered. */
    void start(BookieId bookie) throws Exception {
        ask("start", bookie.toString());
        touched.remove(bookie.toString());
        awaitAll();
    }

    /** Waits until the shared client may choose every bookie. It learns of them some time after they registered. */
    private void awaitAll() throws Exception {
        int count = Integer.parseInt(ask("count-running"));
        AtomicInteger inARow = new AtomicInteger();
        Check.until(() -> {
            try {
                create(count, 1, 1).close();
                // News of a registration's end may be on the way, and that of the new one behind it.
                return inARow.incrementAndGet() >= 10;
            } catch (BKException error) {
                inARow.set(0);
                return false;
            }
        }, 30, "all bookies to be known again");
    }

    /** SIGSTOPs all processes of a bookie: it is there, and silent. */
    void pause(BookieId bookie) throws Exception {
        touched.add(bookie.toString());
        ask("pause", bookie.toString());
    }

    void resume(BookieId bookie) throws Exception {
        ask("resume", bookie.toString());
    }

    /** Has a bookie refuse adds, over HTTP. After the cell it takes them again, if it did not before. */
    void readOnly(BookieId bookie) throws Exception {
        touched.add(bookie.toString());
        ask("read-only", bookie.toString());
    }

    /** Has a bookie take adds again, and waits until the shared client chooses it. */
    void writable(BookieId bookie) throws Exception {
        ask("writable", bookie.toString());
        touched.remove(bookie.toString());
        awaitAll();
    }

    /** Asks the one who started us, and returns the answer. */
    synchronized String ask(String... words) throws IOException {
        System.out.println("ASK\t" + String.join("\t", words));
        System.out.flush();
        String answer = answers.readLine();
        if (answer == null || !answer.startsWith("ok")) {
            throw new IOException(String.join(" ", words) + ": " + answer);
        }
        return answer.substring(2).trim();
    }

    /** Puts back what a cell left behind. */
    void afterCell() throws Exception {
        for (BookKeeper client : opened) {
            client.close();
        }
        opened.clear();
        for (String bookie : new ArrayList<>(touched)) {
            ask("restore", bookie);
        }
        if (!touched.isEmpty()) {
            touched.clear();
            awaitAll();
        }
    }

    @Override
    public void close() throws Exception {
        if (shared != null) {
            shared.close();
        }
    }
}
