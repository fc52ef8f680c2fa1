"""Drafts: an attempt's ledgers are attached or deleted, never both, whoever is killed or slow. INV-S8, INV-S13."""

from __future__ import annotations

import asyncio
import itertools
import random
from array import array
from collections.abc import Awaitable, Callable

import pytest

from fastbk.errors import (
    ConfigError,
    Error,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    StreamBusy,
)
from fastbk.meta.records import Change
from fastbk.native.stream_codec import encode
from fastbk.stream.chain import RAW_BYTES_MAX, Chain, Contents, put_chain
from fastbk.stream.chain import attach as attached
from fastbk.stream.deletion import delete_stream
from fastbk.stream.drafts import Draft, attach_drafts, begin, drafts_of, draw_ledger, give_up
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_kills import run_and_kill
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan, RandomPlan
from tests.fixtures.fake_streams import (
    as_client,
    chain_of,
    context_of,
    mark_deleted,
    named_ledgers,
    new_stream,
)
from tests.unit.stream.test_writer import payloads_of

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
            cluster = Cluster()
            await new_stream(cluster)
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
            cluster = Cluster()
            await new_stream(cluster)

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
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)
    client = cluster.client()
    writer = StreamWriter(context_of(cluster.client()), WriterOptions())
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
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)
    await attempt(cluster.client(), 0, b"a", b"b")
    await mark_deleted(cluster)
    await delete_stream(as_client(cluster.client()), "ab")
    assert not cluster.ledgers
    assert [path for path in cluster.records.values if "drafts" in path] == []


async def test_the_janitor_gives_up_what_nobody_attached_in_a_week(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    await new_stream(cluster)
    await attempt(cluster.client(), 0, b"a")
    janitor = Janitor(as_client(cluster.client()), JanitorOptions(thorough_every=1))
    await janitor.pass_once()
    assert len(await drafts_of(as_client(cluster.client()), "ab")) == 1
    monkeypatch.setattr("fastbk.stream.janitor.KEPT_S", -1.0)
    await janitor.pass_once()
    await check_nothing_is_left(cluster)
