package fastbk.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Pulsar's transactions, which only its Java client has. */
public final class TransactionCells {
    private static final String SERVICE = System.getProperty("fastbk.compat.pulsar");
    private static final int COUNT = 20;
    private static final int PATIENCE_S = 60;
    /** How long nothing has to come before it is taken that nothing will. */
    private static final int SILENCE_S = 3;

    private TransactionCells() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Cell> cells = new LinkedHashMap<>();
        cells.put("pulsar-transaction-commit", TransactionCells::commit);
        cells.put("pulsar-transaction-abort", TransactionCells::abort);
        cells.put("pulsar-transaction-acks", TransactionCells::acks);
        cells.put("pulsar-transaction-broker-killed", TransactionCells::brokerKilled);
        Cells.run(cells, arguments);
    }

    private static PulsarClient client() throws Exception {
        return PulsarClient.builder().serviceUrl(SERVICE).enableTransaction(true)
                .operationTimeout(PATIENCE_S, TimeUnit.SECONDS).build();
    }

    private static Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(5, TimeUnit.MINUTES).build()
                .get(PATIENCE_S, TimeUnit.SECONDS);
    }

    private static String topic(String what) {
        return "persistent://public/default/transaction-" + what + "-" + System.nanoTime();
    }

    private static Producer<String> producer(PulsarClient client, String topic) throws Exception {
        return client.newProducer(Schema.STRING).topic(topic).sendTimeout(0, TimeUnit.SECONDS)
                .enableBatching(false).create();
    }

    private static Consumer<String> consumer(PulsarClient client, String topic) throws Exception {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("reader")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private static void send(Producer<String> producer, Transaction transaction, String word) throws Exception {
        for (int number = 0; number < COUNT; number++) {
            producer.newMessage(transaction).value(word + number).sendAsync().get(PATIENCE_S, TimeUnit.SECONDS);
        }
    }

    private static List<Message<String>> receive(Consumer<String> consumer, String word) throws Exception {
        List<Message<String>> found = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            Message<String> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            Check.isTrue(message != null, "message " + word + number + " did not come");
            Check.equal(word + number, message.getValue(), "message " + number);
            found.add(message);
        }
        return found;
    }

    private static void nothingComes(Consumer<String> consumer) throws Exception {
        Message<String> message = consumer.receive(SILENCE_S, TimeUnit.SECONDS);
        Check.isTrue(message == null, "a message that is not to be seen: " + (message == null ? "" : message.getValue()));
    }

    private static void commit(World world) throws Exception {
        String topic = topic("commit");
        try (PulsarClient client = client();
                Producer<String> producer = producer(client, topic);
                Consumer<String> consumer = consumer(client, topic)) {
            Transaction transaction = begin(client);
            send(producer, transaction, "committed ");
            nothingComes(consumer);
            transaction.commit().get(PATIENCE_S, TimeUnit.SECONDS);
            receive(consumer, "committed ");
        }
    }

    private static void abort(World world) throws Exception {
        String topic = topic("abort");
        try (PulsarClient client = client();
                Producer<String> producer = producer(client, topic);
                Consumer<String> consumer = consumer(client, topic)) {
            Transaction aborted = begin(client);
            send(producer, aborted, "aborted ");
            Transaction committed = begin(client);
            send(producer, committed, "committed ");
            aborted.abort().get(PATIENCE_S, TimeUnit.SECONDS);
            committed.commit().get(PATIENCE_S, TimeUnit.SECONDS);
            receive(consumer, "committed ");
            nothingComes(consumer);
        }
    }

    private static void acks(World world) throws Exception {
        String topic = topic("acks");
        try (PulsarClient client = client();
                Producer<String> producer = producer(client, topic)) {
            for (int number = 0; number < COUNT; number++) {
                producer.send("plain " + number);
            }
            try (Consumer<String> consumer = consumer(client, topic)) {
                acknowledge(consumer, receive(consumer, "plain "), begin(client), false);
            }
            try (Consumer<String> consumer = consumer(client, topic)) {
                // What an aborted transaction acknowledged comes again.
                acknowledge(consumer, receive(consumer, "plain "), begin(client), true);
            }
            try (Consumer<String> consumer = consumer(client, topic)) {
                nothingComes(consumer);
            }
        }
    }

    private static void acknowledge(Consumer<String> consumer, List<Message<String>> messages, Transaction transaction,
            boolean isCommitted) throws Exception {
        for (Message<String> message : messages) {
            consumer.acknowledgeAsync(message.getMessageId(), transaction).get(PATIENCE_S, TimeUnit.SECONDS);
        }
        (isCommitted ? transaction.commit() : transaction.abort()).get(PATIENCE_S, TimeUnit.SECONDS);
    }

    private static void brokerKilled(World world) throws Exception {
        String topic = topic("killed");
        try (PulsarClient client = client();
                Producer<String> producer = producer(client, topic);
                Consumer<String> consumer = consumer(client, topic)) {
            Transaction aborted = begin(client);
            send(producer, aborted, "aborted ");
            Transaction committed = begin(client);
            send(producer, committed, "committed ");
            world.ask("broker-kill");
            world.ask("broker-start");
            Check.until(() -> isDone(committed, true), PATIENCE_S, "the commit");
            Check.until(() -> isDone(aborted, false), PATIENCE_S, "the abort");
            receive(consumer, "committed ");
            nothingComes(consumer);
        }
    }

    /** The coordinator reads its log first; until then it is not there, and asking again is right. */
    private static boolean isDone(Transaction transaction, boolean isCommitted) throws InterruptedException {
        try {
            (isCommitted ? transaction.commit() : transaction.abort()).get(PATIENCE_S, TimeUnit.SECONDS);
            return true;
        } catch (ExecutionException | TimeoutException error) {
            System.err.println("not yet: " + error);
            return false;
        }
    }
}
