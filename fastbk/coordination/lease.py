"""Leases, locks and elections: one holder at a time, with a token that rises with each granting.

`tenure.py` has the rules (INV-K2, INV-K3), `records.py` the token's (INV-K1).

What a paused holder can still do: all that it does between its last check of the clock and the end of the pause. It
finds out that it lost the lease when it wakes, and not before. So whatever must not be changed by two holders has to
compare tokens: a stream does by `GuardedWriter`, a database by `... WHERE token <= 42`.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fastbk.coordination.records import (
    DATA_BYTES_MAX,
    DURATION_MS_MAX,
    DURATION_MS_MIN,
    HOLDER_CHARACTERS_MAX,
    LeaseRecord,
)
from fastbk.coordination.store import NamedRecord, Stored, new_key
from fastbk.coordination.tenure import (
    READ_SHARE,
    RENEW_SHARE,
    Claim,
    Stillness,
    Tenure,
    granted,
    may_take,
    released,
    renewed,
)
from fastbk.errors import (
    ConfigError,
    Error,
    LeaseBusy,
    LeaseLost,
    MetadataConflict,
    MetadataUnavailable,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import checked_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.stream.namespace.namespace import Namespace

_log = LibraryLog("fastbk.coordination")
DURATION_S = 10.0


class _Observer:
    """One observer of a lease: its record, and for how long its beat stood still."""

    def __init__(self, named: NamedRecord[LeaseRecord]) -> None:
        self._named = named
        self._stillness = Stillness()
        self._changed = asyncio.Event()
        self._end_watch: Callable[[], None] | None = None
        self._was_answered = False
        self.still_s = 0.0

    async def read(self) -> Stored[LeaseRecord] | None:
        """Return the record; None: metadata does not answer now. Raises MetadataUnavailable if it never did."""
        try:
            if self._end_watch is None:
                self._end_watch = await self._named.follow_change(self._changed.set)
            self._changed.clear()
            sent_s = time.monotonic()
            stored = await self._named.read()
        except MetadataUnavailable:
            if not self._was_answered:
                raise
            return None
        self._was_answered = True
        if stored.record is not None:
            self.still_s = self._stillness.update(stored.record, sent_s, time.monotonic())
        return stored

    async def wait(self, duration_ms: int, most_s: float) -> None:
        """Wait until the record changes, or the next read is due."""
        pause_s = min(READ_SHARE * duration_ms / 1000 * random.uniform(0.8, 1.0), most_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()

    def end(self) -> None:
        """End the watch."""
        if self._end_watch is not None:
            self._end_watch()


class Lease:
    """The right to do something alone, for a while that is renewed; `async with` takes it, and releases it at the end.

    `token` is its fencing token: each granting has a higher one. Before each act `check()` says whether the lease is
    still held by this process's clock. A paused holder can still do what it was about to do: whatever it acts on has
    to compare tokens. One object is one candidate; it may be taken again after its end.
    """

    _what = "lease"

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        *,
        duration: float = DURATION_S,
        holder: str | None = None,
        data: bytes = b"",
    ) -> None:
        """No I/O. Raises ConfigError.

        `duration`: seconds without a renewal after which others may take it, 0.5 to 3,600. `holder`: who this is, for
        people. `data`: what the others can read of the holder.
        """
        duration_ms = int(duration * 1000)
        if not DURATION_MS_MIN <= duration_ms <= DURATION_MS_MAX:
            raise ConfigError(f"duration={duration!r}: a lease lasts 0.5 to 3,600 seconds")
        self.holder = holder or f"{socket.gethostname()}-{os.getpid()}"
        if len(self.holder) > HOLDER_CHARACTERS_MAX or not self.holder.isprintable():
            raise ConfigError(
                f"holder: printable text of at most {HOLDER_CHARACTERS_MAX} characters"
            )
        if len(data) > DATA_BYTES_MAX:
            raise ConfigError(f"data: {len(data):,} bytes, of {DATA_BYTES_MAX:,} at most")
        self.data = bytes(data)
        self.token = 0
        """The token of the last granting; 0 before the first."""
        self._named = NamedRecord(namespace, name, LeaseRecord)
        self._duration_ms = duration_ms
        self._tenure = Tenure(duration_ms / 1000)
        self._key = ""
        self._held: tuple[LeaseRecord, Stored[LeaseRecord]] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._loss: LeaseLost | None = None
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        state = f"token {self.token}" if self.is_held else "not held"
        return f"<{type(self).__name__} {self._label}: {state}>"

    @property
    def name(self) -> str:
        """Its name in the namespace."""
        return self._named.name

    @property
    def _label(self) -> str:
        return f"{self._named.namespace.path}/{self.name}"

    @property
    def is_held(self) -> bool:
        """Whether this process may believe to have it, by its clock (INV-K3)."""
        return (
            self._held is not None and self._loss is None and self._tenure.is_held(time.monotonic())
        )

    def check(self) -> int:
        """Return the token, if the lease is held by this process's clock. Raises LeaseLost."""
        if self._held is not None and self._loss is None and not self.is_held:
            self._lose("it was not renewed in time")
        if self._loss is not None:
            raise self._loss.copy()
        if self._held is None:
            raise LeaseLost(f"{self._what} {self._label} is not taken")
        return self.token

    async def until_lost(self) -> LeaseLost:
        """Return once the lease is lost, with the reason. Raises LeaseLost if it is not taken, or is released."""
        if self._loss is None:
            self.check()
        await self._ended.wait()
        if self._loss is None:
            raise LeaseLost(f"{self._what} {self._label} was released")
        return self._loss.copy()  # type: ignore[return-value]

    # --- taking -------------------------------------------------------------------------------------------------

    async def acquire(self, *, timeout: float | None = None) -> int:
        """Wait until the lease is this candidate's; return its token.

        Raises LeaseBusy after `timeout` seconds (0: one try; None: as long as it takes), StreamNotFound, ConfigError,
        QuotaExceeded, MetadataUnavailable where metadata never answered.
        """
        checked_timeout(timeout)
        if self._key:
            raise ConfigError(
                f"{self._what} {self._label} is held, or waited for, by this object: make one for each candidate"
            )
        self._key = new_key()
        observer = _Observer(self._named)
        try:
            await self._end_former()
            self._loss = None
            self._ended.clear()
            self._named.renew_place()
            await self._take(observer, timeout)
        except BaseException:
            self._key = ""
            raise
        finally:
            observer.end()
        return self.token

    async def _take(self, observer: _Observer, timeout_s: float | None) -> None:
        claim = Claim(self._key, self.holder, self._duration_ms, self.data)
        end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        claimed: tuple[int | None, float] | None = None  # a version, and when it was claimed first
        while True:
            stored = await observer.read()
            record = None if stored is None else stored.record
            if stored is not None:
                if record is not None and record.key == self._key and claimed is not None:
                    return self._begin(record, stored, claimed[1])
                if may_take(record, observer.still_s):
                    if claimed is None or claimed[0] != stored.version:
                        claimed = stored.version, time.monotonic()
                    taken = granted(record, claim, stored.floor)
                    with suppress(MetadataConflict, MetadataUnavailable):
                        version = await self._named.change(stored, taken)
                        held = Stored(taken, version, stored.names, stored.names_version)
                        return self._begin(taken, held, claimed[1])
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise self._busy(record)
            await observer.wait(self._duration_ms if record is None else record.duration_ms, left_s)

    def _busy(self, record: LeaseRecord | None) -> LeaseBusy:
        by = f"{record.holder} has it" if record is not None and record.key else "others want it"
        return LeaseBusy(f"{self._what} {self._label} was not granted in the time given: {by}")

    def _begin(self, record: LeaseRecord, stored: Stored[LeaseRecord], sent_s: float) -> None:
        self.token = record.number
        self._tenure = Tenure(self._duration_ms / 1000)
        self._tenure.extend(sent_s)
        self._held = record, stored
        self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def renew(self) -> int:
        """Renew now, beside what is renewed in the background; return the token.

        When it returns, metadata has confirmed that no other had the lease up to this call. Raises LeaseLost,
        MetadataUnavailable.
        """
        self.check()
        await self._renew_once()
        return self.check()

    # --- keeping ------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Raise the beat again and again, until the lease is lost."""
        pause_s = RENEW_SHARE * self._tenure.duration_s
        while self._held is not None:
            left_s = self._tenure.until_s - time.monotonic()
            if left_s <= 0:
                return self._lose("it was not renewed in time")
            await asyncio.sleep(min(pause_s, left_s))
            if not self._tenure.is_held(time.monotonic()):
                continue
            try:
                async with asyncio.timeout(self._tenure.until_s - time.monotonic()):
                    await self._renew_once()
            except (MetadataUnavailable, TimeoutError):
                pause_s = RENEW_SHARE * self._tenure.duration_s / 4
            except Exception as error:  # noqa: BLE001 -- the namespace is gone, the client is closed
                return self._lose(str(error) or type(error).__name__)
            else:
                pause_s = RENEW_SHARE * self._tenure.duration_s

    async def _renew_once(self) -> None:
        while self._held is not None:
            record, stored = self._held
            sent_s = time.monotonic()
            after = renewed(record)
            try:
                version = await self._named.change(stored, after)
            except MetadataConflict:
                now = await self._named.read()
                if now.record is None or now.record.key != self._key:
                    return self._lose(_taken_by(now.record))
                self._held = now.record, now  # a renewal whose answer was lost: it may be old
                continue
            self._held = after, Stored(after, version, stored.names, stored.names_version)
            return self._tenure.extend(sent_s)
        return None

    def _lose(self, reason: str) -> None:
        if self._loss is None:
            self._loss = LeaseLost(
                f"{self._what} {self._label} with token {self.token} is lost: {reason}"
            )
            self._key = ""
            _log.warning("coordination.lease_lost", lease=self._label, reason=reason)
            self._ended.set()
            self._on_loss()

    def _on_loss(self) -> None:
        """Tell whoever has to stop."""

    # --- the end ------------------------------------------------------------------------------------------------

    async def release(self) -> None:
        """Give it back; the next holder need not wait. Where metadata does not answer, it ends by its duration."""
        self._key = ""
        self._ended.set()
        await self._end_former()

    async def _end_former(self) -> None:
        renewal, self._renewal = self._renewal, None
        if renewal is not None:
            renewal.cancel()
            await asyncio.wait([renewal])
        held, self._held = self._held, None
        if held is None:
            return
        record, stored = held
        with suppress(Error):  # also of one that was lost: nobody else may have it yet
            try:
                await self._named.change(stored, released(record))
            except MetadataConflict:
                now = await self._named.read()
                if now.record is not None and now.record.key == record.key:
                    await self._named.change(now, released(now.record))

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release()


