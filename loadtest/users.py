"""The kinds of users. Each user has a client and a ledger or stream of its own, and works in a closed loop.

After a failed request the user goes on with another ledger. Acknowledged entries are noted, and
read back when the run is over (`kept.py`), or when the user has written LEDGER_BYTES.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import gevent
from locust import User, constant, task

import fastbk.sync
from fastbk.client import Entry
from fastbk.errors import Error
from loadtest.figures import Figures
from loadtest.kept import Audit, Kept

T = TypeVar("T")

ENSEMBLE = int(os.environ.get("FASTBK_LOAD_ENSEMBLE", "3"))
WRITE_QUORUM = int(os.environ.get("FASTBK_LOAD_WRITE_QUORUM", "3"))
ACK_QUORUM = int(os.environ.get("FASTBK_LOAD_ACK_QUORUM", "2"))
USERS = int(os.environ.get("FASTBK_LOAD_USERS", "10"))
KEPT_BYTES = int(os.environ.get("FASTBK_LOAD_KEPT_BYTES", str(2 * 1024**3)))
"""All users together have at most so many bytes of entries at a time, so that no disk fills."""
LEDGER_BYTES = KEPT_BYTES // USERS
"""A user reads back and deletes a ledger or stream of this size."""
IS_KEPT = os.environ.get("FASTBK_LOAD_KEEP", "") == "1"
"""Nothing is deleted."""
PAUSE_AFTER_FAILURE_S = 0.2
PAUSE_S = float(os.environ.get("FASTBK_LOAD_PAUSE_S", "0"))
"""Pause between two tasks of a user: for tests, which need each kind of request, and not many of them."""
DELIVERY_S_MAX = 30.0
"""A tail that delivers nothing for so long has failed."""

recorded = Figures()
"""What this process has measured and not reported yet."""
notes: list[Kept] = []
"""What was acknowledged to this process."""


class WrongBytes(AssertionError):
    """A reader delivered other bytes than were written. The run ends as after a lost entry."""


class LoadUser(User):
    """The base of all users."""

    abstract = True
    wait_time = constant(PAUSE_S)
    size_bytes = 1024
    host = os.environ.get("FASTBK_METADATA")
    kept: Kept
    """What was acknowledged of this user's ledger or stream."""

    def on_start(self) -> None:
        """Connect, and prepare what the tasks need."""
        # Locust calls on_stop also when this was cut off half-way.
        self.connected, self.opened = ExitStack(), ExitStack()
        self.random = random.Random()
        try:
            self.client = fastbk.sync.connect(self.host or None)
            self.connected.callback(self.client.close)
            self.begin()
        except Error as error:
            logging.error("this user cannot begin: %s", error)
            raise gevent.GreenletExit from error  # locust logs the stacks of others

    def on_stop(self) -> None:
        """Close everything."""
        self.release()
        self.connected.close()

    def release(self) -> None:
        """Close what `begin` has opened. An error was counted already when the request failed."""
        try:
            self.opened.close()
        except Error as error:
            logging.info("not closed: %s", error)

    def begin(self) -> None:
        """Prepare what the tasks need. May be called again after a failure."""

    def measure(self, kind: str, size_bytes: int, call: Callable[[], T]) -> T | None:
        """Make one request; return its result, None where it failed."""
        error: Exception | None = None
        result: T | None = None
        start_ns = time.perf_counter_ns()
        try:
            result = call()
        except Exception as caught:  # noqa: BLE001 -- locust counts every kind of failure
            error = caught
        took_us = (time.perf_counter_ns() - start_ns) / 1000
        if isinstance(error, WrongBytes):
            notes.append(Kept(0, 0, audit=Audit(lost=1, losses=[str(error)])))
        recorded.record(kind, None if error else took_us, size_bytes, time.time())
        self.environment.events.request.fire(
            request_type="fastbk",
            name=kind,
            response_time=took_us / 1000,
            response_length=size_bytes,
            exception=error,
            context={},
        )
        return result

    def note(self, **where: Any) -> Kept:
        """Begin to note what is acknowledged of a ledger or stream of this user."""
        kept = Kept(self.random.getrandbits(48), self.size_bytes, **where)
        notes.append(kept)
        return kept

    def new_ledger(self) -> fastbk.sync.LedgerWriter:
        """Create a ledger of the run's quorums."""
        return self.client.create_ledger(
            ensemble=ENSEMBLE, write_quorum=WRITE_QUORUM, ack_quorum=ACK_QUORUM
        )

    def begin_again(self, pause_s: float = PAUSE_AFTER_FAILURE_S) -> None:
        """Go on with another ledger, after a failure or when one is full."""
        self.release()
        gevent.sleep(pause_s)
        try:
            self.begin()
        except Error as error:
            logging.info("a user waits: %s", error)

    def is_full(self) -> bool:
        """Return whether the user has written enough to its ledger or stream."""
        return self.kept.count * self.size_bytes >= LEDGER_BYTES

    def roll(self) -> None:
        """Read back and delete a ledger or stream that is full, and go on with another."""
        if not self.is_full():
            return
        self.release()
        found = self.kept.check(self.client)
        # While bookies are down some entries cannot be read. The audit at the end reads them.
        self.kept.audit = None if found.is_unreadable else found
        if not (found.lost or IS_KEPT):
            try:
                self.kept.delete(self.client)
            except Error as error:
                logging.info("not deleted: %s", error)
        self.begin_again(0.0)


