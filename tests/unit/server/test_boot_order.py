"""The order of start and stop, without processes: children are scripts of what they say."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from fastbk.formats import LEVEL_FIRST
from fastbk.native.segment import HEADER_KEY_BYTES
from fastbk.server.configuration.bookie_config import (
    BookieConfig,
    IndexConfig,
    JournalConfig,
    WorkerConfig,
)
from fastbk.server.configuration.settings import BookieSettings, JournalSettings, LedgerSettings
from fastbk.server.process_table import (
    GC,
    INDEX,
    JOURNAL,
    Process,
    children,
    index,
    journal,
    worker,
)
from fastbk.server.supervision import boot_order
from fastbk.server.supervision.boot_order import (
    BootOrder,
    ChildDied,
    ChildEvents,
    Event,
    Exited,
    Facts,
    Message,
    Stop,
    StopRequested,
)
from fastbk.server.supervision.spawn import Boot

REPLAYED = {
    "type": "replayed", "next_file_id": 4, "predecessor_file_id": 3, "predecessor_sequence": 77,
    "predecessor_crc": 5, "next_record_sequence": 900, "batches": 2, "old_files": [{"file_id": 3}],
}  # fmt: skip


class FakeChild:
    def __init__(self, harness: Harness, process: Process) -> None:
        self.descriptors = {"bell": 9}
        self._world = harness
        self._process = process

    def send(self, message: dict[str, Any]) -> bool:
        if self._world.refusals.get(self._process, 0) > 0:
            self._world.refusals[self._process] -= 1
            return False
        self._world.sent.append((self._process, message))
        self._world.react(self._process, message)
        return True


def names(role: str, pairs: int) -> tuple[str, ...]:
    return tuple(f"/{role}.{pair}" for pair in range(pairs))


class Harness:
    """Answers as well-behaved children do, unless a test says otherwise."""

    def __init__(self, workers: int = 2, *, pairs: int = 1, is_reads_only: bool = False) -> None:
        self.epoch = 12
        self.worker_count = workers
        self.pair_count = pairs
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.sent: list[tuple[Process, dict[str, Any]]] = []
        self.rung: list[Process] = []
        self.heard: list[tuple[Process, object]] = []
        self.silent: set[Process] = set()
        self.refusals: dict[Process, int] = {}
        """How many messages a child's socket has no room for, from now on."""
        self.left_open: list[Process] = []
        wanted = children(workers, pairs, is_reads_only=is_reads_only)
        self.children = {process: FakeChild(self, process) for process in wanted}

        self.reads_only_reason = "the journal dies" if is_reads_only else ""

    def ring(self, process: Process) -> None:
        self.rung.append(process)

    def unsealed(self) -> list[Process]:
        return self.left_open

    async def next(self, timeout_s: float | None = None) -> Event:
        async with asyncio.timeout(timeout_s):
            return await self.events.get()

    def say(self, process: Process, **body: Any) -> None:
        self.events.put_nowait(Message(process, body))

    def greet(self) -> None:
        for process in self.children:
            self.say(process, type="hello")

    def react(self, process: Process, message: dict[str, Any]) -> None:
        if process in self.silent:
            return
        match message["type"], process.role:
            case "configure", "index":
                self.say(process, **REPLAYED)
            case "configure", _:
                self.say(process, type="ready", backend="plain", sync_mode="x")
            case "start", _:
                self.say(process, type="ready")
            case "drain", _:
                self.say(process, type="drained")
                self.events.put_nowait(Exited(process, 0))

    def hear(self, process: Process, message: dict[str, Any]) -> None:
        self.heard.append((process, message["what"]))

    def sequence(self, **settings: int) -> BootOrder:
        config = BookieConfig(
            bookie=BookieSettings(**settings),
            journal=JournalSettings(directories=names("journal", self.pair_count)),
            ledgers=LedgerSettings(directories=names("ledgers", self.pair_count)),
        )
        facts = Facts(
            bookie_id="b1",
            incarnation=8,
            host="127.0.0.1",
            port=3181,
            shards=(0,) * 64,
            reads_only_reason=self.reads_only_reason,
        )
        asked = {"wanted": self.hear}
        return BootOrder(cast("Boot", self), cast("ChildEvents", self), config, facts, asked=asked)

    def order(self, kind: str) -> list[Process]:
        return [process for process, message in self.sent if message["type"] == kind]

    def config(self, process: Process) -> dict[str, Any]:
        (found,) = [m for p, m in self.sent if p == process and m["type"] == "configure"]
        assert found["epoch"] == 12
        assert found["descriptors"] == {"bell": 9}
        return cast("dict[str, Any]", found["config"])