def _taken_by(record: LeaseRecord | None) -> str:
    if record is None:
        return "it was deleted"
    return f"{record.holder} has it" if record.key else "it was released by somebody else"


async def release_lease(namespace: Namespace, name: str) -> str:
    """Take a lease away from its holder, who finds out at its next renewal; return who it was, "" if nobody had it.

    The next holder's token is higher, so what compares tokens is safe meanwhile. Raises ConfigError: there is none.
    """
    named = NamedRecord(namespace, name, LeaseRecord)
    retry = named.retry()
    while True:
        stored = await named.read()
        if stored.record is None:
            raise ConfigError(f"there is no lease {namespace.path}/{name}")
        if not stored.record.key:
            return ""
        try:
            await named.change(stored, released(stored.record))
        except MetadataConflict as error:
            await asyncio.sleep(retry.pause_s(error))
        else:
            return stored.record.holder


# --- locks ----------------------------------------------------------------------------------------


class Lock(Lease):
    """A lease for one block: `async with` waits for it, and the block is cancelled once it is lost (LeaseLost).

    A paused holder can still do what it was about to do, up to its next `await`: the block is cancelled when it wakes.
    Use `token` where that matters. Leaving the block raises LeaseLost, too, if the lock was lost meanwhile: then the
    block may not have been alone.
    """

    _what = "lock"
    _task: asyncio.Task[object] | None = None
    _is_cancelled = False

    async def __aenter__(self) -> Self:
        await self.acquire()
        self._task, self._is_cancelled = asyncio.current_task(), False
        return self

    def _on_loss(self) -> None:
        if self._task is not None:
            self._is_cancelled = True
            self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held is not None and self._loss is None and not self.is_held:
            self._task = None
            self._lose("it was not renewed in time")
        task, self._task = self._task, None
        is_ours = self._is_cancelled and task is not None and task.uncancel() == 0
        loss = self._loss
        try:
            await self.release()
        except asyncio.CancelledError:
            if not is_ours:
                raise
        if loss is not None and (kind is None or (is_ours and kind is asyncio.CancelledError)):
            raise loss.copy() from error


