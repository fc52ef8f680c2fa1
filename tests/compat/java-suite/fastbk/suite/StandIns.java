package fastbk.suite;

import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.withSettings;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.BookieStateManager;
import org.apache.bookkeeper.bookie.GarbageCollectorThread;
import org.apache.bookkeeper.bookie.InterleavedLedgerStorage;
import org.apache.bookkeeper.bookie.LedgerDirsManager;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.server.service.BookieService;
import org.mockito.invocation.InvocationOnMock;

/**
 * Tests hold a bookie as an object of Apache's server classes. These look like them, and hand what can be asked of a
 * bookie in processes of its own to those processes; everything else is refused, and the test fails with that.
 */
public final class StandIns {
    private interface Call {
        Object run(InvocationOnMock call) throws Throwable;
    }

    private StandIns() {}

    /** The network server of a bookie. */
    public static BookieServer server(BookieProcess process) {
        BookieImpl bookie = bookie(process);
        return standIn(BookieServer.class, process, Map.of(
                "start", call -> {
                    process.spawn();
                    process.awaitReady();
                    return null;
                },
                "shutdown", call -> nothing(process::stop),
                "suspendProcessing", call -> nothing(process::suspend),
                "resumeProcessing", call -> nothing(process::resume),
                "isRunning", call -> process.isRunning(),
                "isBookieRunning", call -> process.isRunning(),
                "getBookieId", call -> process.bookieId(),
                "getLocalAddress", call -> BookieImpl.getBookieAddress(process.conf()),
                "getBookie", call -> bookie));
    }

    /** The service that has a bookie's network server. */
    public static BookieService service(BookieProcess process) {
        BookieServer server = server(process);
        return standIn(BookieService.class, process, Map.of(
                "start", call -> nothing(server::start),
                "stop", call -> nothing(process::stop),
                "close", call -> nothing(process::stop),
                "getServer", call -> server,
                "getName", call -> BookieService.NAME,
                "publishInfo", call -> null,
                "setExceptionHandler", call -> null));
    }

    private static BookieImpl bookie(BookieProcess process) {
        BookieStateManager state = standIn(BookieStateManager.class, process, Map.of(
                "transitionToReadOnlyMode", call -> setReadOnly(process, true),
                "doTransitionToReadOnlyMode", call -> nothing(() -> process.setReadOnly(true)),
                "transitionToWritableMode", call -> setReadOnly(process, false),
                "doTransitionToWritableMode", call -> nothing(() -> process.setReadOnly(false)),
                "isReadOnly", call -> process.isReadOnly(),
                "isRunning", call -> process.isRunning()));
        // A directory that is full is one way to become read-only; tests that say so look at what follows from it.
        LedgerDirsManager directories = standIn(LedgerDirsManager.class, process, Map.of(
                "addToFilledDirs", call -> nothing(() -> process.setReadOnly(true)),
                // One that its configuration makes read-only stays so.
                "addToWritableDirs", call -> nothing(() -> process.askReadOnly(false))));
        return standIn(BookieImpl.class, process, Map.of(
                "isRunning", call -> process.isRunning(),
                "isReadOnly", call -> process.isReadOnly(),
                "getStateManager", call -> state,
                "getLedgerStorage", call -> storage(process),
                "getLedgerDirsManager", call -> directories));
    }

    /** A storage of which nothing can be had but its garbage collector, which tests take out of a private field. */
    private static InterleavedLedgerStorage storage(BookieProcess process) throws ReflectiveOperationException {
        GarbageCollectorThread collector = standIn(GarbageCollectorThread.class, process, Map.of(
                "run", call -> nothing(process::collectGarbage)));
        InterleavedLedgerStorage storage = standIn(InterleavedLedgerStorage.class, process, Map.of());
        Field field = InterleavedLedgerStorage.class.getDeclaredField("gcThread");
        field.setAccessible(true);
        field.set(storage, collector);
        return storage;
    }

    private static <T> T standIn(Class<T> type, BookieProcess process, Map<String, Call> calls) {
        return mock(type, withSettings().stubOnly().defaultAnswer(call -> {
            String name = call.getMethod().getName();
            if (calls.containsKey(name)) {
                return calls.get(name).run(call);
            }
            if (name.equals("toString")) {
                return type.getSimpleName() + " of " + process.bookieId();
            }
            throw new UnsupportedOperationException(
                    "a bookie in processes of its own has no " + type.getSimpleName() + "." + name);
        }));
    }

    private interface Action {
        void run() throws Exception;
    }

    private static Object nothing(Action action) throws Exception {
        action.run();
        return null;
    }

    private static Object setReadOnly(BookieProcess process, boolean isReadOnly) throws Exception {
        process.setReadOnly(isReadOnly);
        return CompletableFuture.completedFuture(null);
    }
}