async def test_workers_listen_only_when_journal_and_index_are_ready() -> None:
    harness = Harness()
    harness.greet()
    (replayed,) = await harness.sequence().start()
    assert replayed.predecessor_sequence == 77
    order = harness.order("configure")
    assert set(order) == set(harness.children)
    assert order.index(INDEX) < order.index(JOURNAL) < order.index(worker(0))
    start = harness.sent.index((INDEX, {"type": "start"}))
    assert harness.sent.index((JOURNAL, next(m for p, m in harness.sent if p == JOURNAL))) < start
    assert all(harness.sent.index(one) > start for one in harness.sent if one[0].role == "worker")
    assert INDEX in harness.rung


async def test_each_child_gets_its_own_part_and_what_replay_found() -> None:
    harness = Harness()
    harness.greet()
    sequence = harness.sequence()
    await sequence.start()
    journal = msgspec.convert(harness.config(JOURNAL), JournalConfig)
    assert (journal.replayed.next_file_id, journal.replayed.predecessor_crc) == (4, 5)
    assert (journal.bookie_id, journal.incarnation, journal.worker_count) == ("b1", 8, 2)
    index = msgspec.convert(harness.config(INDEX), IndexConfig)
    assert index.journal_limit_bytes == BookieConfig().journal.limit_bytes
    assert msgspec.convert(harness.config(worker(1)), WorkerConfig).port == 3181
    assert "uri" not in str(harness.config(JOURNAL))
    assert sequence.properties == {"journal_backend": "plain", "journal_sync_mode": "x"}


async def test_pairs_start_side_by_side_and_workers_after_all_of_them() -> None:
    """A19: each journal follows its own index, whatever the others do; INV-D3: all hear of one shard map."""
    harness = Harness(pairs=3)
    harness.silent = {journal(1)}
    harness.greet()
    sequence = harness.sequence()
    start = asyncio.create_task(sequence.start())
    others = {journal(0), journal(2), index(0), index(1), index(2), GC}
    async with asyncio.timeout(5):
        while (
            not others <= set(harness.order("configure"))
            or (index(2), {"type": "start"}) not in harness.sent
        ):
            await asyncio.sleep(0)
    assert (index(1), {"type": "start"}) not in harness.sent
    assert not [process for process in harness.order("configure") if process.role == "worker"]
    harness.say(journal(1), type="ready", backend="io_uring", sync_mode="y")
    async with asyncio.timeout(5):
        assert len(await start) == 3
    assert sequence.properties["journal_backend"] == "io_uring,plain"
    second = msgspec.convert(harness.config(journal(1)), JournalConfig)
    assert (second.pair, second.settings.all_directories) == (1, ("/journal.1",))
    last = msgspec.convert(harness.config(index(2)), IndexConfig)
    assert (last.pair, last.settings.directory, last.journal_directory) == (
        2,
        "/ledgers.2",
        "/journal.2",
    )
    served = msgspec.convert(harness.config(worker(0)), WorkerConfig)
    assert (served.pair_count, served.shards) == (3, last.shards)


@pytest.mark.parametrize("pairs", [1, 3])
async def test_a_boot_that_serves_reads_only_has_no_journal_and_no_gc(pairs: int) -> None:
    """A13: an index starts once it has replayed, and workers know that nothing can be written."""
    harness = Harness(pairs=pairs, is_reads_only=True)
    indexes = [index(pair) for pair in range(pairs)]
    assert not {JOURNAL, GC} & harness.children.keys()
    harness.greet()
    sequence = harness.sequence()
    await sequence.start()
    assert harness.order("configure") == [*indexes, worker(0), worker(1)]
    assert harness.order("start") == indexes
    for n in range(2):
        config = msgspec.convert(harness.config(worker(n)), WorkerConfig)
        assert config.reads_only_reason == "the journal dies"
    assert await sequence.drain()
    assert harness.order("drain") == [worker(0), worker(1), *indexes]


