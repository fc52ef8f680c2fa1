"""The table of a bookie: its processes, shared segments, rings, bells, and who gets which
descriptor.

Everything that starts or connects processes reads this file; nothing else knows who talks to whom.
The picture in ARCHITECTURE.md shows the same set. Memory (A21) is a table too: start-up adds it up
and refuses what is above the total.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fastbk.units import MIB

if TYPE_CHECKING:
    from fastbk.server.config import BookieConfig, LimitSettings

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


@dataclass(frozen=True)
class Process:
    """One process of a bookie."""

    role: Role
    index: int = 0

    @property
    def name(self) -> str:
        """How logs, metrics and messages call it."""
        return f"{self.role}.{self.index}" if self.role == "worker" else self.role


@dataclass(frozen=True)
class Segment:
    """The shared memory of `owner`, which alone writes it (INV-R1)."""

    owner: Process
    writable: bool


@dataclass(frozen=True)
class Bell:
    """The eventfd on which `sleeper` waits. The journal's blocks: it is read through io_uring."""

    sleeper: Process

    @property
    def blocking(self) -> bool:
        """Whether reading it waits. Writers never wait: a counter does not get near its limit."""
        return self.sleeper.role == "journal"


@dataclass(frozen=True)
class Listener:
    """The bound, not yet listening socket of a worker."""

    worker: int


@dataclass(frozen=True)
class States:
    """The memory file in which the index hands all ledger states to the journal (A3)."""

    writable: bool


@dataclass(frozen=True)
class Lock:
    """The lock of the journal's or ledgers' directory: kept open, never used. See `directories`."""

    directory: Literal["journal", "ledgers"]


@dataclass(frozen=True)
class GcPair:
    """One end of the socket pair between gc and index."""

    end: int


Source = Segment | Bell | Listener | States | Lock | GcPair

JOURNAL = Process("journal")
INDEX = Process("index")
GC = Process("gc")
SUPERVISOR = Process("supervisor")


def worker(index: int) -> Process:
    """Return network worker `index`."""
    return Process("worker", index)


def children(worker_count: int, *, is_reads_only: bool = False) -> list[Process]:
    """Return all processes that a supervisor starts, in drain order.

    `is_reads_only`: what is left of them after a crash loop (A13): nobody that writes the journal, and
    nobody that asks for deletions.
    """
    writers = [] if is_reads_only else [JOURNAL]
    collectors = [] if is_reads_only else [GC]
    return [*(worker(w) for w in range(worker_count)), *writers, INDEX, *collectors]


def descriptors(process: Process, worker_count: int) -> dict[str, Source]:
    """Return what `process` is handed, by the names that it knows them by."""
    own: dict[str, Source] = {"segment": Segment(process, writable=True)}
    if process.role == "gc":
        return {**own, "index": GcPair(0)}
    own["bell"] = Bell(process)
    if process.role == "worker":
        return {
            **own,
            "listener": Listener(process.index),
            "journal_bell": Bell(JOURNAL),
            "index_bell": Bell(INDEX),
            "journal_segment": Segment(JOURNAL, writable=False),
            "index_segment": Segment(INDEX, writable=False),
        }
    for w in range(worker_count):
        own[f"worker_bell.{w}"] = Bell(worker(w))
        own[f"worker_segment.{w}"] = Segment(worker(w), writable=False)
    if process.role == "journal":
        return {
            **own,
            "index_bell": Bell(INDEX),
            "index_segment": Segment(INDEX, writable=False),
            "states": States(writable=False),
            "lock": Lock("journal"),
        }
    return {
        **own,
        "journal_bell": Bell(JOURNAL),
        "journal_segment": Segment(JOURNAL, writable=False),
        "states": States(writable=True),
        "lock": Lock("ledgers"),
        "gc": GcPair(1),
    }


def ring_sizes(process: Process, config: BookieConfig) -> list[int]:
    """Return the sizes of the rings behind the control pages of `process`'s segment, in bytes.

    A worker: add ring, request ring. The index: one reply ring, repeated for each worker.
    """
    limits = config.limits
    if process.role == "worker":
        return [limits.add_ring_size_bytes, limits.request_ring_size_bytes]
    if process.role == "index":
        return [limits.reply_ring_size_bytes]
    return []