# --- elections ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as metadata has it: `data` is what the leader says of itself, such as its address."""

    token: int
    holder: str
    data: bytes


class Election(Lease):
    """One leader of several candidates; all others can read who it is. `async with` waits until this one leads.

    A paused leader believes to lead until it wakes, and can still do what it was about to do; the new leader has a
    higher token. A leader of a stream opens it by `GuardedWriter`, which fences the former one.
    """

    _what = "leadership"

    async def leader(self) -> Leader | None:
        """Return who leads, as metadata has it: it may be gone, or paused. None: nobody."""
        record = (await self._named.read()).record
        return None if record is None else _leader_of(record)

    async def follow(self) -> AsyncGenerator[Leader | None, None]:
        """Yield the leader now and after each change; None while nobody leads, or its beat stands still."""
        observer = _Observer(self._named)
        last: Leader | None = None
        is_first = True
        duration_ms = self._duration_ms
        try:
            while True:
                stored = await observer.read()
                if stored is not None:
                    record = stored.record
                    duration_ms = duration_ms if record is None else record.duration_ms
                    is_free = record is None or may_take(record, observer.still_s)
                    leader = None if record is None or is_free else _leader_of(record)
                    if is_first or leader != last:
                        is_first, last = False, leader
                        yield leader
                await observer.wait(duration_ms, float("inf"))
        finally:
            observer.end()


def _leader_of(record: LeaseRecord) -> Leader | None:
    return Leader(record.number, record.holder, record.data) if record.key else None
