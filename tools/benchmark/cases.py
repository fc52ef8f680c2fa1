"""What `./dev bench` can measure: a case is a name and a load; a system says which loads it can be given."""

from __future__ import annotations

from dataclasses import dataclass

from fastbk.units import MIB

ENTRY_BYTES = 1024


@dataclass(frozen=True)
class DiskWrite:
    """One durable overwrite at a time; `block`: bytes of each, as fio writes it."""

    block: str


@dataclass(frozen=True)
class Append:
    """Appends of one client in a closed loop; `window`: in flight over all connections.

    Attributes:
        seconds_min: a sustained load lasts so long, and begins when the bookie is in its steady state: everything
            that it writes later for an entry is written while others are appended. 0: the length of a round,
            in which a bookie may still have in memory what it writes a second time.
        disk_bytes_per_s: what the disk takes; 0: all that it can.
    """

    window: int
    size_bytes: int = ENTRY_BYTES
    ledgers: int = 1
    connections: int = 1
    seconds_min: float = 0.0
    disk_bytes_per_s: int = 0


@dataclass(frozen=True)
class DiskBytes:
    """As `Append`, sustained; what is counted are bytes to the disk, until the bookie has written all that it will.

    Attributes:
        seconds_min: how long entries are appended.
    """

    window: int
    size_bytes: int = ENTRY_BYTES
    ledgers: int = 1
    seconds_min: float = 0.0


@dataclass(frozen=True)
class Read:
    """Reads of one ledger over one connection.

    Attributes:
        state: "first pass" over what was just written; "hot": a pass was made before; "cold": it is in no memory.
        entries_a_read: more than one: batch reads.
    """

    window: int
    state: str
    entries_a_read: int = 1
    is_random: bool = False

    @property
    def entries(self) -> int:
        """How many entries the ledger has: more where each may be read once only."""
        return (256 if self.state == "cold" else 128) * MIB // ENTRY_BYTES


@dataclass(frozen=True)
class TailRead:
    """Appends at `window`; each `every`-th entry is read as soon as it is acknowledged."""

    window: int
    every: int = 16


@dataclass(frozen=True)
class ReadDuringWrites:
    """Appends at `window`, while another connection keeps `reads` single reads of an older ledger in flight."""

    window: int = 100
    reads: int = 10


@dataclass(frozen=True)
class CompactionDuringWrites:
    """Appends at `window` while entry logs are compacted of which half was deleted."""

    window: int = 100


@dataclass(frozen=True)
class Restart:
    """Measures from the start after kill -9 to the first accepted write, with that much of journal behind the mark."""

    mib: int = 64


@dataclass(frozen=True)
class Replicated:
    """Appends of a system's own client library to three bookies, E3/Qw3/Qa2."""

    window: int


@dataclass(frozen=True)
class BesideC:
    """Appends one at a time to one bookie: by the Python client and by the load generator in C, in turn."""

    pairs: int = 20


@dataclass(frozen=True)
class LedgerCalls:
    """Create, close, open and recover ledgers of ten entries, one by one, by the system's own client library."""

    count: int = 200


@dataclass(frozen=True)
class StreamTail:
    """Append records to a stream at this rate; a reader in another process tails it."""

    rate_per_s: int = 1000


@dataclass(frozen=True)
class StreamToArrow:
    """Read a stream of records into Arrow record batches."""

    mib: int = 256


