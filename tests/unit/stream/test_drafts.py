"""Drafts: an attempt's ledgers are attached or deleted, never both, whoever is killed or slow. INV-S8, INV-S13."""

from __future__ import annotations

import asyncio
import itertools
import random
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fastbk.errors import (
    ConfigError,
    Error,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    StorageError,
    StreamBusy,
    WriterFenced,
)
from fastbk.native.stream_codec import encode
from fastbk.stream.chain import (
    RAW_BYTES_MAX,
    Chain,
    Contents,
    Segment,
    add_segment,
    close_segment,
    put_chain,
    reserve,
)
from fastbk.stream.chain import attach as attached
from fastbk.stream.deletion import delete_stream
from fastbk.stream.drafts import (
    Draft,
    attach,
    attach_drafts,
    begin,
    drafts_of,
    draw_ledger,
    give_up,
)
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_kills import run_and_kill
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan, RandomPlan
from tests.fixtures.streams import (
    as_client,
    chain_of,
    cluster_with_stream,
    context_of,
    mark_deleted,
    named_ledgers,
    writer_of,
)
from tests.unit.stream.test_stream_writer import payloads_of
from tests.unit.stream.test_writer_engine import Harness

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastbk.meta.records import Change

KEY = "spark/a query"


async def attempt(client: FakeClient, number: int, *payloads: bytes, label: str = "0.0") -> Draft:
    """Write a draft with one ledger of one record for each payload, all closed."""
    context = context_of(client)
    draft = await begin(context, KEY, number, label)
    assert draft is not None
    for payload in payloads:
        ledger_id, draft = await draw_ledger(as_client(client), draft)
        custom = {"fastbk.stream": b"ab"}
        ledger = await client.create_ledger(ledger_id=ledger_id, metadata=custom)
        await ledger.append(encode(0, 0, 1000, [payload], array("q", [1])))
        await ledger.close()
    return draft


async def commit(client: FakeClient, number: int, names: list[str]) -> None:
    """Do what a driver does: attach the winners, give up what else there is of this number."""
    context = context_of(client)
    by_name = {draft.name: draft for draft in await drafts_of(as_client(client), "ab")}
    if (await context.store.read()).chain.attached_number(KEY) < number:
        await attach_drafts(context, [by_name[name] for name in names], number)
    left = await drafts_of(as_client(client), "ab")
    await give_up(as_client(client), [one for one in left if one.number <= number])


async def values_of(cluster: Cluster) -> list[bytes]:
    return [payload for _, _, payload in await payloads_of(cluster)]


async def check_nothing_is_left(cluster: Cluster) -> None:
    assert await drafts_of(as_client(cluster.client()), "ab") == []
    assert set(cluster.ledgers) == await named_ledgers(cluster)


async def test_a_driver_killed_at_any_step_of_the_commit_is_repeated_by_the_next_one() -> None:
    for number in itertools.count():
        killed = False
        for is_after in (False, True):
            cluster, _ = await cluster_with_stream()
            first = await attempt(cluster.client(), 0, b"a", b"b")
            second = await attempt(cluster.client(), 0, b"c", label="1.1")
            await attempt(cluster.client(), 0, b"lost", label="1.0")
            names = [first.name, second.name]

            async def work(client: FakeClient, names: list[str] = names) -> None:
                await commit(client, 0, names)

            killed |= await run_and_kill(cluster, work, number, is_after=is_after)
            await commit(cluster.client(), 0, names)
            assert await values_of(cluster) == [b"a", b"b", b"c"]
            await check_nothing_is_left(cluster)
        if not killed:
            break
    assert number > 15


async def test_an_attempt_killed_at_any_step_leaves_nothing_once_its_number_is_swept() -> None:
    for number in itertools.count():
        killed = False
        for is_after in (False, True):
            cluster, _ = await cluster_with_stream()

            async def work(client: FakeClient) -> None:
                await attempt(client, 0, b"lost", b"lost too")

            killed |= await run_and_kill(cluster, work, number, is_after=is_after)
            good = await attempt(cluster.client(), 0, b"a")
            await commit(cluster.client(), 0, [good.name])
            assert await values_of(cluster) == [b"a"]
            await check_nothing_is_left(cluster)
        if not killed:
            break
    assert number > 8


