"""The upgrade of a whole cluster: rolling restarts, and the format level that ends it.

`fastbk cluster roll` restarts the bookies of a cluster one failure domain after the other, by a command of the
operator's. `roll_plan.py` decides; `run_roll` observes the cluster and runs the command. `fastbk cluster finalize`
raises the format level (`fastbk.formats`), if every process that shows its version has it (`finalize`).
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.admin.cluster import bookie_states, marked, under_replicated
from fastbk.autorecovery.lost_bookies import HealingHold
from fastbk.autorecovery.state import WORKER_SILENT_S, ClusterState, clock_ms
from fastbk.client.known_bookies import LOCATION_PROPERTY
from fastbk.errors import ConfigError, Error, MetadataUnavailable, StorageError
from fastbk.formats import LEVEL_FIRST, LEVEL_MAX, LEVEL_PROPERTY
from fastbk.meta.api import BookieIdentity
from fastbk.meta.format_level import LevelRecord, raise_level, read_or_first
from fastbk.meta.placement_record import read_rules
from fastbk.meta.rollback import read_hold
from fastbk.placement.config import DEFAULT_LOCATION, valid_location
from fastbk.placement.rules import ClusterPlaces
from fastbk.upgrade.roll_plan import Action, Done, Observation, Restart, Roll, RollBookie, Stop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping

    from fastbk.admin.cluster import BookieState
    from fastbk.autorecovery.state import WorkerReport
    from fastbk.client import Client
    from fastbk.meta.api import BookieRegistration, BookieService
    from fastbk.model.ids import BookieId

LOOK_INTERVAL_S = 1.0
AWAY_S_MAX = 60.0
"""Metadata may be away for so long before the roll stops."""
HOLD_S = 1800.0
"""Healing is held for so long at a time: a roll that dies leaves no more than that behind."""
HOLD_REASON = "a rolling upgrade: `fastbk cluster roll`"
OUTPUT_BYTES_MAX = 4096
"""Maximum bytes of what the restart command printed last."""
OUTPUT_WAIT_S = 1.0
PLACEHOLDER = "{bookie}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOptions:
    """How a roll is done.

    Attributes:
        command: for a shell; `{bookie}` stands for the id, quoted.
        command_s: how long one run of it may take.
        verify: ask every bookie what it holds; False: go by marks alone, which costs little in large clusters.
    """

    command: str
    command_s: float = 300.0
    verify: bool = True

    def __post_init__(self) -> None:
        if PLACEHOLDER not in self.command:
            raise ConfigError(
                f"--restart {self.command!r}: write {PLACEHOLDER} where the bookie's id belongs,"
                f" as in --restart 'ssh {PLACEHOLDER} systemctl restart fastbk-bookie'"
            )


@dataclass(slots=True)
class RollReport:
    """What a roll has done. `seconds`: bookie -> from its restart to the next step, or the end."""

    restarted: list[BookieId] = field(default_factory=list)
    seconds: dict[BookieId, float] = field(default_factory=dict)
    stopped: str = ""
    next_from: str = ""


async def read_bookies(client: Client) -> dict[BookieId, RollBookie]:
    """Return all bookies as they are now. Raises Error."""
    identities = await client.call_store(lambda store: store.list_identities())
    starts = {
        identity.bookie_id: identity.starts
        for identity in identities
        if isinstance(identity, BookieIdentity)
    }
    states = await bookie_states(client, identities)
    places = ClusterPlaces(await client.call_store(read_rules))
    return {
        state.bookie_id: _roll_bookie(state, starts.get(state.bookie_id), places)
        for state in states
    }


def _roll_bookie(state: BookieState, starts: int | None, places: ClusterPlaces) -> RollBookie:
    # An address is a host and a port, and so is the id of one of Apache's bookies that is away.
    host = (state.address or state.bookie_id).rpartition(":")[0]
    location = (
        places.location_of(state.bookie_id, host)
        or valid_location(state.properties.get(LOCATION_PROPERTY, ""))
        or DEFAULT_LOCATION
    )
    version = "" if state.info is None else state.info.software.removeprefix("fastbk ")
    return RollBookie(state.bookie_id, location, state.state, state.reason, version, starts)


async def run_roll(
    client: Client,
    roll: Roll,
    options: RollOptions,
    say: Callable[[str], None] = lambda text: None,
) -> RollReport:
    """Do all steps, or stop at the first doubt; `say` gets a line now and then. Healing is held meanwhile.

    Raises Error where the first look fails; later that is a doubt.
    """
    report, runner = RollReport(), _Runner(client, roll, options, say)
    state = ClusterState(client.records)
    await read_bookies(client)
    try:
        await runner.run(report, state)
    finally:
        with suppress(Error):  # the hold ends by itself
            await state.hold.change(
                lambda hold: HealingHold() if hold.reason == HOLD_REASON else hold
            )
    return report


class _Runner:
    def __init__(
        self, client: Client, roll: Roll, options: RollOptions, say: Callable[[str], None]
    ) -> None:
        self._client = client
        self._roll = roll
        self._options = options
        self._say = say
        self._said = ""
        self._looked_s = time.monotonic()

    async def run(self, report: RollReport, state: ClusterState) -> None:
        began: dict[BookieId, float] = {}
        while True:
            action = await self._next(state)
            now_s = time.monotonic()
            if isinstance(action, Restart | Done):
                report.seconds |= {one: round(now_s - since_s, 1) for one, since_s in began.items()}
                began = {}
            match action:
                case Done():
                    return
                case Stop(reason, next_from):
                    report.stopped, report.next_from = reason, next_from
                    return
                case Restart(bookies):
                    began = dict.fromkeys(bookies, now_s)
                    reason = await self._restart(bookies)
                    report.restarted += bookies
                    if reason:
                        stop = self._roll.failed(reason)
                        report.stopped, report.next_from = stop.reason, stop.next_from
                        return
                    self._roll.restarted(time.monotonic())
                case _:
                    if action.reason != self._said:
                        self._said = action.reason
                        self._say(action.reason)
                    await asyncio.sleep(LOOK_INTERVAL_S)

    async def _next(self, state: ClusterState) -> Action:
        """Look at the cluster and decide. An outage of metadata is a doubt once it lasts."""
        while True:
            try:
                await self._hold(state)
                seen = await self._seen()
            except Error as error:
                away_s = time.monotonic() - self._looked_s
                if not isinstance(error, MetadataUnavailable) or away_s >= AWAY_S_MAX:
                    return self._roll.failed(f"the cluster cannot be looked at: {error}")
                await asyncio.sleep(LOOK_INTERVAL_S)
                continue
            self._looked_s = time.monotonic()
            return self._roll.decide(seen, self._looked_s)

    async def _hold(self, state: ClusterState) -> None:
        """Hold healing on; a hold of the operator's own stays until it is over."""
        now_ms = clock_ms()
        until_ms = now_ms + int(HOLD_S * 1000)

        def decide(hold: HealingHold) -> HealingHold:
            left_s = hold.left_s(now_ms)
            if left_s and (hold.reason != HOLD_REASON or left_s >= HOLD_S / 2):
                return hold
            return HealingHold(until_ms, HOLD_REASON)

        await state.hold.change(decide)

    async def _seen(self) -> Observation:
        hold = await self._client.call_store(read_hold)
        if hold is not None:
            return Observation(
                {}, doubt=f"metadata is on hold: {hold}; see `fastbk metadata status`"
            )
        bookies = await read_bookies(self._client)
        if not self._roll.wants_missing:
            return Observation(bookies)
        return Observation(bookies, await self._missing(self._roll.may_miss))

    async def _missing(self, may_miss: Collection[BookieId]) -> str | None:
        """Return one copy that is missing, "" if none is, None if the check took too long: it is begun anew."""
        check = under_replicated(self._client) if self._options.verify else marked(self._client)
        try:
            async with asyncio.timeout(self._roll.limits.whole_s), aclosing(check) as found:
                async for one in found:
                    if one.bookie_id not in may_miss:
                        return f"ledger {one.ledger_id} on {one.bookie_id}: {one.reason}{await self._who_heals()}"
        except TimeoutError:
            return f"the check of all ledgers took more than {self._roll.limits.whole_s:g} s: give --check marks"
        return ""

    async def _who_heals(self) -> str:
        """Return what to do where nobody copies what is missing; "": AutoRecovery does."""
        silent_ms = clock_ms() - WORKER_SILENT_S * 1000
        workers = await ClusterState(self._client.records).workers()
        if any(worker.report_ms > silent_ms for worker in workers.values()):
            return ""
        return "; no `fastbk autorecovery` runs, so that only writers bring copies back: start one"

    # --- the command ----------------------------------------------------------------------------------------------

    async def _restart(self, bookies: tuple[BookieId, ...]) -> str:
        """Run the command for each bookie at once; return why it failed, "" if it did not."""
        self._say(f"restarting {', '.join(bookies)}")
        # Not a task group: of several interruptions that hands on the first one only.
        ended = await asyncio.gather(*map(self._run_command, bookies), return_exceptions=True)
        reasons: list[str] = []
        for one in ended:
            if isinstance(one, BaseException):
                raise one
            reasons += [one] if one else []
        return "; ".join(reasons)

    async def _run_command(self, bookie_id: BookieId) -> str:
        command = self._options.command.replace(PLACEHOLDER, shlex.quote(bookie_id))
        async with _last_output() as (output, descriptor):
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
            )  # fmt: skip
            if not await self._has_ended(process, bookie_id):
                limit = f"{self._options.command_s:g} s"
                return f"the restart command of {bookie_id} did not end within {limit}: {command}"
        if process.returncode == 0:
            return ""
        said = " ".join(bytes(output).decode(errors="replace").split()) or "it printed nothing"
        return f"the restart command of {bookie_id} ended with {process.returncode}: {said}"

    async def _has_ended(self, process: asyncio.subprocess.Process, bookie_id: BookieId) -> bool:
        """Wait for the command's end, and kill it after its time; return whether it ended by itself.

        A roll that is interrupted waits, too: half of a restart leaves a bookie stopped. The second interruption kills.
        """
        end = asyncio.create_task(process.wait())
        try:
            try:
                await asyncio.wait((end,), timeout=self._options.command_s)
            except asyncio.CancelledError:
                if not end.done():
                    self._say(
                        f"waiting for the restart command of {bookie_id} to end; Ctrl-C again kills it"
                    )
                await asyncio.wait((end,), timeout=self._options.command_s)
                raise
            return end.done()
        finally:
            if not end.done():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await end