Load = (
    DiskWrite
    | Append
    | DiskBytes
    | Read
    | TailRead
    | ReadDuringWrites
    | CompactionDuringWrites
    | Restart
    | Replicated
    | BesideC
    | LedgerCalls
    | StreamTail
    | StreamToArrow
)


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        is_default: whether a run measures it that names no cases.
        is_paired: measured in many short rounds (PAIRS) in place of a few long ones.
    """

    name: str
    load: Load
    is_default: bool = True
    is_paired: bool = False


WINDOW_1 = Case("append, window 1", Append(1), is_paired=True)
WINDOW_100 = Case("append, window 100", Append(100))
WINDOW_1000 = Case("append, window 1,000", Append(1000))
WINDOW_5000 = Case("append, window 5,000", Append(5000))
CONNECTIONS_1000 = Case(
    "append, 1,000 connections, 1 in flight each", Append(1000, ledgers=1000, connections=1000)
)
SUSTAINED_S = 20.0
SLOW_DISK_BYTES_PER_S = 200_000_000
SUSTAINED_1000 = Case(
    "append, window 1,000, sustained", Append(1000, seconds_min=SUSTAINED_S), is_default=False
)
SUSTAINED_100 = Case(
    "append, 100 B, window 1,000, sustained",
    Append(1000, size_bytes=100, seconds_min=SUSTAINED_S),
    is_default=False,
)
SUSTAINED_16K = Case(
    "append, 16 KiB, window 100, sustained",
    Append(100, size_bytes=16 * 1024, seconds_min=SUSTAINED_S),
    is_default=False,
)
SIZES = (("100 B", 100, 1000), ("1 KiB", ENTRY_BYTES, 1000), ("16 KiB", 16 * 1024, 100))
"""How a size is called, its bytes, and the window that brings the disk to its limit."""
ON_SLOW_DISK = tuple(
    Case(
        f"append, {name}, {ledgers} ledger{'s' if ledgers > 1 else ''}, window {window:,},"
        f" disk at {SLOW_DISK_BYTES_PER_S // 10**6} MB/s",
        Append(
            window,
            size_bytes=size_bytes,
            ledgers=ledgers,
            seconds_min=SUSTAINED_S,
            disk_bytes_per_s=SLOW_DISK_BYTES_PER_S,
        ),
        is_default=False,
    )
    for name, size_bytes, window in SIZES
    for ledgers in (1, 10, 100)
)
BYTES = tuple(
    Case(
        f"bytes to disk, {name}, {ledgers} ledger{'s' if ledgers > 1 else ''}",
        DiskBytes(window, size_bytes=size_bytes, ledgers=ledgers, seconds_min=SUSTAINED_S),
        is_default=False,
    )
    for name, size_bytes, window in SIZES
    for ledgers in (1, 10, 100)
)
BATCH_HOT = Case("read, 64 at once, window 10, hot", Read(10, "hot", 64))
SINGLE_HOT = Case("read, singly, window 100, hot", Read(100, "hot"))
BATCH_COLD = Case("read, 64 at once, window 10, cold", Read(10, "cold", 64))
REPLICATED_1000 = Case("client library, E3/Qw3/Qa2, window 1,000", Replicated(1000))
BESIDE_C = Case("client library beside C, one bookie, window 1", BesideC())
RESTART = Case("restart after kill -9, 64 MiB of journal", Restart())
TO_ARROW = Case("stream into Arrow batches", StreamToArrow(), is_default=False)

CASES = (
    *(Case(f"durable write of {size}", DiskWrite(size)) for size in ("4k", "128k", "1m")),
    WINDOW_1,
    WINDOW_100,
    WINDOW_1000,
    WINDOW_5000,
    Case("append, 100 B, window 1,000", Append(1000, size_bytes=100)),
    Case("append, 16 KiB, window 100", Append(100, size_bytes=16 * 1024)),
    Case("append, 256 KiB, window 10", Append(10, size_bytes=256 * 1024)),
    Case("append, 10 ledgers, window 100", Append(100, ledgers=10)),
    Case("append, 1,000 ledgers, window 1,000", Append(1000, ledgers=1000)),
    *(
        Case(
            f"append, {count} connections, 1 in flight each",
            Append(count, ledgers=count, connections=count),
        )
        for count in (10, 100)
    ),
    CONNECTIONS_1000,
    SUSTAINED_1000,
    SUSTAINED_100,
    SUSTAINED_16K,
    *ON_SLOW_DISK,
    *BYTES,
    REPLICATED_1000,
    Case("client library, E3/Qw3/Qa2, window 1", Replicated(1)),
    BESIDE_C,
    Case("read, singly, window 100, first pass", Read(100, "first pass")),
    SINGLE_HOT,
    Case("read, singly, window 100, cold", Read(100, "cold")),
    Case("read, 64 at once, window 10, first pass", Read(10, "first pass", 64)),
    BATCH_HOT,
    BATCH_COLD,
    Case("read, at random, window 100, hot", Read(100, "hot", is_random=True)),
    Case("read, at random, window 100, cold", Read(100, "cold", is_random=True)),
    Case("tailing reads, window 100", TailRead(100)),
    Case("appends and reads, windows 100 and 10", ReadDuringWrites()),
    Case("appends during a compaction, window 100", CompactionDuringWrites(), is_default=False),
    RESTART,
    Case("create, close, open and recover ledgers", LedgerCalls(), is_default=False),
    Case("stream, append to a tailing reader", StreamTail(), is_default=False),
    TO_ARROW,
)


def chosen_cases(only: str, *, is_full: bool) -> list[Case]:
    """Return the cases with one of these names, or with a word of these in theirs; for none, the default ones or all.

    Names and words are separated by semicolons, since names have commas; words alone by commas, too.
    Raises SystemExit where that is no case.
    """
    words = [word.strip() for word in only.split(";" if ";" in only else ",") if word.strip()]
    names = {case.name for case in CASES}
    if only.strip() in names:
        words = [only.strip()]
    if words:
        cases = [
            case
            for case in CASES
            if any(word == case.name or (word not in names and word in case.name) for word in words)
        ]
    else:
        cases = [case for case in CASES if case.is_default or is_full]
    if not cases:
        raise SystemExit(
            f"bench: ONLY={only}: no case; there are: {'; '.join(case.name for case in CASES)}"
        )
    return cases
