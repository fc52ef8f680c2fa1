"""The usage job through Spark, beside an independent count."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fastbk.sync
from fastbk.model.quorum import write_set
from fastbk.spark.jobs import usage
from fastbk.spark.jobs.usage import Usage
from fastbk.stream.policy import PolicyPatch
from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

APPENDED = {"shop/orders": 120, "shop/returns": 7, "billing/eu/invoices": 50}


def by_looking(client: fastbk.sync.Client) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Return bytes by stream ("": none), and bytes and entries by bookie, entry by entry of closed ledgers."""
    paths = {one.id: one.path for one in client.namespace("").streams(recursive=True)}
    of_streams: Counter[str] = Counter()
    of_bookies: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    for info in client.list_ledgers():
        metadata = info.metadata
        owner = metadata.custom.get("fastbk.stream", b"").decode()
        if not metadata.is_closed:
            continue
        of_streams[paths.get(owner, owner and "deleted")] += metadata.length
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.fragment_of(entry_id).ensemble
            for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                entries[ensemble[index]] += 1
                of_bookies[ensemble[index]] += metadata.length / (metadata.last_entry_id + 1)
    return of_streams, of_bookies, entries


def append_to_streams(client: fastbk.sync.Client, rng: random.Random) -> None:
    """Make what APPENDED says, in namespaces of different quorums."""
    shop, billing = client.namespace("shop"), client.namespace("billing/eu")
    shop.create(PolicyPatch(roll_bytes=10_000))
    client.namespace("billing").create()
    billing.create(PolicyPatch(ensemble=4, write_quorum=2, ack_quorum=2, roll_bytes=8_000))
    for path, count in APPENDED.items():
        stream = client.namespace(path.rpartition("/")[0]).stream(path.rpartition("/")[2])
        with stream.writer(create=True) as writer:
            for _ in range(count):
                writer.append(rng.randbytes(400))


def test_it_counts_what_is_there_and_what_has_changed(
    spark: SparkSession, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "RANGE_LEDGERS", 5)  # several tasks
    with LocalCluster(bookies=4) as cluster, fastbk.sync.connect(cluster.metadata_uri) as client:

        def run(to: str | None = None) -> Usage:
            return patiently(lambda: usage.run(spark, cluster.metadata_uri, to=to, top=2))

        nothing = run()
        assert (nothing.total.ledgers, nothing.namespaces, nothing.history) == (0, [], [])
        append_to_streams(client, rng)
        doomed = client.create_ledger(3, 3, 2)
        with client.create_ledger(3, 3, 3) as alone, doomed:
            for writer in (alone, doomed):
                for _ in range(10):
                    writer.append(b"x" * 1000)
            # A bookie of it goes, and another one takes its place.
            members = client.ledger_info(alone.ledger_id).metadata.fragments[-1].ensemble
            gone = next(at for at, one in enumerate(cluster.bookies) if one.name == members[0])
            cluster.kill(gone)
            for _ in range(10):
                alone.append(b"y" * 1000)
        client.delete_ledger(doomed.ledger_id)
        assert len(client.ledger_info(alone.ledger_id).metadata.fragments) > 1
        left_open = client.create_ledger(2, 2, 2)
        left_open.append(b"z" * 500)

        found = run(str(tmp_path))
        of_streams, of_bookies, entries = by_looking(client)
        infos = list(client.list_ledgers())
        assert found.total.bytes == sum(of_streams.values())
        assert (found.total.ledgers, found.total.open) == (len(infos), 1)
        assert {one.name: one.bytes for one in found.streams} == dict(
            Counter({name: size for name, size in of_streams.items() if name}).most_common(2)
        )
        largest = {one.name: one.bytes for one in found.namespaces}
        assert largest == {
            "shop": of_streams["shop/orders"] + of_streams["shop/returns"],
            "billing/eu": of_streams["billing/eu/invoices"],
        }
        assert of_streams["shop/orders"] > 120 * 400 and of_streams[""] == 20_000
        assert {one.name: one.entries for one in found.bookies} == dict(entries)
        for one in found.bookies:
            assert one.bytes == pytest.approx(of_bookies[one.name], abs=len(infos))
            assert sum(one.parts.values()) == one.bytes
        assert found.total.growth == {"day": found.total.bytes, "week": found.total.bytes}
        assert sum(found.history[-1][1].values()) == found.total.bytes

        left_open.close()
        client.namespace("shop").delete_stream("returns")
        again = run(str(tmp_path))
        assert again.is_by_snapshots and again.since == {"last": found.taken}
        assert again.total.growth["last"] == again.total.bytes - found.total.bytes
        of_streams = by_looking(client)[0]
        assert again.total.bytes == sum(of_streams.values())
        (before, then), (at, now) = again.history
        assert (before, at) == (found.taken, again.taken)
        assert then == {**largest, "(others)": 20_000}
        assert now == {
            "shop": of_streams["shop/orders"],
            "billing/eu": of_streams["billing/eu/invoices"],
            "(others)": 20_500 + of_streams["deleted"],
        }