def worker_count(config: BookieConfig) -> int:
    """Return how many workers the configuration asks for: one on up to four cores, else a quarter."""
    if config.bookie.workers:
        return config.bookie.workers
    return max(1, min(16, len(os.sched_getaffinity(0)) // 4))


PAGE_BYTES = 4096
SMALLEST_ENTRY_BYTES = 36
"""In a frame of AddBatch: its header, a byte of data, its size."""
CACHE_ITEM_BYTES = 56
"""What an entry costs the write cache beside its bytes, at most (fbk_record_cost)."""


def write_cache_sizes(wanted_bytes: int, limits: LimitSettings, workers: int) -> tuple[int, int]:
    """Return the size of a write cache, and how much of it is the reserve.

    The reserve is what recovery adds and fences may take when normal adds have used up their credit (A7): room
    for the largest frames, and for the end of a cache that the next batch does not fit into. Beside it each worker's
    share of the credit has to hold its largest add, or that one would wait for ever: with many workers the cache
    is made larger than `wanted_bytes`.
    """
    frame_bytes = limits.frame_size_bytes_max
    entries = min(limits.batch_entries_max, frame_bytes // SMALLEST_ENTRY_BYTES)
    shares_bytes = workers * (frame_bytes + entries * CACHE_ITEM_BYTES)
    reserve_bytes = 2 * frame_bytes + 2 * MIB
    least_bytes = shares_bytes + min(reserve_bytes, shares_bytes)
    cache_bytes = -(-max(wanted_bytes, least_bytes) // PAGE_BYTES) * PAGE_BYTES
    return cache_bytes, min(reserve_bytes, cache_bytes // 2)


@dataclass(frozen=True)
class Budget:
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

CONTROL_BYTES = 2 * MIB
"""Control pages of a segment with counters, descriptors and exceptions; the largest is the
journal's.
"""

READER_BUFFER_BYTES = 1 * MIB
"""What a reader thread reads ahead in one go."""

LEDGERS_EXPECTED = 10_000
LEDGER_STATE_BYTES = 82
"""A ledger's state with its share of the hash index, at most; once in the journal and once in the index."""

PARTIAL_FRAMES_SHARE = 4
"""Partial frames are few unless someone is slow on purpose: the table counts a quarter of their
bound, the rest is what an attack may take on top."""


def memory_table(config: BookieConfig) -> list[Budget]:
    """Return every budget of the bookie; their sum has to stay within `[bookie] memory_total`
    (A21).
    """
    workers = worker_count(config)
    limits, ledgers, journal = config.limits, config.ledgers, config.journal
    batch_bytes = journal.batch_size_bytes_max + limits.frame_size_bytes_max
    states_bytes = min(LEDGERS_EXPECTED, limits.ledgers_max) * LEDGER_STATE_BYTES
    write_cache_bytes, _ = write_cache_sizes(ledgers.write_cache_size_bytes, limits, workers)
    table = [
        Budget("supervisor", "interpreter", INTERPRETER_BYTES["supervisor"]),
        Budget("journal", "interpreter", INTERPRETER_BYTES["journal"]),
        Budget("index", "interpreter", INTERPRETER_BYTES["index"]),
        Budget("gc", "interpreter", INTERPRETER_BYTES["gc"]),
        Budget("journal", "batch buffers", 2 * batch_bytes),
        Budget("journal", "ledger states", states_bytes),
        Budget("journal", "control pages", CONTROL_BYTES),
        Budget("index", "write caches", 2 * write_cache_bytes),
        Budget("index", "read cache", ledgers.read_cache_size_bytes),
        Budget("index", "block cache", ledgers.block_cache_size_bytes),
        Budget("index", "reader buffers", ledgers.readers * READER_BUFFER_BYTES),
        Budget("index", "ledger states", states_bytes),
        Budget("index", "control pages", CONTROL_BYTES),
    ]
    for w in range(workers):
        name = f"worker {w}: "
        table += [
            Budget("worker", name + "interpreter", INTERPRETER_BYTES["worker"]),
            Budget("worker", name + "add ring", limits.add_ring_size_bytes),
            Budget("worker", name + "request ring", limits.request_ring_size_bytes),
            Budget("index", name + "reply ring", limits.reply_ring_size_bytes),
            Budget(
                "worker",
                name + "partial frames",
                config.network.partial_frames_bytes_max // PARTIAL_FRAMES_SHARE,
            ),
            Budget("worker", name + "control pages", CONTROL_BYTES),
        ]
    return table


def memory_bytes(config: BookieConfig) -> int:
    """Return the sum of the memory table."""
    return sum(budget.size_bytes for budget in memory_table(config))


def memory_total_bytes(config: BookieConfig) -> int:
    """Return what the memory table may add up to: as configured, else by the number of workers."""
    return config.bookie.memory_total_bytes or (200 + 100 * worker_count(config)) * MIB
