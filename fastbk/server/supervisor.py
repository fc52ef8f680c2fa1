"""The bookie's supervisor: owns configuration, directories, identity, port and registration; no data path.

A *boot* is one life of all children, with an epoch and shared memory of its own; `boot_order` has its
steps. When a child dies, the supervisor ends the others, and the next boot replays the journal, which
has all acknowledged entries. When children die again and again, it boots without journal and gc:
the bookie serves reads only. After a pause that grows it tries a whole boot again. If the boot
for reads fails too, no process runs until then.

Decision 11.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from fastbk.errors import Error
from fastbk.native.process import kill_point
from fastbk.observe import library_log, logs
from fastbk.observe.event_log import EventLog, events_path
from fastbk.observe.prometheus import ProcessUsage, usage_lines
from fastbk.observe.systemd import Systemd, keep_alive
from fastbk.retry import Backoff
from fastbk.security.audit_log import AuditLog
from fastbk.server.admin.metrics import Metrics
from fastbk.server.disks.disk_reports import DiskReports, DiskWait, UsedDirectory
from fastbk.server.disks.space_thresholds import reserve_bytes
from fastbk.server.faults import FAULTS_TAKEN
from fastbk.server.supervision.boot_order import (
    BootOrder,
    ChildDied,
    ChildEvents,
    Facts,
    Lifeline,
    StopRequested,
)
from fastbk.server.supervision.claim import Claim, lock_directories, new_epoch
from fastbk.server.supervision.http_pages import HttpPages
from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget, Restarts, State
from fastbk.server.supervision.metadata_services import MetadataServices
from fastbk.server.supervision.monitor import Monitor
from fastbk.server.supervision.operator_requests import GcAdmin, LogLevel, ReadOnlyAdmin
from fastbk.server.supervision.registration import Membership, endpoints
from fastbk.server.supervision.spawn import Boot
from fastbk.server.supervision.unclean_start import end_life

if TYPE_CHECKING:
    import contextlib
    import socket
    from collections.abc import Callable

    from fastbk.apache.http.answers import BookieFacts
    from fastbk.server.configuration.bookie_config import BookieConfig, Replayed

READ_ONLY_POLL_S = 0.5
DISK_IS_BACK = "a disk is back: the journal starts again"
TRY_AGAIN = "the pause after a crash loop is over: the bookie tries to take writes again"
ORPHAN_DRAIN_MS = (
    3_000  # a clean stop when whoever started us is gone: a successor may wait already
)


class Supervisor:
    """One bookie's life, from locked directories to the last child's end."""

    def __init__(
        self,
        config: BookieConfig,
        lifeline: socket.socket | None = None,
        claim: Claim | None = None,
        events: EventLog | None = None,
        *,
        accept_data_loss: bool = False,
    ) -> None:
        """`lifeline`: a SOCK_SEQPACKET socket of whoever started us; told of each change, its end stops us.
        `claim`: what was taken already for this configuration; None: `run` waits for it.
        `events`: what records the log of this process; None: one that begins here.
        `accept_data_loss`: see `fastbk.server.identity.settle`.
        """
        library_log.forward()
        self._config = config
        self._claim = claim
        self._accept_data_loss = accept_data_loss
        self._lifeline = Lifeline(lifeline, lambda: self._ready_boot)
        self._systemd = SystemdStates()
        self._life = Lifecycle(time.monotonic(), self._systemd.changed)
        budget = RestartBudget(config.bookie.restarts_max, config.bookie.restarts_window_s)
        pauses = Backoff(
            config.bookie.crash_loop_pause_min_ms / 1e3, config.bookie.crash_loop_pause_max_ms / 1e3
        )
        self._restarts = Restarts(budget, pauses)
        self._metrics = Metrics(self._life, budget, config.metrics.names)
        self._disks = DiskReports(self._life)
        self._gc = GcAdmin(lambda: self._ready_boot)
        self._audit = AuditLog(config.audit)
        self._events = events or EventLog("", "supervisor")
        self._read_only_admin = ReadOnlyAdmin(config, lambda: self._ready_boot)
        self._monitor = Monitor(self._life, config.limits)
        for source in (self._disks, self._monitor, self._audit, self._events):
            self._metrics.add_source(source.metric_lines)
        self._usage = ProcessUsage(os.getpid())
        self._metrics.add_source(self._usage_lines)
        self._stop_reason: str | None = None
        self._stop_asked = asyncio.Event()
        self._pages = HttpPages()
        self._watch: ChildEvents | None = None
        self._boot: Boot | None = None
        self._ready_boot: Boot | None = None
        """The same, from the time on when its children are ready."""
        self._epoch = 0
        self._no_journal_reason = ""
        """Why this boot has no journal and serves reads only; empty when it has one."""

    async def run(self) -> int:
        """Serve until asked to stop; return the exit code. Raises Error for what only a person can mend."""
        loop = self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, signal.Signals(number).name)
        self._lifeline.watch(lambda: self.stop("whoever started this bookie is gone"))
        async with contextlib.AsyncExitStack() as stack:
            watchdog = self._monitor.watchdog
            await self._systemd.begin(stack, lambda: not watchdog.is_data_frozen)
            if (claim := self._claim) is None:
                claim = self._claim = Claim(
                    self._config, await asyncio.to_thread(lock_directories, self._config)
                )
            stack.callback(claim.close)
            self._guard = claim.guard
            await asyncio.to_thread(self._read_only_admin.load)
            await self._audit.begin(stack)
            self._disk_wait = DiskWait(
                [
                    UsedDirectory(of.role, of.pair, str(lock.directory), lock.descriptor)
                    for of, lock in claim.locks.items()
                ],
                poll_s=self._config.disk.near_check_interval_ms / 1e3,
                reserve_bytes=reserve_bytes(self._config.journal),
                note=self._life.note,
                tell=self._disks.put,
            )
            self._bookie_id = self._config.bookie.id or f"{self._guard.host}:{self._guard.port}"
            logs.bind(bookie_id=self._bookie_id)
            self._events.source = self._bookie_id
            path = events_path(self._config.ledgers.all_directories[0])
            await asyncio.to_thread(self._events.open, path, may_make=False)
            await self._pages.bind(self._config, stack)
            self._membership = Membership(
                self._config,
                endpoints(self._config, self._guard.host, self._guard.port, self._pages.port),
                lambda reason: self._life.note("metadata", reason, "metadata"),
                on_hold=self._life.metadata_held,
                on_level=self._level_rose,
                listed_id=lambda: self._gc.listed_id,
                on_unclean_start=self._life.began_unclean,
                accept_data_loss=self._accept_data_loss,
            )
            stack.push_async_callback(self._membership.close)
            self._services = MetadataServices(
                self._membership, self._config.authentication, lambda: self._boot
            )
            stack.push_async_callback(self._services.close)
            slow = self._monitor.slow.answer
            self._pages.begin(stack, self._facts, self._info, slow, self._events)
            return await self._boot_until_stopped()

    def _facts(self) -> BookieFacts:
        from fastbk.apache.http.answers import BookieFacts  # imported with the pages

        return BookieFacts(
            config=self._config, bookie_id=self._bookie_id, life=self._life, metrics=self._metrics, disks=self._disks,
            gc=self._gc, read_only=self._read_only_admin, set_read_only=self._ask_read_only, audit=self._audit.note,
            cluster_id=lambda: self._membership.cluster_id, log_level=LogLevel(lambda: self._boot),
        )  # fmt: skip

    def stop(self, reason: str) -> None:
        """Begin to drain; asked a second time, kill at once (acknowledged data is safe either way)."""
        if self._stop_reason is not None:
            if self._boot is not None:
                logs.warning("bookie.killed", reason=reason)
                for child in self._boot.children.values():
                    child.kill()
            return
        self._stop_reason = reason
        logs.info("bookie.asked_to_stop", reason=reason)
        self._stop_asked.set()
        if self._watch is not None:
            self._watch.stop(reason)

    async def _boot_until_stopped(self) -> int:
        """Boot until asked to stop. Raises Error for what only a person can mend."""
        while self._stop_reason is None:
            if self._epoch:  # a first start says itself what is wrong, and ends
                await self._disk_wait.wait(self._stop_asked)
                if self._stop_asked.is_set():
                    break
            try:
                await self._boot_once()
            except ChildDied as error:
                was_serving = self._life.state in (State.WRITABLE, State.READ_ONLY)
                self._life.go(State.STARTING, str(error), time.monotonic())
                self._membership.mark_not_writable()
                kill_point("supervisor.before_restart")
                self._lifeline.send({"type": "down", "reason": str(error)})
                pause_s = await self._pause_after_death(error, was_serving=was_serving)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._stop_asked.wait()
                if self._restarts.is_down:
                    self._try_again()
            except StopRequested:
                pass
            except Error as error:
                if not self._stop_asked.is_set():
                    raise
                # Metadata that does not answer, as a rule: nothing was served, and nobody waits for it any more.
                logs.warning("bookie.start_cut_off", reason=str(error))
        logs.info("bookie.stopped", reason=self._stop_reason)
        return 0

    async def _boot_once(self) -> None:
        """Start, serve and drain once. Raises ChildDied, StopRequested, Error."""
        assert self._claim is not None, "`run` has the claim"
        no_journal = self._restarts.reads_only_reason or self._disk_wait.no_journal_reason
        self._no_journal_reason = no_journal
        boot = self._new_boot(self._claim)
        self._boot, self._epoch = boot, boot.epoch
        self._watch = watch = ChildEvents(boot)
        kill_point("supervisor.after_spawn")
        self._lifeline.send({"type": "starting", "epoch": self._epoch, "pids": self.pids()})
        try:
            # The children import meanwhile; what they say waits in the queue.
            service = await self._membership.join(self._bookie_id)
            self._claim.is_settled = True
            await asyncio.to_thread(self._events.open)  # the directory is ours for certain
            self._pages.settled.set()
            facts = Facts(
                bookie_id=self._bookie_id,
                incarnation=service.incarnation,
                host=self._guard.host,
                port=self._guard.port,
                shards=self._membership.shards,
                cluster_id=self._membership.cluster_id,
                reads_only_reason=no_journal,
                is_limbo_listed=self._membership.is_limbo_listed,
                refuses_adds=bool(self._read_only_admin.reason),
                format_level=self._life.format_level,
            )
            self._life.go(State.REPLAYING, "replaying the journal", time.monotonic())
            told = {
                "disk": self._disks.take_message,
                "gc_status": self._gc.take_status,
                "audit": self._audit.take,
                FAULTS_TAKEN: self._lifeline.faults.taken,
            }
            asked = {"event": self._events.take_message, **self._services.handlers}
            sequence = BootOrder(boot, watch, self._config, facts, told, asked)
            if self._stop_reason is not None:
                raise StopRequested
            kill_point("supervisor.before_start")
            replayed = await sequence.start()
            self._ready_boot = boot
            for part in (self._gc, self._read_only_admin, self._lifeline.faults):
                part.boot_is_ready()
            self._send_level()
            self._metrics.attach(boot.statistics_segments())
            kill_point("supervisor.before_ready")
            await self._pages.opened()
            refuses = no_journal or self._read_only_admin.reason
            await self._membership.announce(
                writable=not refuses, properties=sequence.properties, reads_only_reason=refuses
            )
            kill_point("supervisor.after_announce")
            state = State.READ_ONLY if refuses else State.WRITABLE
            self._life.go(state, refuses or "serving", time.monotonic())
            self._restarts.serves(time.monotonic())
            self._say_ready(sequence, replayed, time.monotonic() - boot.began_s)
            await self._serve(sequence, boot)
        finally:
            self._watch = self._boot = self._ready_boot = None
            self._services.boot_is_over()
            self._metrics.detach()
            watch.close()
            await asyncio.to_thread(boot.close)

    def _new_boot(self, claim: Claim) -> Boot:
        if (boot := claim.take_first_boot()) is None:
            is_reads_only = bool(self._no_journal_reason)
            epoch = new_epoch(self._epoch)
            return Boot(
                self._config, self._guard, claim.descriptors, epoch, is_reads_only=is_reads_only
            )
        try:
            boot.spawn_others()
        except BaseException:
            boot.close()
            raise
        return boot

    def _say_ready(self, sequence: BootOrder, replayed: list[Replayed], seconds: float) -> None:
        logs.info(
            "bookie.started",
            port=self._guard.port,
            http_port=self._pages.port,
            seconds=round(seconds, 3),
            replayed_batches=sum(each.batches for each in replayed),
            replayed_bytes=sum(each.bytes for each in replayed),
            damage=sum(len(each.damage) for each in replayed),
            **sequence.properties,
        )
        self._lifeline.send(
            {
                "type": "ready",
                "bookie_id": self._bookie_id,
                "host": self._guard.host,
                "port": self._guard.port,
                "http_port": self._pages.port,
                "epoch": self._epoch,
                "seconds": round(seconds, 3),
                "pids": self.pids(),
                "reads_only": self._no_journal_reason,
            }
        )

    async def _serve(self, sequence: BootOrder, boot: Boot) -> None:
        """Serve until asked to stop, then drain. Raises ChildDied."""
        beside = [self._follow_disks(), self._monitor.run(boot)]
        tasks = [asyncio.create_task(one) for one in beside]
        try:
            stop = await sequence.serve()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if stop.reason in (DISK_IS_BACK, TRY_AGAIN) and self._stop_reason is None:
            self._life.go(State.STARTING, stop.reason, time.monotonic())
            self._membership.mark_not_writable()
            return
        self._life.go(State.DRAINING, stop.reason, time.monotonic())
        logs.info("bookie.draining", reason=stop.reason)
        # Both at once: nobody has to wait for metadata to stop.
        timeout_ms = self._config.bookie.drain_timeout_ms
        timeout_ms = min(timeout_ms, ORPHAN_DRAIN_MS) if self._lifeline.is_cut else timeout_ms
        clean, _ = await asyncio.gather(sequence.drain(timeout_ms), self._membership.withdraw())
        # then nothing was flushed, and may have to be replayed
        if clean and not self._no_journal_reason:
            await asyncio.to_thread(end_life, self._config.ledgers.all_directories)
        reason = "drained" if clean else "drain was cut short"
        self._life.go(State.STOPPED, reason, time.monotonic())

    async def _follow_disks(self) -> None:
        """Tell metadata and `/readyz` when journal or index begin or end refusing normal adds.

        Without a journal nothing of that changes: its disk may come back, or the pause after a crash loop be over, and
        that ends this boot.
        """
        if self._no_journal_reason and self._watch is not None:
            if self._restarts.reads_only_reason:
                await asyncio.sleep(self._restarts.reads_only_s)
                self._try_again()
                self._watch.stop(TRY_AGAIN)
            else:
                await self._disk_wait.until_journal_is_back()
                self._watch.stop(DISK_IS_BACK)
            return
        while True:
            await asyncio.sleep(READ_ONLY_POLL_S)
            self._pages.roll()
            await self._look_at_limits()

    def _try_again(self) -> None:
        """Have the next boot be a whole one."""
        self._restarts.try_again()
        self._life.crash_loop = ""
        logs.info("bookie.tries_again", reason=TRY_AGAIN)

    async def _look_at_limits(self) -> None:
        if self._no_journal_reason or self._life.state not in (State.WRITABLE, State.READ_ONLY):
            return
        refused = self._metrics.refuses_adds()
        state = State.READ_ONLY if refused else State.WRITABLE
        if state is self._life.state:
            return
        why = self._read_only_admin.reason or self._disks.refusing() or "a limit is reached"
        reason = why if refused else "serving"
        logs.warning("bookie.became_" + state.value, reason=reason)
        self._life.go(state, reason, time.monotonic())
        try:
            await self._membership.announce(
                writable=not refused, reads_only_reason=reason if refused else ""
            )
        except Error as error:
            self._life.note("metadata", str(error), "metadata")

    def _level_rose(self, level: int) -> None:
        """Metadata's thread, or the loop's."""
        self._life.level_rose(level)
        self._loop.call_soon_threadsafe(self._send_level)

    def _send_level(self) -> None:
        """Send journals the cluster's format level: some formats are theirs to write (INV-U1)."""
        if (boot := self._ready_boot) is None:
            return  # a boot begins with the level of its start, and is told when it is ready
        for process, child in boot.children.items():
            if process.role == "journal":
                child.send({"type": "format_level", "level": self._life.format_level})
                boot.ring(process)

    async def _ask_read_only(self, read_only: bool) -> None:
        """Have normal adds refused, or taken again; returns when journals and metadata know, within a few seconds."""
        await self._read_only_admin.request(self._metrics, read_only=read_only)
        await self._look_at_limits()

    def _usage_lines(self) -> list[str]:
        """Return memory and processor time of each process."""
        children = {} if self._boot is None else self._boot.children
        usages = [(process.name, child.usage) for process, child in children.items()]
        return usage_lines([("supervisor", self._usage), *usages])

    def pids(self) -> dict[str, int]:
        """Return the process ids by the names of `fastbk.server.process_table`, the supervisor's included."""
        pids = {"supervisor": os.getpid()}
        if self._boot is not None:
            pids.update({p.name: child.pid for p, child in self._boot.children.items()})
        return pids

    async def _pause_after_death(self, error: ChildDied, *, was_serving: bool) -> float:
        """Return the pause before the next boot in seconds."""
        restarts = self._restarts
        if await self._disk_wait.explains(error.process.role, was_serving=was_serving):
            logs.error("bookie.broke_down_with_a_disk", reason=str(error))
            return self._disk_wait.pause_s
        earlier = restarts.reads_only_reason
        reason = (
            f"children died {self._config.bookie.restarts_max} times within"
            f" {self._config.bookie.restarts_window_s} s, the last one: {error}"
        )
        pause_s = restarts.died(
            error.process.role, reason, was_serving=was_serving, now_s=time.monotonic()
        )
        logs.error("bookie.broke_down", reason=str(error), restarts=restarts.budget.total)
        if restarts.is_down:
            reason = f"serving reads only failed too: {error}; before that {earlier}"
            self._life.crash_loop = reason
            self._life.go(State.STARTING, f"down for {pause_s:.0f} s: {reason}", time.monotonic())
            logs.error(
                "bookie.down", reason=reason, pause_s=round(pause_s, 1), next=restarts.down_next
            )
            self._lifeline.send({"type": "down", "reason": reason})
        elif restarts.reads_only_reason and not earlier:
            self._life.crash_loop = reason
            lasts_s = round(restarts.reads_only_s, 1)
            logs.error(
                "bookie.reads_only", reason=reason, pause_s=lasts_s, next=restarts.reads_only_next
            )
        return pause_s

    async def _info(self, _: dict[str, Any]) -> object:
        """Answer /info."""
        from fastbk.server.admin.pages import life_info

        return {
            "bookie_id": self._bookie_id,
            "address": f"{self._guard.host}:{self._guard.port}",
            "epoch": self._epoch,
            "pids": self.pids(),
            **life_info(self._life, self._restarts.budget, self._disks),
            **self._metrics.damage(),
            "slow": self._monitor.slow.summary(),
        }