async def test_who_was_given_up_neither_names_a_ledger_nor_makes_one_nor_writes_on() -> None:
    cluster, _ = await cluster_with_stream()
    zombie = cluster.client()
    begun = await begin(context_of(zombie), KEY, 0, "0.0")
    assert begun is not None
    one_id, draft = await draw_ledger(as_client(zombie), begun)
    ledger = await zombie.create_ledger(ledger_id=one_id)
    await ledger.append(encode(0, 0, 1000, [b"x"], array("q", [1])))
    two_id, draft = await draw_ledger(as_client(zombie), draft)
    await give_up(as_client(cluster.client()), [begun])
    await give_up(as_client(cluster.client()), [begun])
    with pytest.raises((LedgerFenced, NoSuchLedger)):
        await ledger.append(encode(0, 1, 1000, [b"y"], array("q", [2])))
    with pytest.raises(MetadataConflict):
        await zombie.create_ledger(ledger_id=two_id)
    with pytest.raises(MetadataConflict):
        await draw_ledger(as_client(zombie), draft)
    await check_nothing_is_left(cluster)


async def test_drafts_that_were_given_up_are_not_attached() -> None:
    cluster, _ = await cluster_with_stream()
    client = cluster.client()
    good, bad = await attempt(client, 0, b"a"), await attempt(client, 0, b"b")
    await give_up(as_client(client), [bad])
    with pytest.raises(Error):
        await attach_drafts(context_of(client), [good, bad], 0)
    assert await values_of(cluster) == []
    assert await attach_drafts(context_of(client), [good], 0)
    await give_up(as_client(client), [good])  # gone: it was attached, and what it named stays
    assert await values_of(cluster) == [b"a"]
    await check_nothing_is_left(cluster)


@pytest.mark.parametrize("seed", range(40))
async def test_of_attaching_and_giving_up_at_once_one_happens(seed: int) -> None:
    rng = random.Random(seed)
    cluster, _ = await cluster_with_stream()
    some = [await attempt(cluster.client(), 0, b"%d" % at, label=str(at)) for at in range(3)]
    cluster.plan = RandomPlan(rng, away=0.1, lost=0.1)

    async def patiently(work: Callable[[], Awaitable[object]]) -> None:
        for _ in range(200):
            try:
                await work()
            except MetadataUnavailable:
                continue
            except Error:
                pass
            return

    clients = [cluster.client() for _ in range(3)]
    await asyncio.gather(
        patiently(lambda: attach_drafts(context_of(clients[0]), some, 0)),
        patiently(lambda: attach_drafts(context_of(clients[1]), some, 0)),
        patiently(lambda: give_up(as_client(clients[2]), rng.sample(some, 2))),
    )
    cluster.plan = Plan()
    await give_up(as_client(clients[0]), await drafts_of(as_client(clients[0]), "ab"))
    assert await values_of(cluster) in ([], [b"0", b"1", b"2"])
    await check_nothing_is_left(cluster)


async def test_a_number_that_was_attached_begins_nothing() -> None:
    cluster, _ = await cluster_with_stream()
    client = cluster.client()
    draft = await attempt(client, 4, b"a")
    await attach_drafts(context_of(client), [draft], 4)
    assert await begin(context_of(client), KEY, 4) is None
    assert await begin(context_of(client), KEY, 3) is None
    assert await begin(context_of(client), KEY, 5) is not None


def test_keys_that_are_used_once_push_no_other_key_out() -> None:
    contents = Contents(1, 1, 1, 1, 1, DLSN(0, 0, 0), -1, 10)
    chain = attached(Chain("ab"), ((0, contents),), KEY, 7, 1)
    for at in range(300):
        chain = attached(chain, ((at + 1, contents),), f"once/{at}", 0, 1)
    assert chain.attached_number(KEY) == 7
    assert [chain.attached_number(f"once/{at}") for at in (299, 290, 100)] == [0, 0, -1]
    for at in range(300):
        chain = attached(chain, ((at + 400, contents),), f"job/{at}", 0, 1)
    assert chain.attached_number(KEY) == -1 and len(chain.attachments) == 256


async def test_a_stream_that_is_written_is_busy_unless_its_writer_is_to_be_fenced() -> None:
    cluster, _ = await cluster_with_stream()
    client = cluster.client()
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"own")
    draft = await attempt(client, 0, b"a")
    with pytest.raises(StreamBusy):
        await attach_drafts(context_of(client), [draft], 0, is_fencing=False)
    await writer.append(b"still open")
    await attach_drafts(context_of(client), [draft], 0)
    writer.abort()
    assert await values_of(cluster) == [b"own", b"still open", b"a"]
    draft = await attempt(client, 1, b"b")
    assert await attach_drafts(context_of(client), [draft], 1, is_fencing=False)
    assert (await values_of(cluster))[-1] == b"b"


