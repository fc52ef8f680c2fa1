"""Of the copies on the bookies: two streams record by record, and one byte of one copy of one entry turned over."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import fastbk.sync
from fastbk.errors import StorageError

if TYPE_CHECKING:
    from demo.pipeline.commands import Commands
    from fastbk.devcluster import Bookie, DevCluster
    from fastbk.stream.sync import SyncStream

FLIPPED = 0x01
LOGS = "ledgers"
"""Where in a bookie's folder its entry logs are."""


@dataclass(frozen=True, slots=True)
class Victim:
    """One entry, and the bookie whose copy of it is to be damaged."""

    bookie: str
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.bookie}: ledger {self.ledger_id}, entry {self.entry_id}"


def same_records(
    client: fastbk.sync.Client, one: str, other: str, say: Callable[[int], None]
) -> int:
    """Read two streams side by side, compare keys, payloads and headers, and return how many records both have.

    Raises StorageError with the first one that differs.
    """
    count = 0
    with (
        _stream(client, one).reader("earliest", tail=False) as left,
        _stream(client, other).reader("earliest", tail=False) as right,
    ):
        theirs = iter(right)
        for mine in left:
            its = next(theirs, None)
            if its is None:
                raise StorageError(f"{other} ends behind {count:,} records, and {one} does not")
            if (mine.key, bytes(mine.payload), mine.headers) != (
                its.key,
                bytes(its.payload),
                its.headers,
            ):
                raise StorageError(f"record {count} of {one} ({mine.dlsn}) is not that of {other}")
            count += 1
            if count % 1024 == 0:
                say(count)
        if next(theirs, None) is not None:
            raise StorageError(f"{one} ends behind {count:,} records, and {other} does not")
    return count


def ledgers_of(client: fastbk.sync.Client, streams: list[str]) -> list[int]:
    """Return the ledgers of these streams, ascending."""
    return sorted(
        segment.ledger_id for path in streams for segment in _stream(client, path).segments()
    )


def choose(client: fastbk.sync.Client, stream: str) -> Victim:
    """Return an entry in the middle of the stream's largest segment, and one of the bookies that have it."""
    segment = max(_stream(client, stream).segments(), key=lambda one: one.size_bytes)
    info = client.ledger_info(segment.ledger_id)
    entry_id = segment.last_entry_id // 2
    ensemble = info.metadata.fragment_of(entry_id).ensemble
    return Victim(ensemble[len(ensemble) // 2], segment.ledger_id, entry_id)


def flip(commands: Commands, bookie: Bookie, victim: Victim) -> tuple[Path, int]:
    """Turn over one bit of the victim's copy in the logs of its bookie, which does not run; return file and offset.

    Where it lies is what `fastbk inspect` says, no code of ours beside it. Raises StorageError if it is not there.
    """
    _, found, _ = commands.run(
        "inspect", "entrylog", str(bookie.directory / LOGS),
        "--ledger", str(victim.ledger_id), "--entry", str(victim.entry_id), "--json",
    )  # fmt: skip
    lines = found if isinstance(found, list) else [found]
    entries = [one for one in lines if one["what"] == "entry"]
    if not entries:
        raise StorageError(f"{victim} is not in its entry logs")
    for entry in entries:  # a compaction that was cut off may have left two
        path, at = Path(entry["file"]), entry["offset_bytes"] + entry["size_bytes"] // 2
        with path.open("r+b") as file:
            file.seek(at)
            before = file.read(1)[0]
            file.seek(at)
            file.write(bytes([before ^ FLIPPED]))
            file.flush()
            os.fsync(file.fileno())
    return path, at


def stop(bookie: Bookie) -> None:
    """Stop one bookie; it writes down what it has. Raises StorageError unless it ended well."""
    bookie.request_stop()
    code = bookie.wait_gone()
    if code != 0:
        raise StorageError(f"{bookie.name} ended with {code}")


def start(cluster: DevCluster, bookie: Bookie) -> None:
    """Start it again."""
    boots = bookie.boots
    bookie.spawn()
    cluster.wait_ready([bookie], boots_min=boots + 1)


def _stream(client: fastbk.sync.Client, path: str) -> SyncStream:
    namespace, _, name = path.rpartition("/")
    return client.namespace(namespace).stream(name)