class Appends(LoadUser):
    """Appends one entry after the other to a ledger, and now and then compares one with what it was."""

    abstract = True
    kind = ""

    def begin(self) -> None:
        """Open a ledger to write and read."""
        self.writer = self.opened.enter_context(self.new_ledger())
        self.kept = self.note(ledger_id=self.writer.ledger_id)
        self.reader = self.opened.enter_context(
            self.client.open_ledger(self.writer.ledger_id, recovery=False)
        )

    @task(9)
    def write(self) -> None:
        """Append. Subclasses override `append`: a task that they override would run twice."""
        self.roll()
        self.append()

    def append(self) -> None:
        """Append one entry and wait until it is durable on the ack quorum."""
        data = self.kept.data(self.kept.count)
        if self.measure(self.kind, len(data), lambda: self.writer.append(data)) is None:
            self.begin_again()
        else:
            self.kept.count += 1

    @task(1)
    def read(self) -> None:
        """Read one acknowledged entry back and compare it."""
        if self.kept.count:
            entry_id = self.random.randrange(self.kept.count)
            self.measure("read own", self.size_bytes, lambda: self.compare(entry_id))

    def compare(self, entry_id: int) -> None:
        """Raise WrongBytes unless the entry is what was written."""
        (entry,) = self.reader.read_unconfirmed(entry_id, entry_id)
        if bytes(entry.data) != self.kept.data(entry_id):
            raise WrongBytes(f"{self.kept.name} entry {entry_id}")


class SmallAppends(Appends):
    """100 bytes an entry."""

    kind = "append small"
    size_bytes = 100


class MediumAppends(Appends):
    """FASTBK_LOAD_ENTRY_BYTES an entry, 1 KiB without it."""

    kind = "append medium"
    size_bytes = int(os.environ.get("FASTBK_LOAD_ENTRY_BYTES", "1024"))


class LargeAppends(Appends):
    """256 KiB an entry."""

    kind = "append large"
    size_bytes = 256 * 1024


class BatchAppends(Appends):
    """100 entries of 1 KiB at once."""

    kind = "append batch"
    count = 100

    def append(self) -> None:
        """Append a batch and wait until all of it is durable."""
        first = self.kept.count
        datas = [self.kept.data(number) for number in range(first, first + self.count)]
        size_bytes = self.count * self.size_bytes
        if self.measure(self.kind, size_bytes, lambda: self.writer.append_many(datas)) is None:
            self.begin_again()
        else:
            self.kept.count += self.count


