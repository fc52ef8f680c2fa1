"""The blocking reader of one ledger: sockets around the read machines. Made by `fastbk.sync.Client`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TypeAlias

from fastbk.client.blocking import Owner
from fastbk.client.connection import Answer
from fastbk.client.entries import Batch, Entry
from fastbk.client.lac import hear_lac, proven_lacs
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    Error,
    NoSuchEntry,
    NotEnoughBookies,
    QuorumTimeout,
)
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.native import client_codec as codec
from fastbk.replication.read_machine import LacMachine, Patience, ReadMachine, ReadRequest
from fastbk.wire.statuses import Status, status_name

Found: TypeAlias = list[tuple[EntryId, EntryId, memoryview]]

_AVOID_S = 5.0
_TRY_S_MIN = 0.25


class LedgerReader:
    """Reads one ledger; made by `Client.open_ledger`. The rules are the asyncio reader's."""

    def __init__(
        self,
        client: Owner,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        password: bytes,
        digest_type: DigestType,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self._client = client
        self._config = client.config
        self._password = password
        self._codec = codec.LedgerCodec(ledger_id, digest_type, password)
        self._lac: EntryId = metadata.last_entry_id
        self._avoid: dict[BookieId, float] = {}
        self._prefer = random.randrange(1 << 16)
        self._replicas_skipped = 0
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as far as this reader knows."""
        return self.metadata.is_closed

    @property
    def last_known(self) -> EntryId:
        """The highest entry that this reader knows to be acknowledged; no I/O."""
        return self._lac

    def last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask the bookies for the last acknowledged entry, -1 if there is none."""
        self._check()
        if self.metadata.is_closed:
            return self._lac
        limit_s = self._config.read_timeout if timeout is None else timeout
        end_s = time.monotonic() + limit_s
        patience = Patience(self._config.backoff_min, self._config.backoff_max, end_s)
        heard: dict[BookieId, Answer | Error | None] = {}
        while True:
            machine = self._ask_lacs(heard, max(0.001, end_s - time.monotonic()))
            if machine.is_covered:
                break
            said = dict(machine.said)
            pause_s = patience.pause_s(machine, time.monotonic())
            if pause_s is None:
                raise NotEnoughBookies(
                    f"ledger {self.ledger_id}: too few bookies told their LAC; try again",
                    ledger_id=self.ledger_id,
                    replicas=said,
                )
            for bookie_id in machine.unheard:
                heard.pop(bookie_id, None)
            time.sleep(pause_s * random.uniform(0.75, 1.0))
            self._check()
        self._lac = max(self._lac, machine.last_add_confirmed)
        return self._lac

    def _ask_lacs(
        self, heard: dict[BookieId, Answer | Error | None], timeout_s: float
    ) -> LacMachine:
        """Ask those that are not in `heard`, put what they say there, and return what all of it proves."""
        asked = [one for one in self.metadata.fragments[-1].ensemble if one not in heard]
        with self._client.turn() as reactor:
            answers = reactor.ask_all(
                asked,
                lambda request_id: codec.put_read_lac(request_id, self.ledger_id, -1),
                timeout_s,
                is_enough=lambda new: self._lac_machine({**heard, **new}).is_covered,
            )
        heard.update(zip(asked, answers, strict=True))
        return self._lac_machine(heard)

    def _lac_machine(self, heard: Mapping[BookieId, Answer | Error | None]) -> LacMachine:
        machine = LacMachine(self.metadata)
        for bookie_id, answer in heard.items():
            if answer is None:
                continue
            if isinstance(answer, Error):
                machine.unreached(bookie_id, answer)
            else:
                hear_lac(machine, bookie_id, answer, self._codec, self._password)
        return machine

    def read(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Entry]:
        """Yield the entries first..last in order; `last` None: up to the last acknowledged one known now."""
        for batch in self.read_batches(first, last):
            yield from batch

    def read_batches(self, first: EntryId = 0, last: EntryId | None = None) -> Iterator[Batch]:
        """Like `read`, a Batch of consecutive entries at a time."""
        self._check()
        if first < 0 or (last is not None and last < first):
            raise ConfigError(f"entries {first}..{last}: must be 0 or above and ascend")
        known = self._lac
        if (last is None or last > known) and not self.metadata.is_closed:
            known = self.last_add_confirmed()
        if last is not None and last > known:
            raise NoSuchEntry(
                f"ledger {self.ledger_id}: entry {last} is beyond the last acknowledged one, {known};"
                " wait for it with tail(), or use read_unconfirmed()",
                ledger_id=self.ledger_id,
                entry_id=last,
            )
        machine = self._machine(first, known if last is None else last)
        while found := self._next(machine):
            yield Batch(self.ledger_id, found)

    def _machine(self, first: EntryId, last: EntryId) -> ReadMachine:
        now_s = time.monotonic()
        avoid = [bookie for bookie, until_s in self._avoid.items() if until_s > now_s]
        return ReadMachine(
            self.ledger_id, self.metadata, first, last, prefer=self._prefer, avoid=avoid
        )

    def _next(self, machine: ReadMachine, timeout: float | None = None) -> Found:
        limit_s = self._config.read_timeout if timeout is None else timeout
        end_s = time.monotonic() + limit_s
        patience = Patience(self._config.backoff_min, self._config.backoff_max, end_s)
        while True:
            while (request := machine.next_request()) is not None:
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise QuorumTimeout(
                        f"ledger {self.ledger_id}: entry {machine.position} was not read within {limit_s:g} s",
                        ledger_id=self.ledger_id,
                        entry_id=machine.position,
                        outcome="not_written",
                    )
                share_s = max(_TRY_S_MIN, left_s / (self.metadata.write_quorum + 1))
                found = self._ask(machine, request, min(left_s, share_s))
                if found:
                    return found
            error = machine.error
            if error is None:
                return []
            pause_s = patience.pause_s(machine, time.monotonic())
            if pause_s is None:
                raise error
            time.sleep(pause_s * random.uniform(0.75, 1.0))
            self._check()

    def _ask(self, machine: ReadMachine, request: ReadRequest, timeout_s: float) -> Found:
        config = self._config
        try:
            with self._client.turn() as reactor:
                answer = reactor.ask(
                    request.bookie_id,
                    lambda request_id: codec.put_read_batch(
                        request_id,
                        self.ledger_id,
                        request.first,
                        request.last,
                        config.read_batch_entries,
                        config.read_batch_bytes,
                    ),
                    timeout_s,
                )
        except ClientClosed:
            raise
        except Error as error:
            self._avoid[request.bookie_id] = time.monotonic() + _AVOID_S
            machine.unreached(request.bookie_id, error)
            return []
        if answer.status != Status.OK:
            machine.refused(request.bookie_id, answer.status)
            return []
        found = self._codec.check_entries(answer.entries, answer.extra)
        taken = machine.answered(
            request.bookie_id,
            [one[0] for one in found],
            request.last,
            damaged=len(found) < len(answer.extra) // 4,
        )
        self._replicas_skipped += machine.replicas_skipped
        machine.replicas_skipped = 0
        if taken:
            self._lac = max(self._lac, found[taken - 1][1])
        return found[:taken]

    def read_unconfirmed(
        self, first: EntryId, last: EntryId, *, timeout: float | None = None
    ) -> list[Entry]:
        """Return the entries first..last that bookies hold, up to the first that is missing."""
        self._check()
        if not 0 <= first <= last:
            raise ConfigError(f"entries {first}..{last}: must be 0 or above and ascend")
        entries: list[Entry] = []
        machine = self._machine(first, last)
        try:
            while found := self._next(machine, timeout):
                entries += [Entry(self.ledger_id, entry_id, data) for entry_id, _, data in found]
        except NoSuchEntry:
            pass
        return entries

    def tail(self, first: EntryId = 0) -> Iterator[Entry]:
        """Yield entries from `first` on as they are acknowledged; ends after the last one of a closed ledger."""
        position, turn = first, self._prefer
        heard_s = time.monotonic()
        while True:
            self._check()
            if self._lac >= position:
                for entry in self.read(position, self._lac):
                    position = entry.entry_id + 1
                    yield entry
                heard_s = time.monotonic()
            if self.metadata.is_closed:
                if self._lac < position:
                    return
                continue
            reason = self._poll(position, turn)
            if reason is None:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > self._config.read_timeout:
                raise NotEnoughBookies(
                    f"ledger {self.ledger_id}: no bookie answered the tailing reader: {reason}",
                    ledger_id=self.ledger_id,
                    entry_id=position,
                )
            if self._lac < position:
                turn += 1
                if reason is not None:
                    time.sleep(self._config.backoff_min)
                with self._client.turn():
                    self.metadata = self._client.store().read_ledger(self.ledger_id).metadata
                if self.metadata.is_closed:
                    self._lac = self.metadata.last_entry_id

    def _poll(self, position: EntryId, turn: int) -> str | None:
        """Wait at one bookie for the LAC to reach `position`; return why it failed."""
        ensemble = self.metadata.fragments[-1].ensemble
        bookie_id = ensemble[turn % len(ensemble)]
        # Other callers of this client wait meanwhile, so the polls are short.
        wait_s = min(self._config.poll_interval, 0.1)
        try:
            with self._client.turn() as reactor:
                answer = reactor.ask(
                    bookie_id,
                    lambda request_id: codec.put_read_lac(
                        request_id, self.ledger_id, position - 1, int(wait_s * 1000)
                    ),
                    wait_s + self._config.read_timeout,
                )
        except ClientClosed:
            raise
        except Error as error:
            return f"{bookie_id}: {error}"
        if answer.status in (Status.NO_LEDGER, Status.NO_ENTRY):
            time.sleep(self._config.backoff_min)
            return None
        if answer.status != Status.OK:
            return f"{bookie_id}: {status_name(answer.status)}"
        lacs, _ = proven_lacs(answer, self._codec, self._password)
        self._lac = max([self._lac, *lacs])
        return None

    def stats(self) -> dict[str, int]:
        """Return this reader's figures."""
        return {"last_known": self._lac, "replicas_skipped": self._replicas_skipped}

    def _check(self) -> None:
        if self._closed:
            raise ClientClosed(
                "this reader is closed: open the ledger again", ledger_id=self.ledger_id
            )

    def close(self) -> None:
        """Take no more calls."""
        self._closed = True

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