@pytest.mark.slow
async def test_as_many_ledgers_as_can_be_attached_fit_into_one_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two thousand drafts of one ledger each, and a chain with all its rows: below what ZooKeeper takes."""
    cluster, _ = await cluster_with_stream()
    client = cluster.client()
    some = [await attempt(client, 0, b"%04d" % at, label=f"{at}.0") for at in range(2048)]
    assert len(await drafts_of(as_client(client), "ab")) == len(some)
    with pytest.raises(ConfigError, match="2048"):
        await attach_drafts(context_of(client), [*some, *some], 0)
    sizes: list[int] = []
    change = client.records.change

    async def measured(*changes: Change) -> list[int]:
        sizes.append(sum([len(one.path) + 100 + len(one.value or b"") for one in changes]))
        return await change(*changes)

    monkeypatch.setattr(client.records, "change", measured)
    await attach_drafts(context_of(client), some, 0)
    assert max(sizes) < 800_000
    chain = await chain_of(cluster)
    assert len(put_chain(chain)) < 200_000 < RAW_BYTES_MAX
    assert (chain.end_seq, len(chain.pages)) == (2048, 1)
    await check_nothing_is_left(cluster)


async def test_a_stream_that_is_deleted_takes_its_drafts_with_it() -> None:
    cluster, _ = await cluster_with_stream()
    await attempt(cluster.client(), 0, b"a", b"b")
    await mark_deleted(cluster)
    await delete_stream(as_client(cluster.client()), "ab")
    assert not cluster.ledgers
    assert [path for path in cluster.records.values if "drafts" in path] == []


async def test_the_janitor_gives_up_what_nobody_attached_in_a_week(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, _ = await cluster_with_stream()
    await attempt(cluster.client(), 0, b"a")
    janitor = Janitor(as_client(cluster.client()), JanitorOptions(thorough_every=1))
    await janitor.pass_once()
    assert len(await drafts_of(as_client(cluster.client()), "ab")) == 1
    monkeypatch.setattr("fastbk.stream.janitor.KEPT_S", -1.0)
    await janitor.pass_once()
    await check_nothing_is_left(cluster)


# Closed ledgers are attached by one change of the chain, once, whatever is lost. INV-S3, INV-S6,
# INV-S15.


async def ledger_of(harness: Harness, *entries: list[bytes], first_txid: int = 1) -> int:
    """Return a closed ledger with these entries' records."""
    ledger = await harness.cluster.client().create_ledger()
    records = 0
    for at, payloads in enumerate(entries):
        txids = array("q", range(first_txid + records, first_txid + records + len(payloads)))
        await ledger.append(encode(0, records, 1000 + at, payloads, txids, None, None))
        records += len(payloads)
    await ledger.close()
    return ledger.ledger_id


async def test_ledgers_follow_what_the_stream_has_and_a_repeat_does_nothing() -> None:
    harness = Harness()
    former = await harness.writer()
    await former.append(b"own", txid=70)
    one = await ledger_of(harness, [b"a", b"b"], [b"c"])
    two = await ledger_of(harness, [b"d"])
    context = harness.context()
    for _ in range(3):
        assert await attach(context, [one, two], "import", 0) == DLSN(3, 0, 0)
        assert await attach(context, [99, 98], "import", 0) == DLSN(3, 0, 0)
    chain = await harness.chain()
    assert [row.base_seq for row in chain.rows] == [0, 1, 4]
    with pytest.raises(WriterFenced):
        await former.append(b"fenced")
    async with StreamWriter(context, WriterOptions()) as later:
        assert later.last_txid == 74
        assert await later.append(b"own again") == DLSN(4, 0, 0)
    assert await payloads_of(harness.cluster) == [
        (0, 70, b"own"),
        (1, 71, b"a"),
        (2, 72, b"b"),
        (3, 73, b"c"),
        (4, 74, b"d"),
        (5, 75, b"own again"),
    ]
    custom = harness.cluster.ledger(one).metadata.custom
    assert custom["fastbk.stream"] == b"ab"
    assert custom["fastbk.namespace"] == b"test"


async def forget(harness: Harness, kept: int) -> None:
    """Take the chain back to its first segments, as a restored backup does."""
    context = harness.context()

    def older(chain: Chain) -> Chain:
        again = Chain("ab", epoch=chain.epoch, owner=chain.owner)
        for row in chain.rows[:kept]:
            held = Contents(
                row.records,
                row.first_txid,
                row.last_txid,
                row.first_time_us,
                row.last_time_us,
                DLSN(row.number, row.last_entry_id, 0),
                row.index_entry_id,
                row.size_bytes,
            )
            opened = add_segment(
                reserve(again, again.epoch, row.ledger_id), again.epoch, row.ledger_id, 0
            )
            again = close_segment(opened, row.ledger_id, held)
        return again

    await context.store.change(older)