@asynccontextmanager
async def _last_output() -> AsyncIterator[tuple[bytearray, int]]:
    """Yield what is read last, and a descriptor to write to; whoever keeps that is waited for a moment, no longer.

    A pipe of our own: `Process.wait` waits for the end of its pipes, and a bookie that the command started has them.
    """
    kept, (reading, writing) = bytearray(), os.pipe()
    ended = asyncio.Event()
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(reading, OUTPUT_BYTES_MAX)
        kept.extend(data)
        del kept[:-OUTPUT_BYTES_MAX]
        if not data:
            loop.remove_reader(reading)
            ended.set()

    loop.add_reader(reading, read)
    try:
        yield kept, writing
        os.close(writing)
        writing = -1
        with suppress(TimeoutError):
            async with asyncio.timeout(OUTPUT_WAIT_S):
                await ended.wait()
    finally:
        loop.remove_reader(reading)
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def check_roll(bookies: Collection[RollBookie]) -> None:
    """Raise StorageError where there is nothing that could be rolled."""
    if not any(bookie.starts is not None for bookie in bookies):
        raise StorageError(
            "the cluster has no bookie of fastbk's: Apache's are restarted by Apache's tools"
        )


class NotReady(Error):
    """The cluster's level cannot be raised now; `reasons` has a line for each process that stands in the way."""

    def __init__(self, text: str, reasons: tuple[str, ...]) -> None:
        super().__init__(text)
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Finalization:
    """What `check` found. `reasons`: why the level may not be raised; empty: it may."""

    record: LevelRecord
    bookies: int
    reasons: tuple[str, ...]


