package org.apache.pulsar.opentelemetry;

import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import java.util.Locale;

/**
 * The names of Pulsar's figures, as its classes use them. The module of its build that has them is not released as a
 * jar; what they say is never read here.
 */
public final class OpenTelemetryAttributes {
    public static final AttributeKey<String> ML_CURSOR_NAME = text("ML_CURSOR_NAME");
    public static final AttributeKey<String> ML_LEDGER_NAME = text("ML_LEDGER_NAME");
    public static final AttributeKey<String> ML_NAME = text("ML_NAME");
    public static final AttributeKey<String> ML_OPERATION_STATUS = text("ML_OPERATION_STATUS");
    public static final AttributeKey<String> PULSAR_BACKLOG_QUOTA_TYPE = text("PULSAR_BACKLOG_QUOTA_TYPE");
    public static final AttributeKey<String> PULSAR_CLUSTER = text("PULSAR_CLUSTER");
    public static final AttributeKey<String> PULSAR_COMPACTION_STATUS = text("PULSAR_COMPACTION_STATUS");
    public static final AttributeKey<String> PULSAR_CONSUMER_NAME = text("PULSAR_CONSUMER_NAME");
    public static final AttributeKey<String> PULSAR_DOMAIN = text("PULSAR_DOMAIN");
    public static final AttributeKey<String> PULSAR_NAMESPACE = text("PULSAR_NAMESPACE");
    public static final AttributeKey<String> PULSAR_PRODUCER_ACCESS_MODE = text("PULSAR_PRODUCER_ACCESS_MODE");
    public static final AttributeKey<String> PULSAR_PRODUCER_NAME = text("PULSAR_PRODUCER_NAME");
    public static final AttributeKey<String> PULSAR_REPLICATION_REMOTE_CLUSTER_NAME = text("PULSAR_REPLICATION_REMOTE_CLUSTER_NAME");
    public static final AttributeKey<String> PULSAR_SUBSCRIPTION_NAME = text("PULSAR_SUBSCRIPTION_NAME");
    public static final AttributeKey<String> PULSAR_SUBSCRIPTION_TYPE = text("PULSAR_SUBSCRIPTION_TYPE");
    public static final AttributeKey<String> PULSAR_TENANT = text("PULSAR_TENANT");
    public static final AttributeKey<String> PULSAR_TOPIC = text("PULSAR_TOPIC");
    public static final AttributeKey<String> PULSAR_TRANSACTION_ACK_STORE_OPERATION_STATUS = text("PULSAR_TRANSACTION_ACK_STORE_OPERATION_STATUS");
    public static final AttributeKey<String> PULSAR_TRANSACTION_STATUS = text("PULSAR_TRANSACTION_STATUS");
    public static final AttributeKey<Long> PULSAR_CONSUMER_ID = AttributeKey.longKey("PULSAR_CONSUMER_ID");
    public static final AttributeKey<Long> PULSAR_PARTITION_INDEX = AttributeKey.longKey("PULSAR_PARTITION_INDEX");
    public static final AttributeKey<Long> PULSAR_PRODUCER_ID = AttributeKey.longKey("PULSAR_PRODUCER_ID");

    private OpenTelemetryAttributes() {}

    private static AttributeKey<String> text(String name) {
        return AttributeKey.stringKey(name);
    }

    private static Attributes of(Enum<?> value) {
        String kind = value.getDeclaringClass().getSimpleName();
        return Attributes.of(text(kind), value.name().toLowerCase(Locale.ROOT));
    }

    public enum BacklogQuotaType {
        SIZE, TIME;

        public final Attributes attributes = of(this);
    }

    public enum CacheEntryStatus {
        ACTIVE, EVICTED, INSERTED;

        public final Attributes attributes = of(this);
    }

    public enum CacheOperationStatus {
        HIT, MISS;

        public final Attributes attributes = of(this);
    }

    public enum CompactionStatus {
        SUCCESS, FAILURE;

        public final Attributes attributes = of(this);
    }

    public enum ConnectionCreateStatus {
        SUCCESS, FAILURE;

        public final Attributes attributes = of(this);
    }

    public enum ConnectionRateLimitOperationName {
        PAUSED, RESUMED, THROTTLED, UNTHROTTLED;

        public final Attributes attributes = of(this);
    }

    public enum ConnectionStatus {
        ACTIVE, OPEN, CLOSE;

        public final Attributes attributes = of(this);
    }

    public enum InflightReadLimiterUtilization {
        USED, FREE;

        public final Attributes attributes = of(this);
    }

    public enum ManagedCursorOperationStatus {
        SUCCESS, FAILURE;

        public final Attributes attributes = of(this);
    }

    public enum ManagedLedgerOperationStatus {
        SUCCESS, FAILURE;

        public final Attributes attributes = of(this);
    }

    public enum PoolArenaType {
        SMALL, NORMAL, HUGE;

        public final Attributes attributes = of(this);
    }

    public enum PoolChunkAllocationType {
        ALLOCATED, USED;

        public final Attributes attributes = of(this);
    }

    public enum TransactionBufferClientOperationStatus {
        SUCCESS, FAILURE;

        public final Attributes attributes = of(this);
    }

    public enum TransactionPendingAckOperationStatus {
        SUCCESS, FAILURE;

        public final Attributes attributes = of(this);
    }

    public enum TransactionStatus {
        ABORTED, ACTIVE, COMMITTED;

        public final Attributes attributes = of(this);
    }
}