@settings(max_examples=25, deadline=None)
@given(
    segments=st.lists(
        st.lists(st.integers(0, 1000), min_size=1, max_size=4), min_size=1, max_size=5
    ),
    kept=st.integers(0, 4),
    together=st.booleans(),
)
def test_segments_that_a_chain_has_lost_come_back_as_they_were(
    segments: list[list[int]], kept: int, together: bool
) -> None:
    """Positions, sequence numbers, transaction ids and times (INV-S15)."""

    async def run() -> None:
        harness, txid = Harness(), 0
        for steps in segments:
            writer = await harness.writer()
            for step in steps:
                txid += step
                await writer.append(b"%d" % txid, txid=txid)
            await writer.close()
        before, records = await harness.chain(), await payloads_of(harness.cluster)
        await forget(harness, kept)
        lost = [row.ledger_id for row in before.rows[kept:]]
        for number, ledger_ids in enumerate([lost] if together else [[one] for one in lost]):
            if ledger_ids:
                await attach(harness.context(), ledger_ids, "again", number)
        after = await harness.chain()
        assert [_facts(row) for row in after.rows] == [_facts(row) for row in before.rows]
        assert (after.last_txid, after.last_time_us, after.end_seq) == (
            before.last_txid,
            before.last_time_us,
            before.end_seq,
        )
        assert await payloads_of(harness.cluster) == records

    asyncio.run(run())


def _facts(row: Segment) -> Segment:
    return replace(row, epoch=0, created_us=0)


async def test_a_segment_that_is_older_than_the_streams_end_is_refused() -> None:
    harness = Harness()
    for txid in (5, 9):
        writer = await harness.writer()
        await writer.append(b"own", txid=txid)
        await writer.close()
    rows = (await harness.chain()).rows
    await forget(harness, 1)
    async with StreamWriter(harness.context(), WriterOptions()) as writer:
        await writer.append(b"later", txid=20)
    with pytest.raises(
        ConfigError, match=f"ledger {rows[1].ledger_id} begins with the transaction id 9"
    ):
        await attach(harness.context(), [rows[1].ledger_id], "again", 0)


async def test_an_answer_that_is_lost_attaches_once() -> None:
    harness = Harness()
    await (await harness.writer()).close()
    one = await ledger_of(harness, [b"a"])
    losses = 3

    def fails(what: str, is_after: bool) -> MetadataUnavailable | None:
        nonlocal losses
        if what == "metadata.change" and is_after and losses:
            losses -= 1
            return MetadataUnavailable("no answer")
        return None

    harness.plan.fails = fails
    for _ in range(10):
        try:
            await attach(harness.context(1.0), [one], "import", 5)
            break
        except MetadataUnavailable:
            await asyncio.sleep(0)
    assert not losses
    assert await harness.payloads() == [b"a"]


async def test_what_cannot_be_a_segment_is_refused_and_changes_nothing() -> None:
    harness = Harness()
    writer = await harness.writer()
    await writer.append(b"own")
    await writer.close()
    client, context = harness.cluster.client(), harness.context()
    (own,) = harness.cluster.ledgers
    still_open = await client.create_ledger()
    await still_open.append(b"x")
    other = await client.create_ledger()
    await other.append(
        b"no entry of a stream, but long enough to have the head of one in it, of 56 bytes"
    )
    await other.close()
    good = await ledger_of(harness, [b"a"])
    marked = await ledger_of(harness, [b"a"])
    await client.edit_metadata(marked, {"fastbk.stream": b"cd"})
    far = await ledger_of(harness, [b"a"], first_txid=2**62)
    for ledgers in (
        [],
        [good, good],
        [good, own],
        [good, still_open.ledger_id],
        [good, await ledger_of(harness)],
        [good, marked],
        [good, far],
    ):
        with pytest.raises(ConfigError):
            await attach(context, ledgers, "import", 0)
    with pytest.raises(StorageError):
        await attach(context, [good, other.ledger_id], "import", 0)
    with pytest.raises(ConfigError):
        await attach(context, [good], "import", -1)
    assert len((await harness.chain()).rows) == 1
    await attach(context, [good], "import", 0)
    assert await harness.payloads() == [b"own", b"a"]