def level_of(service: BookieService) -> int:
    """Return the highest level that a registered bookie has; Apache's and those of 0.1 say nothing."""
    text = service.properties.get(LEVEL_PROPERTY, "")
    return int(text) if text.isascii() and text.isdigit() else LEVEL_FIRST


def reasons_against(
    level: int,
    registered: Iterable[BookieRegistration],
    known: Iterable[BookieId],
    workers: Mapping[str, WorkerReport],
    now_ms: int,
) -> tuple[str, ...]:
    """Return why a cluster may not be finalized at a level: a line for each process that lacks it, or may.

    Args:
        level: the one to be.
        registered: the bookies that are up.
        known: bookies that have an identity: one that is down may be of an older version.
        workers: the last reports of AutoRecovery's workers; those that are silent for `WORKER_SILENT_S` do not count.
        now_ms: in ms since 1970.
    """
    services = {one.service.bookie_id: one.service for one in registered}
    reasons = []
    for bookie_id, service in sorted(services.items()):
        if (has := level_of(service)) < level:
            version = service.properties.get("version", "0.1 or Apache's")
            reasons.append(
                f"bookie {bookie_id} has levels up to {has} (version {version}): upgrade it"
            )
    reasons += [
        f"bookie {one} is down, and may be of an older version: start it, or forget it (`fastbk cluster cookies`)"
        for one in sorted(set(known) - services.keys())
    ]
    reasons += [
        f"autorecovery {name} has levels up to {worker.format_level}: upgrade it"
        for name, worker in sorted(workers.items())
        if worker.format_level < level and now_ms - worker.report_ms < WORKER_SILENT_S * 1000
    ]
    return tuple(reasons) if services else ("no bookie is registered", *reasons)


async def check(client: Client) -> Finalization:
    """Look whether the cluster may be finalized at `LEVEL_MAX`; changes nothing. Raises Error."""
    record, registered, identities = await client.call_store(
        lambda store: (read_or_first(store), store.list_bookies(), store.list_identities())
    )
    known = [identity.bookie_id for identity in identities]
    workers = await ClusterState(client.records).workers()
    reasons = reasons_against(LEVEL_MAX, registered, known, workers, clock_ms())
    return Finalization(record, len(registered), () if record.level >= LEVEL_MAX else reasons)


async def finalize(client: Client) -> LevelRecord:
    """Raise the cluster's level to `LEVEL_MAX` (INV-U2); nothing happens if it has that. Raises NotReady, Error."""
    found = await check(client)
    if found.reasons:
        text = f"the cluster stays at format level {found.record.level}: {'; '.join(found.reasons)}"
        raise NotReady(text, found.reasons)
    return await client.call_store(lambda store: raise_level(store, LEVEL_MAX))
