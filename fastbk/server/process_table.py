"""The table of a bookie: its processes, shared segments, rings, bells, and who gets which
descriptor.

A bookie has one journal and one index for each pair of directories; workers reach all of them,
by a segment each for every pair, so that a pair sees nothing of the others.

Everything that starts or connects processes reads this file; nothing else knows who talks to whom.
The picture in ARCHITECTURE.md shows the same set. Memory is a table too: start-up adds it up
and refuses what is above the total.

Decision 47.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from fastbk.server.configuration import bookie_config
from fastbk.units import MIB

if TYPE_CHECKING:
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.configuration.settings import LimitSettings

Role = Literal["supervisor", "worker", "journal", "index", "gc"]

MODULES: dict[Role, str] = {
    "worker": "fastbk.server.network.process",
    "journal": "fastbk.server.journal.process",
    "index": "fastbk.server.index.process",
    "gc": "fastbk.gc.process",
}
"""What `python -m` runs for each child."""

DRAIN_ORDER: tuple[Role, ...] = ("worker", "journal", "index", "gc")
"""Each role is drained only when all of the role before it are gone: nothing is taken in behind
their backs.
"""


class Process(msgspec.Struct, frozen=True):
    """One process of a bookie. `index`: the number of a worker, or of a journal's or index's pair."""

    role: Role
    index: int = 0

    @property
    def name(self) -> str:
        """How logs, metrics and messages call it: the journal and index of the first pair have no number."""
        return f"{self.role}.{self.index}" if self.role == "worker" or self.index else self.role


class Segment(msgspec.Struct, frozen=True):
    """The shared memory of `owner`, which alone writes it (INV-R1); of a worker, its part for `pair`."""

    owner: Process
    writable: bool
    pair: int = 0


class Bell(msgspec.Struct, frozen=True):
    """The eventfd on which `sleeper` waits. The journal's blocks: it is read through io_uring."""

    sleeper: Process

    @property
    def blocking(self) -> bool:
        """Whether reading it waits. Writers never wait: a counter does not get near its limit."""
        return self.sleeper.role == "journal"


class Listener(msgspec.Struct, frozen=True):
    """The bound, not yet listening socket of a worker."""

    worker: int


class States(msgspec.Struct, frozen=True):
    """The memory file in which the index of a pair hands all ledger states to its journal."""

    writable: bool
    pair: int = 0


class Lock(msgspec.Struct, frozen=True):
    """The lock of a pair's journal or ledger directory: kept open, never used. See `directories`."""

    directory: Literal["journal", "ledgers"]
    pair: int = 0

    @property
    def role(self) -> Literal["journal", "ledger"]:
        """What the directory is for, as in its identity."""
        return "journal" if self.directory == "journal" else "ledger"


class GcPair(msgspec.Struct, frozen=True):
    """One end of the socket pair between gc and the index of a pair."""

    end: int
    pair: int = 0


DescriptorSource = Segment | Bell | Listener | States | Lock | GcPair

JOURNAL = Process("journal")
INDEX = Process("index")
"""Those of the first pair, which every bookie has."""
GC = Process("gc")
SUPERVISOR = Process("supervisor")


def worker(index: int) -> Process:
    """Return network worker `index`."""
    return Process("worker", index)


def journal(pair: int) -> Process:
    """Return the journal of `pair`."""
    return Process("journal", pair)


def index(pair: int) -> Process:
    """Return the index of `pair`."""
    return Process("index", pair)


def children(
    worker_count: int, pair_count: int = 1, *, is_reads_only: bool = False
) -> list[Process]:
    """Return all processes that a supervisor starts, in drain order.

    `is_reads_only`: what is left of them after a crash loop: nobody that writes the journal, and
    nobody that asks for deletions.
    """
    writers = [] if is_reads_only else [journal(pair) for pair in range(pair_count)]
    collectors = [] if is_reads_only else [GC]
    indexes = [index(pair) for pair in range(pair_count)]
    return [*(worker(w) for w in range(worker_count)), *writers, *indexes, *collectors]


