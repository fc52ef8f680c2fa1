"""What the rig `rolling` writes: ledgers of both clients, and a stream."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import fastbk
import fastbk.sync
from fastbk.client import Client
from fastbk.errors import NotEnoughBookies
from fastbk.stream.client import Client as StreamClient
from fastbk.stream.policy import PolicyPatch

ENTRY_BYTES = 1000
BATCH = 20
PAUSE_S = 0.05
"""Between batches: 400 KB/s, so that what a restart leaves out fits into the memory."""
SOON_S, PATIENT_S = 0.5, 10.0
"""How long clients wait before they replace a bookie."""
LONG_S, SHORT_S = 1e9, 2.0
"""How long a ledger is written."""
AGAIN_S = 0.1
NAMESPACE = "rolling"


@dataclass(frozen=True)
class Load:
    """One writer.

    Attributes:
        kind: `asyncio`, `blocking` or `stream`.
        ensemble: E of its ledgers.
        replace_after_s: how long its client waits before it replaces a bookie.
        ledger_s: how long it writes a ledger, or a segment.
    """

    kind: str
    ensemble: int
    replace_after_s: float
    ledger_s: float

    @property
    def name(self) -> str:
        """What `ONLY` is compared with: asyncio-4-short, for one."""
        return f"{self.kind}-{self.ensemble}-{'long' if self.ledger_s == LONG_S else 'short'}"


LOADS = (
    Load("asyncio", 3, PATIENT_S, LONG_S),
    Load("asyncio", 4, PATIENT_S, SHORT_S),
    Load("asyncio", 4, SOON_S, LONG_S),
    Load("asyncio", 5, SOON_S, SHORT_S),
    Load("blocking", 4, PATIENT_S, LONG_S),
    Load("blocking", 3, PATIENT_S, SHORT_S),
    Load("blocking", 3, SOON_S, LONG_S),
    Load("blocking", 5, SOON_S, SHORT_S),
    Load("stream", 4, SOON_S, SHORT_S),
)


@dataclass
class Round:
    """One cluster's life.

    Attributes:
        uri: of its metadata.
        bookies: how many there are; no ensemble is larger.
        acknowledged: ledger id -> how many entries were acknowledged.
        records: how many records of the stream were acknowledged.
        counts: what happened.
        worst_append_s: the longest that a batch took until it was acknowledged, since `take_worst_s` was called last.
    """

    uri: str
    bookies: int
    rng: random.Random
    is_over: bool = False
    acknowledged: dict[int, int] = field(default_factory=dict)
    records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    worst_append_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledge(self, began_s: float) -> None:
        """Note that a batch that was sent then is acknowledged."""
        took_s = time.monotonic() - began_s
        with self._lock:  # blocking writers have threads of their own
            self.worst_append_s = max(self.worst_append_s, took_s)

    def take_worst_s(self) -> float:
        """Return the worst append since the last call."""
        with self._lock:
            worst_s, self.worst_append_s = self.worst_append_s, 0.0
        return worst_s

    def quorums(self, load: Load) -> tuple[int, int, int]:
        """Return E, Qw and Qa of the load's ledgers."""
        return min(load.ensemble, self.bookies), 3, 2


def data_of(ledger_id: int, entry_id: int) -> bytes:
    """Return the bytes of an entry; of a stream's record with the ledger -1."""
    return (b"%d/%d " % (ledger_id, entry_id)).ljust(ENTRY_BYTES, b".")


def _batch(ledger_id: int, first: int) -> list[bytes]:
    return [data_of(ledger_id, first + one) for one in range(BATCH)]


def _is_left(load: Load, number: int) -> bool:
    """Whether the writer leaves a ledger open to be recovered: every second short one."""
    return load.ledger_s != LONG_S and number % 2 == 1


# --- the asyncio client --------------------------------------------------------------------