# --- what systemd is told -------------------------------------------------------------------------

EXTENSION_S, EXTEND_EVERY_S = 60.0, 15.0
"""A replay or a drain may last as long as it wants; whoever hangs in one is killed by the watchdog."""


class SystemdStates:
    """Tells systemd a bookie's states: ready once it serves, alive while nothing that data passes through stands still.

    It lives over all boots of the bookie; without systemd it does nothing. Decision 122.
    """

    def __init__(self) -> None:
        self._systemd = Systemd()
        self._state, self._reason = State.STARTING, "starting"
        self._is_ready = False
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, stack: contextlib.AsyncExitStack, is_alive: Callable[[], bool]) -> None:
        """Tell of changes until `stack` closes, and that the bookie is alive as long as it is."""
        if self._systemd.is_there:
            stack.push_async_callback(self.close)
            self._tell()
            works = (keep_alive(self._systemd, is_alive), self._extend())
            self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    def changed(self, state: State, reason: str) -> None:
        """Take in a step of the bookie's life."""
        self._state, self._reason = state, reason
        if self._tasks:
            self._tell()

    async def close(self) -> None:
        """Tell no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._systemd.close()

    def _tell(self) -> None:
        state, reason = self._state, self._reason
        lines = [f"STATUS={state.value}: {' '.join(reason.split())[:500]}"]
        if state in (State.WRITABLE, State.READ_ONLY) and not self._is_ready:
            self._is_ready = True
            lines.append("READY=1")
        elif state is State.DRAINING:
            lines.append("STOPPING=1")
        self._systemd.notify(*lines)

    async def _extend(self) -> None:
        while True:
            if not self._is_ready or self._state is State.DRAINING:
                self._systemd.extend(EXTENSION_S)
            await asyncio.sleep(EXTEND_EVERY_S)