async def test_hellos_in_any_order_make_the_same_start() -> None:
    harness = Harness(workers=8)
    for process in reversed(list(harness.children)):
        harness.say(process, type="hello")
    await harness.sequence().start()
    configured = [process for process in harness.order("configure") if process.role == "worker"]
    assert configured == [worker(n) for n in range(8)]
    late = Harness()
    late.say(INDEX, type="hello")
    late.say(GC, type="hello")
    started = asyncio.create_task(late.sequence().start())
    while not late.events.empty():
        await asyncio.sleep(0)
    for process in (worker(1), worker(0), JOURNAL):
        late.say(process, type="hello")
    await started


async def test_a_child_that_fails_to_start_is_named_with_its_reason() -> None:
    harness = Harness()
    harness.silent = {INDEX}
    harness.greet()
    harness.say(INDEX, type="failed", reason="manifest: both slots are bad")
    harness.events.put_nowait(Exited(INDEX, 1))
    with pytest.raises(ChildDied, match="index: manifest: both slots are bad"):
        await harness.sequence().start()


@pytest.mark.parametrize(("code", "text"), [(-9, "killed by signal 9"), (1, "ended with code 1")])
async def test_a_child_that_says_nothing_is_named_with_how_it_ended(code: int, text: str) -> None:
    harness = Harness()
    harness.events.put_nowait(Exited(worker(1), code))
    with pytest.raises(ChildDied, match=f"worker.1: {text}"):
        await harness.sequence().start()


async def test_a_start_that_takes_too_long_names_who_is_late() -> None:
    harness = Harness()
    harness.silent = {JOURNAL}
    harness.greet()
    with pytest.raises(ChildDied, match=r"waiting for worker\.0, worker\.1, journal, index"):
        await harness.sequence(start_timeout_ms=30).start()


async def test_a_stop_while_it_starts_ends_the_start() -> None:
    harness = Harness()
    harness.events.put_nowait(Stop("SIGTERM"))
    with pytest.raises(StopRequested):
        await harness.sequence().start()


async def test_a_drain_goes_role_by_role() -> None:
    harness = Harness()
    assert await harness.sequence().drain()
    assert harness.order("drain") == [worker(0), worker(1), JOURNAL, INDEX, GC]
    assert harness.rung == [worker(0), worker(1), JOURNAL, INDEX, GC]


async def test_a_drain_that_hangs_or_breaks_is_cut_short() -> None:
    hanging = Harness()
    hanging.silent = {JOURNAL}
    assert not await hanging.sequence(drain_timeout_ms=30).drain()
    assert INDEX not in hanging.order("drain")
    broken = Harness()
    broken.events.put_nowait(Exited(INDEX, -6))
    assert not await broken.sequence().drain()


async def test_a_drain_is_clean_whatever_becomes_of_gc() -> None:
    """It keeps nothing: journals and indexes have written all down, and that is what the next start goes by."""
    busy = Harness()
    busy.silent = {GC}  # it waits for metadata
    assert await busy.sequence(drain_timeout_ms=30).drain()
    assert busy.order("drain") == [worker(0), worker(1), JOURNAL, INDEX, GC]
    dead = Harness()
    dead.events.put_nowait(Exited(GC, -9))
    assert await dead.sequence().drain()
    assert dead.order("drain") == [worker(0), worker(1), JOURNAL, INDEX]


async def test_serving_ends_with_a_stop_or_a_death() -> None:
    harness = Harness()
    harness.say(JOURNAL, type="note")
    harness.events.put_nowait(Stop("SIGINT"))
    assert (await harness.sequence().serve()).reason == "SIGINT"
    harness.say(JOURNAL, type="failed", reason="a write failed: EIO")
    harness.events.put_nowait(Exited(JOURNAL, 1))
    with pytest.raises(ChildDied, match="journal: a write failed: EIO"):
        await harness.sequence().serve()


