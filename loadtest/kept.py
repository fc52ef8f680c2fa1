"""The acknowledged entries of a run, and the audit that reads them back and compares them.

An entry's bytes follow from (seed, number). A user notes a seed and a count for each ledger, and
the process writes these notes when it ends. The audit computes the bytes again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import fastbk.sync
from fastbk.errors import Error, NoSuchLedger

NAMESPACE = "loadtest"
LOSSES_MAX = 20
"""So many are listed. All are counted."""


def data_of(seed: int, number: int, size_bytes: int) -> bytes:
    """Return the data of entry `number` of the ledger with this seed."""
    block = hashlib.blake2b(b"%d %d" % (seed, number)).digest()
    return (block * (size_bytes // len(block) + 1))[:size_bytes]


@dataclass
class Audit:
    """What an audit found."""

    ledgers: int = 0
    """Ledgers and streams."""
    entries: int = 0
    lost: int = 0
    losses: list[str] = field(default_factory=list)
    is_unreadable: bool = False
    """Some of the lost entries could not be read, perhaps because bookies are down."""

    def lose(self, count: int, text: str) -> None:
        """Count entries that are missing or have other bytes."""
        self.lost += count
        if count and len(self.losses) < LOSSES_MAX:
            self.losses.append(text)

    def add(self, other: Audit) -> None:
        """Count what another audit found, too."""
        self.ledgers += other.ledgers
        self.entries += other.entries
        self.lost += other.lost
        self.is_unreadable |= other.is_unreadable
        self.losses = (self.losses + other.losses)[:LOSSES_MAX]


@dataclass
class Kept:
    """A ledger (`ledger_id`) or a stream (`stream`) of one user, with the first `count` entries acknowledged.

    `failed`: numbers below `count` that were not acknowledged. These entries may exist or not.
    `audit`: what the user itself found during the run. The final audit does not read again then.
    """

    seed: int
    size_bytes: int
    ledger_id: int = -1
    stream: str = ""
    count: int = 0
    failed: list[int] = field(default_factory=list)
    audit: Audit | None = None
    is_exact: bool = False
    """No record is there twice."""

    def data(self, number: int) -> bytes:
        """Return the bytes of entry `number`."""
        return data_of(self.seed, number, self.size_bytes)

    def record(self, number: int) -> bytes:
        """Return the payload of a record: its number, and its bytes."""
        return number.to_bytes(8, "big") + self.data(number)

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"stream {self.stream}" if self.stream else f"ledger {self.ledger_id}"

    def check(self, client: fastbk.sync.Client) -> Audit:
        """Read everything back that was acknowledged."""
        found = Audit(int(self.count > 0))
        if self.count:
            (self._check_stream if self.stream else self._check_ledger)(client, found)
        return found

    def _check_ledger(self, client: fastbk.sync.Client, found: Audit) -> None:
        try:
            with client.open_ledger(self.ledger_id) as reader:
                for entry in reader.read(0, min(self.count, reader.last_known + 1) - 1):
                    if bytes(entry.data) != self.data(entry.entry_id):
                        found.lose(1, f"{self.name} entry {entry.entry_id}: other bytes")
                    found.entries += 1
                    _let_others_run(found.entries)
        except Error as error:
            rest = self.count - found.entries
            found.lose(rest, f"{self.name} from entry {found.entries} on: {error}")
            found.is_unreadable = True
        else:
            rest = self.count - found.entries
            found.lose(rest, f"{self.name}: ends before entry {found.entries}")

    def _check_stream(self, client: fastbk.sync.Client, found: Audit) -> None:
        """A record that was appended again after a failure may occur twice, unless its user gave it a number."""
        missing = set(range(self.count)) - set(self.failed)
        stored: set[int] = set()
        try:
            for number, payload in self._records(client):
                if self.is_exact and number in stored:
                    found.lose(1, f"{self.name} record {number}: it is there twice")
                stored.add(number)
                if number in missing:
                    missing.discard(number)
                    found.entries += 1
                    _let_others_run(found.entries)
                    if payload != self.record(number):
                        found.lose(1, f"{self.name} record {number}: other bytes")
        except Error as error:
            found.lose(len(missing), f"{self.name}: {error}")
            found.is_unreadable = True
        else:
            found.lose(len(missing), f"{self.name}: {sorted(missing)[:5]} are missing")

    def _records(self, client: fastbk.sync.Client) -> Iterator[tuple[int, bytes]]:
        with client.namespace(NAMESPACE).stream(self.stream).reader(tail=False) as reader:
            for record in reader:
                payload = bytes(record.payload)
                yield int.from_bytes(payload[:8], "big"), payload

    def delete(self, client: fastbk.sync.Client) -> None:
        """Delete the ledger or stream, unless it is gone."""
        if self.stream:
            client.namespace(NAMESPACE).delete_stream(self.stream, missing_ok=True)
        if self.ledger_id >= 0:
            try:
                client.delete_ledger(self.ledger_id)
            except NoSuchLedger:
                pass


def _let_others_run(count: int) -> None:
    """Under gevent, other users go on while one reads back."""
    if count % 50 == 0:
        time.sleep(0)


def write_notes(folder: Path, notes: list[Kept]) -> None:
    """Write the notes of this process."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(note)) + "\n" for note in notes)
    (folder / f"notes-{os.getpid()}.jsonl").write_text(text)


def read_notes(folder: Path) -> list[Kept]:
    """Return the notes of all processes."""
    notes = []
    for path in sorted(folder.glob("notes-*.jsonl")):
        for line in path.read_text().splitlines():
            kept = Kept(**json.loads(line))
            if kept.audit is not None:
                kept.audit = Audit(**json.loads(line)["audit"])
            notes.append(kept)
    return notes


def audit(client: fastbk.sync.Client, notes: list[Kept]) -> Audit:
    """Read back all that no user has read back itself, and add up."""
    found = Audit()
    for kept in notes:
        found.add(kept.check(client) if kept.audit is None else kept.audit)
    return found


def delete(client: fastbk.sync.Client, notes: list[Kept]) -> None:
    """Delete what a run has written."""
    for kept in notes:
        kept.delete(client)