def segments(worker_count: int, pair_count: int = 1) -> list[Segment]:
    """Return all shared memory of a boot: one segment a process, but of a worker one for each pair."""
    return [
        Segment(process, writable=True, pair=pair)
        for process in children(worker_count, pair_count)
        for pair in (range(pair_count) if process.role == "worker" else [_pair_of(process)])
    ]


def _pair_of(process: Process) -> int:
    return process.index if process.role in ("journal", "index") else 0


def descriptors(
    process: Process, worker_count: int, pair_count: int = 1
) -> dict[str, DescriptorSource]:
    """Return what `process` is handed, by the names that it knows them by."""
    if process.role == "worker":
        return _worker_descriptors(process, pair_count)
    pair = _pair_of(process)
    own: dict[str, DescriptorSource] = {"segment": Segment(process, writable=True, pair=pair)}
    if process.role == "gc":
        return {**own, **{f"index.{p}": GcPair(0, p) for p in range(pair_count)}}
    own["bell"] = Bell(process)
    for w in range(worker_count):
        own[f"worker_bell.{w}"] = Bell(worker(w))
        own[f"worker_segment.{w}"] = Segment(worker(w), writable=False, pair=pair)
    if process.role == "journal":
        return {
            **own,
            "index_bell": Bell(index(pair)),
            "index_segment": Segment(index(pair), writable=False, pair=pair),
            "states": States(writable=False, pair=pair),
            "lock": Lock("journal", pair),
        }
    return {
        **own,
        "journal_bell": Bell(journal(pair)),
        "journal_segment": Segment(journal(pair), writable=False, pair=pair),
        "states": States(writable=True, pair=pair),
        "lock": Lock("ledgers", pair),
        "gc": GcPair(1, pair),
    }


def _worker_descriptors(process: Process, pair_count: int) -> dict[str, DescriptorSource]:
    found: dict[str, DescriptorSource] = {
        "listener": Listener(process.index),
        "bell": Bell(process),
    }
    for pair in range(pair_count):
        found |= {
            f"segment.{pair}": Segment(process, writable=True, pair=pair),
            f"journal_bell.{pair}": Bell(journal(pair)),
            f"index_bell.{pair}": Bell(index(pair)),
            f"journal_segment.{pair}": Segment(journal(pair), writable=False, pair=pair),
            f"index_segment.{pair}": Segment(index(pair), writable=False, pair=pair),
        }
    return found


def ring_sizes(process: Process, config: BookieConfig) -> list[int]:
    """Return the sizes of the rings behind the control pages of one of `process`'s segments, in bytes.

    A worker: add ring, request ring. The index: one reply ring, repeated for each worker. The journal: what the index
    reads of batches with runs.
    """
    add, request, reply = bookie_config.ring_sizes(config.limits, bookie_config.pair_count(config))
    if process.role == "worker":
        return [add, request]
    if process.role == "index":
        return [reply]
    tail_bytes = tail_size_bytes(config)
    return [tail_bytes] if process.role == "journal" and tail_bytes else []


