package fastbk.compat;

import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.auth.AuthCallbacks.GenericCallback;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.proto.ClientConnectionPeer;

/**
 * A client that wants to authenticate itself, at bookies that have nothing to do so with. The client takes their word
 * for that, and goes on without its plugin being asked again.
 */
public final class AuthPlugin implements ClientAuthProvider.Factory {
    private static final AtomicReference<String> STATE = new AtomicReference<>("not asked");

    static void cell(World world) throws Exception {
        ClientConfiguration configuration = world.configuration();
        configuration.setClientAuthProviderFactoryClass(AuthPlugin.class.getName());
        BookKeeper client = world.client(configuration);
        try (LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, World.PASSWORD)) {
            World.append(writer, 0, 20);
            World.checkEntries(writer, 0, 19);
        }
        Check.equal("first message made", STATE.get(), "state of the plugin");
    }

    @Override
    public void init(ClientConfiguration configuration) {
    }

    @Override
    public String getPluginName() {
        return "compat";
    }

    @Override
    public ClientAuthProvider newProvider(ClientConnectionPeer connection, GenericCallback<Void> complete) {
        return new ClientAuthProvider() {
            @Override
            public void init(GenericCallback<AuthToken> callback) {
                STATE.set("first message made");
                callback.operationComplete(0, AuthToken.wrap(new byte[] {1, 2, 3}));
            }

            @Override
            public void process(AuthToken token, GenericCallback<AuthToken> callback) {
                STATE.set("asked for a second message");
                complete.operationComplete(0, null);
            }
        };
    }
}