async def test_what_a_child_asks_is_passed_on_with_its_name() -> None:
    harness = Harness()
    harness.say(worker(1), type="wanted", what=1)
    harness.greet()
    sequence = harness.sequence()
    await sequence.start()
    harness.say(INDEX, type="wanted", what=2)
    harness.events.put_nowait(Stop("enough"))
    await sequence.serve()
    assert harness.heard == [(worker(1), 1), (INDEX, 2)]


async def test_what_an_index_says_of_journal_files_goes_to_its_own_journal() -> None:
    """INV-J3. One that is gone starts again with all others, and then it is known anew."""
    harness = Harness(pairs=2)
    harness.greet()
    sequence = harness.sequence()
    await sequence.start()
    harness.say(index(1), type="journal_files_free", file_ids=[4, 7])
    harness.say(worker(0), type="journal_files_free", file_ids=[5])
    harness.events.put_nowait(Stop("enough"))
    await sequence.serve()
    said = [one for one in harness.sent if one[1]["type"] == "journal_files_free"]
    assert said == [(journal(1), {"type": "journal_files_free", "file_ids": [4, 7]})]
    assert harness.rung[-1] == journal(1)
    assert await sequence.drain()
    harness.say(index(1), type="journal_files_free", file_ids=[8])
    harness.events.put_nowait(Stop("enough"))
    del harness.children[journal(1)]
    await sequence.serve()


async def test_what_a_journal_has_no_room_for_is_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of files may be free at once, and the journal looks at its socket between batches."""
    monkeypatch.setattr(boot_order, "RESEND_S", 0.001)
    harness = Harness(pairs=2)
    harness.greet()
    sequence = harness.sequence()
    await sequence.start()
    harness.refusals[journal(1)] = 3
    for file_id in (4, 5, 6):
        harness.say(index(1), type="journal_files_free", file_ids=[file_id])
    serving = asyncio.create_task(sequence.serve())

    def told() -> list[int]:
        said = [body for _, body in harness.sent if body["type"] == "journal_files_free"]
        return [file_id for body in said for file_id in body["file_ids"]]

    async with asyncio.timeout(10):
        while len(told()) < 3:
            await asyncio.sleep(0)
    assert told() == [4, 5, 6]
    harness.events.put_nowait(Stop("enough"))
    await serving


async def test_a_drain_that_finds_the_socket_full_is_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boot_order, "RESEND_S", 0.001)
    harness = Harness()
    harness.greet()
    sequence = harness.sequence()
    await sequence.start()
    harness.refusals[JOURNAL] = 20
    harness.say(INDEX, type="journal_files_free", file_ids=[4])
    harness.events.put_nowait(Stop("enough"))
    await sequence.serve()
    assert await sequence.drain()
    assert JOURNAL in harness.order("drain")
    assert "journal_files_free" not in {body["type"] for _, body in harness.sent}


async def test_a_journal_gets_what_decides_whether_its_files_adopt() -> None:
    harness = Harness()
    harness.greet()
    await harness.sequence().start()
    config = harness.config(JOURNAL)
    assert (config["adopt"], config["format_level"]) == ("auto", LEVEL_FIRST)
    assert not config["is_on_ledger_disk"], "neither directory is there"


async def test_a_pairs_journal_and_index_share_a_key_that_no_worker_has() -> None:
    harness = Harness(pairs=2)
    harness.greet()
    await harness.sequence().start()
    keys = [harness.config(journal(pair))["header_key"] for pair in range(2)]
    assert keys == [harness.config(index(pair))["header_key"] for pair in range(2)]
    assert len(set(keys)) == 2
    assert all(len(bytes.fromhex(key)) == HEADER_KEY_BYTES for key in keys)
    assert not any(key in str(harness.config(worker(0))) for key in keys)


async def test_memory_that_cannot_be_sealed_is_logged_before_workers_are_configured(
    capfd: pytest.CaptureFixture[str],
) -> None:
    harness = Harness()
    harness.left_open = [JOURNAL]
    harness.greet()
    await harness.sequence().start()
    assert capfd.readouterr().err.count("bookie.memory_not_sealed") == 1
