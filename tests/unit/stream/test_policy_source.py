"""The policy in force: what held last goes on while metadata is away, or policies do not go together."""

from __future__ import annotations

import random

import pytest

from fastbk.errors import MetadataUnavailable, PolicyInvalid, StreamNotFound
from fastbk.meta.records import Change
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.tree import StreamRecord, put
from fastbk.stream.paths import stream_path
from fastbk.stream.policy import PolicyPatch
from tests.fixtures.fake_ledgers import Cluster, Plan, RandomPlan


async def test_the_last_policy_holds_until_another_one_can() -> None:
    cluster = Cluster()
    space = Namespace(Catalog(cluster.client()), "a")  # type: ignore[arg-type]
    await space.create()
    stream = await space.create_stream("s", PolicyPatch(ensemble=4))
    late = (await space.stream("s").context()).policy
    policy = (await stream.context()).policy
    assert (await policy()).ensemble == 4

    cluster.plan = RandomPlan(random.Random(1), away=1.0)
    assert (await policy()).ensemble == 4
    with pytest.raises(MetadataUnavailable):
        await late()

    cluster.plan = Plan()
    where = stream_path((await stream.context()).stream_id)
    found = await cluster.client().records.read(where)
    assert found is not None
    # As two who change policies at the same moment may leave it: each alone would have been allowed.
    record = StreamRecord("x", "s", PolicyPatch(ensemble=1, write_quorum=2))
    (version,) = await cluster.client().records.change(Change(where, put(record), found.version))
    assert (await policy()).ensemble == 4
    with pytest.raises(PolicyInvalid):
        await late()

    record = StreamRecord("x", "s", PolicyPatch(ensemble=6))
    await cluster.client().records.change(Change(where, put(record), version))
    assert (await policy()).ensemble == (await late()).ensemble == 6
    await space.delete_stream("s")
    with pytest.raises(StreamNotFound):
        await policy()


async def test_an_outage_is_told_once_however_often_the_policy_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    space = Namespace(Catalog(cluster.client()), "a")  # type: ignore[arg-type]
    await space.create()
    policy = (await (await space.create_stream("s")).context()).policy
    await policy()
    for _ in range(2):
        cluster.plan = RandomPlan(random.Random(1), away=1.0)
        for _ in range(10):
            await policy()
        cluster.plan = Plan()
        await policy()
    told = [line for line in caplog.messages if "policy_kept" in line]
    assert len(told) == 2
