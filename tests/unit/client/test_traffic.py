"""Traffic with bookies by how far they are: by client.stats(), for Prometheus, and by OpenTelemetry."""

from __future__ import annotations

from typing import cast

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import fastbk
from fastbk.client import Client
from fastbk.meta.placement_record import change_rules
from fastbk.placement.rules import ClusterPlaces, ClusterRules
from tests.unit.client.fake_cluster import fake_cluster, numbers, written

PLACES = {"b0": "/eu/r1", "b1": "/eu/r2", "b2": "/us/r1"}
COUNT = 50


def traffic(client: Client) -> dict[str, dict[str, int]]:
    return cast("dict[str, dict[str, int]]", client.stats()["traffic"])


def collected(reader: InMemoryMetricReader) -> dict[tuple[str, str], int]:
    """Return what OpenTelemetry has by instrument and distance."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        (metric.name.rpartition(".")[2], str((point.attributes or {})["fastbk.distance"])): int(
            point.value  # type: ignore[union-attr]
        )
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name.startswith("fastbk.client.bookies.")
        for point in metric.data.data_points
    }


async def test_bytes_entries_and_copies_are_counted_by_distance() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    options = {"tracing": fastbk.Tracing(spans=False, meter_provider=provider)}
    async with fake_cluster(topology=PLACES, location="/eu/r1", **options) as (client, _, _):
        ledger = await written(client, numbers(0, COUNT))
        assert len([entry async for entry in ledger.read()]) == COUNT
        counts = traffic(client)
        # The fakes are on this host, too, which counts only where the locations are the same.
        assert {name: one["stored_copies"] for name, one in counts.items()} == {
            "host": COUNT, "rack": 0, "region": COUNT, "unknown": 0, "other": COUNT,
        }  # fmt: skip
        assert counts["host"]["read_entries"] == COUNT
        assert counts["region"]["read_entries"] == counts["other"]["read_entries"] == 0
        data_bytes = sum(map(len, numbers(0, COUNT)))
        for name in ("host", "region", "other"):
            assert counts[name]["sent_bytes"] > data_bytes
        assert counts["host"]["received_bytes"] > data_bytes
        assert traffic(client) == counts, "a look counts nothing"

        lines = client.pool.traffic.metric_lines()
        sent = counts["other"]["sent_bytes"]
        assert f'fastbk_client_sent_bytes_total{{distance="other"}} {sent}' in lines
        assert f'fastbk_client_read_entries_total{{distance="host"}} {COUNT}' in lines
        measured = collected(reader)
        assert measured["sent", "other"] == sent
        assert measured["read", "host"] == measured["stored", "region"] == COUNT
    assert collected(reader)["stored", "region"] == COUNT, "counters go on when a client is closed"


async def test_what_went_before_a_bookie_moved_stays_where_it_was_counted() -> None:
    async with fake_cluster(location="/eu/r1") as (client, _, store):
        change_rules(store, lambda rules: ClusterRules(rules.rule, PLACES))
        await written(client, numbers(0, COUNT))
        assert traffic(client)["other"]["stored_copies"] == COUNT
        client.pool.known.take_places(ClusterPlaces(ClusterRules(locations={"*": "/eu/r2"})))
        assert traffic(client)["other"]["stored_copies"] == COUNT
        await written(client, numbers(0, COUNT))
        assert traffic(client)["region"]["stored_copies"] == COUNT + 3 * COUNT