async def write(keeper: Client, life: Round, load: Load) -> None:
    """Write ledgers until the round is over; `keeper` closes or recovers them."""
    numbers = itertools.count()
    while not life.is_over:
        is_left = _is_left(load, next(numbers))
        if is_left:
            async with fastbk.connect(life.uri, replace_after=load.replace_after_s) as other:
                ledger_id = await _write_one(other, life, load, is_closed=False)
        else:
            ledger_id = await _write_one(keeper, life, load, is_closed=True)
        if ledger_id is None:
            await asyncio.sleep(AGAIN_S)
        elif is_left:
            await keeper.open_ledger(ledger_id)
            life.counts["recoveries"] += 1


async def _write_one(client: Client, life: Round, load: Load, *, is_closed: bool) -> int | None:
    try:
        writer = await client.create_ledger(*life.quorums(load))
    except NotEnoughBookies:
        return None
    count, end_s = 0, time.monotonic() + load.ledger_s
    while not life.is_over and time.monotonic() < end_s:
        began_s = time.monotonic()
        await writer.append_many(_batch(writer.ledger_id, count))
        life.acknowledge(began_s)
        count += BATCH
        life.acknowledged[writer.ledger_id] = count
        await asyncio.sleep(PAUSE_S)
    life.counts["ensemble changes"] += writer.stats().ensemble_changes
    if is_closed:
        await writer.close()
    life.counts["ledgers"] += 1
    life.counts["entries"] += count
    return writer.ledger_id


async def write_stream(client: StreamClient, life: Round, load: Load) -> None:
    """Write a stream until the round is over, of segments as short as the load says."""
    ensemble, write_quorum, ack_quorum = life.quorums(load)
    namespace = client.namespace(NAMESPACE)
    await namespace.create()
    policy = PolicyPatch(
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        roll_age_s=load.ledger_s,
    )
    stream = await namespace.create_stream("records", policy)
    async with stream.writer() as writer:
        while not life.is_over:
            began_s = time.monotonic()
            await writer.append_many(_batch(-1, life.records))
            life.acknowledge(began_s)
            life.records += BATCH
            await asyncio.sleep(PAUSE_S)
    life.counts["records"] += life.records
    chain = (await (await stream.context()).store.read()).chain
    life.counts["segments"] += chain.next_number - 1


# --- the blocking client -------------------------------------------------------------------


def write_blocking(keeper: fastbk.sync.Client, life: Round, load: Load) -> Counter[str]:
    """The same as `write` without a loop; return what happened."""
    counts: Counter[str] = Counter()
    numbers = itertools.count()
    while not life.is_over:
        is_left = _is_left(load, next(numbers))
        if is_left:
            with fastbk.sync.connect(life.uri, replace_after=load.replace_after_s) as other:
                ledger_id = _write_one_blocking(other, life, load, counts, is_closed=False)
        else:
            ledger_id = _write_one_blocking(keeper, life, load, counts, is_closed=True)
        if ledger_id is None:
            time.sleep(AGAIN_S)
        elif is_left:
            keeper.open_ledger(ledger_id)
            counts["blocking recoveries"] += 1
    return counts


def _write_one_blocking(
    client: fastbk.sync.Client, life: Round, load: Load, counts: Counter[str], *, is_closed: bool
) -> int | None:
    try:
        writer = client.create_ledger(*life.quorums(load))
    except NotEnoughBookies:
        return None
    count, end_s = 0, time.monotonic() + load.ledger_s
    while not life.is_over and time.monotonic() < end_s:
        began_s = time.monotonic()
        writer.append_many(_batch(writer.ledger_id, count))
        life.acknowledge(began_s)
        count += BATCH
        life.acknowledged[writer.ledger_id] = count
        time.sleep(PAUSE_S)
    counts["ensemble changes"] += writer.stats().ensemble_changes
    if is_closed:
        writer.close()
    counts["blocking ledgers"] += 1
    counts["blocking entries"] += count
    return writer.ledger_id