class Tailing(Appends):
    """Measures from the call of an append to the entry's delivery by a reader that tails the ledger."""

    kind = "tail"

    def begin(self) -> None:
        """Open the ledger, and a tail of it."""
        super().begin()
        self.entries: Iterator[Entry] = self.reader.tail()

    def append(self) -> None:
        """Append an entry and wait until the tail delivers it."""
        number = self.kept.count

        def delivered() -> bool:
            self.writer.append(self.kept.data(number))
            self.kept.count += 1
            with gevent.Timeout(DELIVERY_S_MAX, TimeoutError(f"not delivered: entry {number}")):
                entry = next(self.entries)
            if (entry.entry_id, bytes(entry.data)) != (number, self.kept.data(number)):
                raise WrongBytes(f"{self.kept.name}: {entry.entry_id} in place of {number}")
            return True

        if self.measure(self.kind, self.size_bytes, delivered) is None:
            self.begin_again()


class Reads(LoadUser):
    """Reads a closed ledger that it has written."""

    abstract = True
    entries = 2000

    def begin(self) -> None:
        """Write the ledger, and open it."""
        with self.new_ledger() as writer:
            self.kept = self.note(ledger_id=writer.ledger_id)
            for first in range(0, self.entries, 100):
                writer.append_many([self.kept.data(one) for one in range(first, first + 100)])
                self.kept.count += 100
        self.reader = self.opened.enter_context(self.client.open_ledger(writer.ledger_id))


class CatchUp(Reads):
    """Reads 2,000 entries of 1 KiB in order, in batches."""

    @task
    def read_all(self) -> None:
        """Read the whole ledger."""
        if self.measure("catch up", self.entries * self.size_bytes, self.compare) is None:
            gevent.sleep(PAUSE_AFTER_FAILURE_S)

    def compare(self) -> bool:
        """Raise WrongBytes unless all is there; of each batch the last entry is compared."""
        seen = 0
        for batch in self.reader.read_batches():
            seen += len(batch)
            if bytes(batch.last_data) != self.kept.data(batch.last_entry_id):
                raise WrongBytes(f"{self.kept.name} entry {batch.last_entry_id}")
        if seen != self.entries:
            raise WrongBytes(f"{self.kept.name}: {seen} entries of {self.entries}")
        return True


class RandomReads(Reads):
    """Reads entries anywhere in a ledger."""

    @task
    def read(self) -> None:
        """Read one entry and compare it."""
        entry_id = self.random.randrange(self.entries)

        def compare() -> bool:
            (entry,) = self.reader.read(entry_id, entry_id)
            if bytes(entry.data) != self.kept.data(entry_id):
                raise WrongBytes(f"{self.kept.name} entry {entry_id}")
            return True

        if self.measure("read random", self.size_bytes, compare) is None:
            gevent.sleep(PAUSE_AFTER_FAILURE_S)


class LedgerChurn(LoadUser):
    """Creates a ledger, writes ten entries, closes, opens, reads, and deletes it."""

    @task
    def churn(self) -> None:
        """One life of a ledger."""
        writer = self.measure("create ledger", 0, self.new_ledger)
        if writer is None:
            gevent.sleep(PAUSE_AFTER_FAILURE_S)
            return
        kept = self.note(ledger_id=writer.ledger_id)
        datas = [kept.data(number) for number in range(10)]
        written = self.measure(
            "append ten", 10 * self.size_bytes, lambda: writer.append_many(datas)
        )
        self.measure("close ledger", 0, writer.close)
        if written is not None:
            self.measure("open and read ledger", 10 * self.size_bytes, lambda: self.read(kept))
        if self.measure("delete ledger", 0, lambda: self.delete(kept)):
            notes.remove(kept)

    def delete(self, kept: Kept) -> bool:
        """Delete the ledger."""
        self.client.delete_ledger(kept.ledger_id)
        return True

    def read(self, kept: Kept) -> None:
        """Raise WrongBytes unless the ten are there."""
        with self.client.open_ledger(kept.ledger_id) as reader:
            found = [bytes(entry.data) for entry in reader.read()]
        if found != [kept.data(number) for number in range(10)]:
            raise WrongBytes(f"{kept.name}: {len(found)} entries, or other bytes")