def worker_count(config: BookieConfig) -> int:
    """Return how many workers the configuration asks for: one on up to four cores, else a quarter."""
    if config.bookie.workers:
        return config.bookie.workers
    return max(1, min(16, len(os.sched_getaffinity(0)) // 4))


PAGE_BYTES = 4096
SMALLEST_ENTRY_BYTES = 36
"""Bytes of the smallest entry in a frame of AddBatch: its header, a byte of data, its size."""
CACHE_ITEM_BYTES = 56
"""What an entry costs the write cache beside its bytes, at most (fbk_record_cost)."""


CACHE_SPARE_PART = 8
"""An eighth of what a write cache takes is its memory's spare part (FBK_CACHE_SPARE)."""


BACKGROUND_BYTES = 8 * MIB
"""A merge's buffers. While a compaction runs it has 80 MiB more at most: a window of 32, the runs before and behind."""


def write_cache_sizes(wanted_bytes: int, limits: LimitSettings, workers: int) -> tuple[int, int]:
    """Return how much a write cache of `wanted_bytes` of memory takes, and how much of that is the reserve.

    The reserve is what recovery adds and fences may take when normal adds have used up their credit: room
    for the largest frames, and for the end of a cache that the next batch does not fit into. Beside it each worker's
    share of the credit has to hold its largest add, or that one would wait for ever: with many workers the cache
    is made larger than `wanted_bytes`. A ninth of the memory is for chunks that are not full yet (FBK_CACHE_SPARE).
    """
    frame_bytes = limits.frame_size_bytes_max
    entries = min(limits.batch_entries_max, frame_bytes // SMALLEST_ENTRY_BYTES)
    shares_bytes = workers * (frame_bytes + entries * CACHE_ITEM_BYTES)
    reserve_bytes = 2 * frame_bytes + 2 * MIB
    least_bytes = shares_bytes + min(reserve_bytes, shares_bytes)
    takes_bytes = -(-wanted_bytes * CACHE_SPARE_PART // (CACHE_SPARE_PART + 1))
    cache_bytes = -(-max(takes_bytes, least_bytes) // PAGE_BYTES) * PAGE_BYTES
    return cache_bytes, min(reserve_bytes, cache_bytes // 2)


class Budget(msgspec.Struct, frozen=True):
    """One line of the memory table: `what` may take `size_bytes` of `role`'s or shared memory."""

    role: Role
    what: str
    size_bytes: int


INTERPRETER_BYTES: dict[Role, int] = {
    "supervisor": 20 * MIB,
    "worker": 16 * MIB,
    "journal": 12 * MIB,
    "index": 12 * MIB,
    "gc": 12 * MIB,
}
"""What each process takes before any work, as a share (PSS): code that all of them map counts once.
"""

GC_BYTES_A_LEDGER = 16
"""While gc compares the local ledgers with what metadata lists: an id twice."""

CONTROL_BYTES = 2 * MIB
"""Control pages of a segment with counters, descriptors and exceptions; the largest is the
journal's.
"""

READER_BUFFER_BYTES = 1 * MIB
"""What a reader thread reads ahead in one go."""

LEDGERS_EXPECTED = 10_000
LEDGER_STATE_BYTES = 82
"""A ledger's state with its share of the hash index, at most; once in the journal and once in the index."""

APACHE_DIGEST_BYTES = 16
"""What a worker remembers of the digest of a ledger, of those that are expected."""

APACHE_REQUEST_BYTES = 112
"""What a worker remembers of an unanswered request in Apache's protocols; of these, too, the table counts a quarter."""

PARTIAL_FRAMES_SHARE = 4
"""Partial frames are few unless someone is slow on purpose: the table counts a quarter of their
bound, the rest is what an attack may take on top."""


TAIL_BATCHES_MIN = 4
"""What is filled, what is flushed, and the batches under way have to fit into a journal's ring."""


def tail_size_bytes(config: BookieConfig) -> int:
    """Return the size of a journal's ring for batches with runs; 0: no room within `[bookie] memory_total`, no runs.

    It takes the part of a write cache for entries that stay where the journal wrote them.
    """
    count = bookie_config.pair_count(config)
    batch_bytes = config.journal.batch_size_bytes_max + config.limits.frame_size_bytes_max
    least_bytes = TAIL_BATCHES_MIN * batch_bytes
    cache_bytes = bookie_config.ledger_settings(config, 0).write_cache_size_bytes
    size_bytes = 1 << (max(cache_bytes, least_bytes) - 1).bit_length()
    others_bytes = sum(budget.size_bytes for budget in _others(config))
    while size_bytes >= least_bytes:
        if others_bytes + count * size_bytes <= memory_total_bytes(config):
            return size_bytes
        size_bytes //= 2
    return 0


def memory_table(config: BookieConfig) -> list[Budget]:
    """Return every budget of the bookie; their sum has to stay within `[bookie] memory_total`."""
    tail_bytes = tail_size_bytes(config)
    tails = [
        Budget("journal", f"pair {pair}: newest batches with runs", tail_bytes)
        for pair in range(bookie_config.pair_count(config) if tail_bytes else 0)
    ]
    return [*_others(config), *tails]


def _others(config: BookieConfig) -> list[Budget]:
    """Return the budgets of all but journals' rings."""
    count = bookie_config.pair_count(config)
    table = [
        Budget("supervisor", "interpreter", INTERPRETER_BYTES["supervisor"]),
        Budget("gc", "interpreter", INTERPRETER_BYTES["gc"]),
        Budget("gc", "ids of ledgers", config.limits.ledgers_max * GC_BYTES_A_LEDGER),
    ]
    for pair in range(count):
        table += _pair_table(config, pair, f"pair {pair}: " if count > 1 else "")
    rings = bookie_config.ring_sizes(config.limits, count)
    add_bytes, request_bytes, reply_bytes = (count * ring_bytes for ring_bytes in rings)
    for w in range(worker_count(config)):
        name = f"worker {w}: "
        table += [
            Budget("worker", name + "interpreter", INTERPRETER_BYTES["worker"]),
            Budget("worker", name + "add ring", add_bytes),
            Budget("worker", name + "request ring", request_bytes),
            Budget("index", name + "reply ring", reply_bytes),
            Budget(
                "worker",
                name + "partial frames",
                config.network.partial_frames_bytes_max // PARTIAL_FRAMES_SHARE,
            ),
            Budget("worker", name + "control pages", CONTROL_BYTES),
            Budget(
                "worker",
                name + "requests of Apache's clients",
                config.network.apache_requests_max * APACHE_REQUEST_BYTES // PARTIAL_FRAMES_SHARE,
            ),
            Budget(
                "worker",
                name + "digests of Apache's ledgers",
                min(LEDGERS_EXPECTED, config.network.apache_digests_max) * APACHE_DIGEST_BYTES,
            ),
        ]
    return table


def _pair_table(config: BookieConfig, pair: int, name: str) -> list[Budget]:
    """Return the budgets of one journal and its index, which are called `name`."""
    limits, ledgers = config.limits, bookie_config.ledger_settings(config, pair)
    batch_bytes = config.journal.batch_size_bytes_max + limits.frame_size_bytes_max
    ledgers_expected = min(LEDGERS_EXPECTED, limits.ledgers_max) // bookie_config.pair_count(config)
    states_bytes = ledgers_expected * LEDGER_STATE_BYTES
    cache_bytes, _ = write_cache_sizes(ledgers.write_cache_size_bytes, limits, worker_count(config))
    return [
        Budget("journal", name + "interpreter", INTERPRETER_BYTES["journal"]),
        Budget("index", name + "interpreter", INTERPRETER_BYTES["index"]),
        Budget("journal", name + "batch buffers", 2 * batch_bytes),
        Budget("journal", name + "ledger states", states_bytes),
        Budget("journal", name + "control pages", CONTROL_BYTES),
        Budget("index", name + "write caches", 2 * (cache_bytes + cache_bytes // CACHE_SPARE_PART)),
        Budget("index", name + "read cache", ledgers.read_cache_size_bytes),
        Budget("index", name + "block cache", ledgers.block_cache_size_bytes),
        Budget("index", name + "reader buffers", ledgers.readers * READER_BUFFER_BYTES),
        Budget("index", name + "ledger states", states_bytes),
        Budget("index", name + "control pages", CONTROL_BYTES),
    ]


def memory_bytes(config: BookieConfig) -> int:
    """Return the sum of the memory table."""
    return sum(budget.size_bytes for budget in memory_table(config))


def memory_total_bytes(config: BookieConfig) -> int:
    """Return what the memory table may add up to: as configured, else by the number of workers and pairs."""
    if config.bookie.memory_total_bytes:
        return config.bookie.memory_total_bytes
    workers, more_pairs = worker_count(config), bookie_config.pair_count(config) - 1
    return (264 + 100 * workers + (164 + 40 * workers) * more_pairs) * MIB
