package org.apache.pulsar.opentelemetry;

import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.sdk.autoconfigure.AutoConfiguredOpenTelemetrySdkBuilder;
import java.io.Closeable;
import java.util.function.Consumer;

/** Takes Pulsar's figures and keeps none; the module of its build that has the real one is not released as a jar. */
public final class OpenTelemetryService implements Closeable {
    public static OpenTelemetryServiceBuilder builder() {
        return new OpenTelemetryServiceBuilder();
    }

    public OpenTelemetry getOpenTelemetry() {
        return OpenTelemetry.noop();
    }

    @Override
    public void close() {}

    public static final class OpenTelemetryServiceBuilder {
        public OpenTelemetryServiceBuilder clusterName(String name) {
            return this;
        }

        public OpenTelemetryServiceBuilder serviceName(String name) {
            return this;
        }

        public OpenTelemetryServiceBuilder serviceVersion(String version) {
            return this;
        }

        public OpenTelemetryServiceBuilder builderCustomizer(Consumer<AutoConfiguredOpenTelemetrySdkBuilder> ignored) {
            return this;
        }

        public OpenTelemetryService build() {
            return new OpenTelemetryService();
        }
    }
}
