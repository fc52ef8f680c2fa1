"""What users were told is kept, and the audit that reads it back when a run is over.

An entry's data follow from (seed, number), so that nothing has to be remembered of them: a user notes a seed and how
many were acknowledged, the process writes the notes when it ends, the audit makes the data again and compares.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import fastbk.sync
from fastbk.errors import Error, NoSuchLedger

NAMESPACE = "loadtest"
LOSSES_MAX = 20
"""So many are listed; all are counted."""


def data_of(seed: int, number: int, size_bytes: int) -> bytes:
    """Return the data of entry `number` of whoever has this seed."""
    block = hashlib.blake2b(b"%d %d" % (seed, number)).digest()
    return (block * (size_bytes // len(block) + 1))[:size_bytes]


@dataclass
class Kept:
    """A ledger (`ledger_id`) or a stream (`stream`) of one user, with the first `count` entries acknowledged.

    `failed`: numbers below `count` that were not acknowledged, and may be there or not.
    """

    seed: int
    size_bytes: int
    ledger_id: int = -1
    stream: str = ""
    count: int = 0
    failed: list[int] = field(default_factory=list)

    def data(self, number: int) -> bytes:
        """Return what entry `number` has to be."""
        return data_of(self.seed, number, self.size_bytes)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"stream {self.stream}" if self.stream else f"ledger {self.ledger_id}"


def write_notes(folder: Path, notes: list[Kept]) -> None:
    """Write down what this process was told is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(one)) + "\n" for one in notes)
    (folder / f"{os.getpid()}.jsonl").write_text(text)


def read_notes(folder: Path) -> list[Kept]:
    """Return what all processes have written down."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        found += [Kept(**json.loads(line)) for line in path.read_text().splitlines()]
    return found


@dataclass
class Audit:
    """What was read back."""

    entries: int = 0
    lost: int = 0
    losses: list[str] = field(default_factory=list)

    def lose(self, count: int, text: str) -> None:
        """Note entries that are not there, or not what they were."""
        self.lost += count
        if count and len(self.losses) < LOSSES_MAX:
            self.losses.append(text)

    def ledger(self, client: fastbk.sync.Client, kept: Kept) -> None:
        """Read a ledger back."""
        good = 0
        try:
            with client.open_ledger(kept.ledger_id) as reader:
                for entry in reader.read(0, min(kept.count, reader.last_known + 1) - 1):
                    if bytes(entry.data) != kept.data(entry.entry_id):
                        self.lose(1, f"{kept.name} entry {entry.entry_id}: other bytes")
                    good += 1
        except Error as error:
            self.lose(kept.count - good, f"{kept.name} from entry {good} on: {error}")
        else:
            self.lose(kept.count - good, f"{kept.name}: ends before entry {good}")
        self.entries += good

    def stream(self, client: fastbk.sync.Client, kept: Kept) -> None:
        """Read a stream back: its records bear their numbers, and one that was tried twice may be there twice."""
        missing = set(range(kept.count)) - set(kept.failed)
        try:
            for number, payload in _records(client, kept):
                if number in missing:
                    missing.discard(number)
                    self.entries += 1
                    if payload != kept.data(number):
                        self.lose(1, f"{kept.name} record {number}: other bytes")
        except Error as error:
            self.lose(len(missing), f"{kept.name}: {error}")
        else:
            self.lose(len(missing), f"{kept.name}: {sorted(missing)[:5]} are not there")


def record_of(kept: Kept, number: int) -> bytes:
    """Return the payload of a record: its number, and its data."""
    return number.to_bytes(8, "big") + kept.data(number)


def _records(client: fastbk.sync.Client, kept: Kept) -> Iterator[tuple[int, bytes]]:
    stream = client.namespace(NAMESPACE).stream(kept.stream)
    for record in stream.reader(tail=False):
        payload = bytes(record.payload)
        yield int.from_bytes(payload[:8], "big"), payload[8:]


def audit(client: fastbk.sync.Client, notes: list[Kept]) -> Audit:
    """Read all of it back."""
    found = Audit()
    for kept in notes:
        if kept.count:
            (found.stream if kept.stream else found.ledger)(client, kept)
    return found


def delete(client: fastbk.sync.Client, notes: list[Kept]) -> None:
    """Delete what a run has written."""
    for kept in notes:
        if kept.stream:
            client.namespace(NAMESPACE).delete_stream(kept.stream, missing_ok=True)
            continue
        try:
            client.delete_ledger(kept.ledger_id)
        except NoSuchLedger:
            continue
