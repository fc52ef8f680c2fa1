"""The order in which a boot's children start and stop.

Start: all are spawned at once and report `hello` when imported. The index gets its configuration
first and replays; its `replayed` goes on to the journal, which opens a new file and is `ready`;
then the index is told to `start`. Each pair of journal and index does this for itself, all at the same
time; only when all are ready do the workers listen. Stop: workers, journals, indexes, gc, each role
drained when the one before it is gone; what becomes of gc, which keeps nothing, makes no stop unclean. A boot
that serves reads only has no journal and no gc: an index starts as soon as it has replayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.formats import LEVEL_FIRST
from fastbk.native.process import kill_point
from fastbk.native.segment import new_header_key
from fastbk.observe import logs
from fastbk.server import process_table
from fastbk.server.configuration import bookie_config
from fastbk.server.configuration.bookie_config import (
    GcConfig,
    IndexConfig,
    JournalConfig,
    Replayed,
    WorkerConfig,
)
from fastbk.server.configuration.settings import unconfirmed_ledgers_max
from fastbk.server.confinement import confinement_of
from fastbk.server.disks import space_thresholds
from fastbk.server.faults import FAULTS, FaultInjection

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.process_table import Process
    from fastbk.server.supervision.spawn import Boot, ChildProcess


GC_DRAIN_S_MAX = 1.0
"""How long a stop waits for gc when all the others are gone. It keeps nothing, and may hang in a call to metadata."""
RESEND_S = 0.1
"""Pause before a message that had no room in a child's socket is tried again."""
NEWLY_DAMAGED = (
    "acknowledged data in the journal is damaged: starting again with every ledger in limbo that metadata names this"
    " bookie for"
)


class ChildDied(Exception):
    """A child ended that should not have: this boot is over."""

    def __init__(self, process: process_table.Process, reason: str) -> None:
        super().__init__(f"{process.name}: {reason}")
        self.process = process


class StopRequested(Exception):
    """The bookie was asked to stop while it started."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the configurations of the children are made of, beside the settings."""

    bookie_id: str
    incarnation: int
    host: str
    port: int
    shards: tuple[int, ...]
    """The pair of each shard."""
    cluster_id: str = ""
    reads_only_reason: str = ""
    """Not empty: a boot without journal and gc."""
    is_limbo_listed: bool = False
    """Whether this boot has listed the ledgers that may have lost something (INV-X6)."""
    refuses_adds: bool = False
    """Whether an operator wants no normal adds."""
    format_level: int = LEVEL_FIRST
    """That of the cluster, as it was read last."""


class BootOrder:
    """Leads one boot through its life."""

    def __init__(
        self,
        boot: Boot,
        watch: ChildEvents,
        config: BookieConfig,
        facts: Facts,
        told: Mapping[str, Callable[[dict[str, Any]], None]] | None = None,
        asked: Mapping[str, Callable[[process_table.Process, dict[str, Any]], None]] | None = None,
    ) -> None:
        """`told`: by message type, who gets what children tell of their disks and their work.
        `asked`: who answers what they ask.
        """
        self._told = {} if told is None else told
        self._asked = {} if asked is None else asked
        self._boot = boot
        self._watch = watch
        self._config = config
        self._facts = facts
        self._greeted: set[process_table.Process] = set()
        self._ready: set[process_table.Process] = set()
        self._failed: dict[process_table.Process, str] = {}
        self._ended: set[process_table.Process] = set()
        self._header_keys: dict[int, str] = {}
        self._unsent: dict[process_table.Process, deque[dict[str, Any]]] = {}
        """What children's sockets had no room for."""
        self._is_warned = False
        self.replayed: dict[int, Replayed] = {}
        """What replay found, by pair."""
        self.properties: dict[str, str] = {}
        """What clients and tools may want to know of this boot, for metadata."""

    async def start(self) -> list[Replayed]:
        """Return when every child is ready, with what replay found in each pair.

        Raises ChildDied, StopRequested.
        """
        deadline_s = time.monotonic() + self._config.bookie.start_timeout_ms / 1e3
        while len(self._ready) < len(self._boot.children):
            message = await self._message(deadline_s)
            self._on_start_message(message)
        return [self.replayed[pair] for pair in range(self._boot.pair_count)]

    async def serve(self) -> Stop:
        """Return when the bookie is asked to stop. Raises ChildDied."""
        while True:
            event = await self._next()
            if isinstance(event, Stop):
                return event
            if isinstance(event, Exited):
                kill_point("supervisor.child_died")
                raise ChildDied(event.process, self._why(event))
            self._note(event)

    async def drain(self, timeout_ms: int | None = None) -> bool:
        """Stop every child in order; return whether all were done in time (None: as configured)."""
        if timeout_ms is None:
            timeout_ms = self._config.bookie.drain_timeout_ms
        deadline_s = time.monotonic() + timeout_ms / 1e3
        for role in process_table.DRAIN_ORDER:
            if role == "gc":
                deadline_s = min(deadline_s, time.monotonic() + GC_DRAIN_S_MAX)
            if not await self._drain_role(role, deadline_s):
                return role == "gc"
        return True

    async def _drain_role(self, role: process_table.Role, deadline_s: float) -> bool:
        asked = [p for p in self._boot.children if p.role == role and p not in self._ended]
        waiting = set(asked)
        for process in asked:
            # It reads nothing behind this. What was not said the next start finds out anew.
            self._unsent.pop(process, None)
            self._send_or_keep(process, {"type": "drain"})
        while waiting:
            try:
                event = await self._next(deadline_s)
            except TimeoutError:
                logs.warning("drain.timed_out", waiting_for=[process.name for process in waiting])
                return False
            if isinstance(event, Message):
                self._note(event)
            elif isinstance(event, Exited):
                self._ended.add(event.process)
                is_expected = event.process in waiting and event.code == 0
                waiting.discard(event.process)
                if not is_expected:
                    reason = self._why(event)
                    logs.warning("drain.failed", process=event.process.name, reason=reason)
                    if event.process.role != "gc":
                        return False
        return True

    async def _next(self, deadline_s: float = math.inf) -> Event:
        """Return the next event; say again meanwhile what had no room. Raises TimeoutError."""
        while True:
            self._resend()
            left_s = max(0.0, deadline_s - time.monotonic())
            wait_s = min(RESEND_S, left_s) if self._unsent else left_s
            try:
                return await self._watch.next(None if wait_s == math.inf else wait_s)
            except TimeoutError:
                if wait_s == left_s:
                    raise

    async def _message(self, deadline_s: float) -> Message:
        try:
            event = await self._watch.next(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            late = [p for p in self._boot.children if p not in self._ready]
            names = ", ".join(process.name for process in late)
            raise ChildDied(late[0], f"not ready in time (waiting for {names})") from None
        if isinstance(event, Stop):
            raise StopRequested(event.reason)
        if isinstance(event, Exited):
            raise ChildDied(event.process, self._why(event))
        return event

    def _on_start_message(self, message: Message) -> None:
        process, kind = message.process, message.body.get("type")
        if kind == "hello":
            self._greeted.add(process)
            if process.role == "index":
                self._configure(process, self._index_config(process.index))
            elif process.role == "gc":
                self._configure(process, self._gc_config())
        elif kind == "replayed" and process.role == "index":
            replayed = msgspec.convert(message.body, Replayed)
            self.replayed[process.index] = replayed
            if (
                replayed.is_newly_damaged
                and process_table.journal(process.index) in self._boot.children
            ):
                raise ChildDied(process, NEWLY_DAMAGED)
            if process_table.journal(process.index) not in self._boot.children:
                self._start_index(process.index)
        elif kind == "ready":
            self._ready.add(process)
            if process.role == "journal":
                for name in ("backend", "sync_mode"):
                    self._tell_property(f"journal_{name}", str(message.body.get(name, "")))
                self._start_index(process.index)
        else:
            self._note(message)
        self._configure_what_can_be(process)

    def _tell_property(self, name: str, value: str) -> None:
        """Note a property of the journals; all that there are, where they differ."""
        told = self.properties.get(name, "").split(",") if name in self.properties else []
        self.properties[name] = ",".join(sorted({*told, value}))

    def _configure_what_can_be(self, news_from: process_table.Process) -> None:
        """Configure a journal once its index has replayed, and the workers once all journals and indexes are
        ready.
        """
        pair = news_from.index
        journal = process_table.journal(pair)
        is_pairs = news_from.role in ("index", "journal")
        if is_pairs and pair in self.replayed and journal in self._greeted:
            self._greeted.discard(journal)
            self._configure(journal, self._journal_config(pair, self.replayed[pair]))
        if {p for p in self._boot.children if p.role in ("journal", "index")} <= self._ready:
            self._warn_of_unsealed()
            # In the order of the children: that of a set changes from boot to boot.
            for process in [p for p in self._boot.children if p.role == "worker"]:
                if process not in self._greeted:
                    continue
                self._greeted.discard(process)
                self._configure(process, self._worker_config())

    def _warn_of_unsealed(self) -> None:
        """Warn of processes that are not confined: from here on workers receive what clients send, and one of them
        may become an attacker's.
        """
        unsealed = [] if self._is_warned else self._boot.unsealed()
        self._is_warned = True
        if unsealed:
            logs.warning(
                "bookie.memory_not_sealed",
                processes=[process.name for process in unsealed],
                why="the kernel is older than Linux 5.1: a compromised worker could write to their memory",
            )

    def _header_key(self, pair: int) -> str:
        """Return the key that a pair's journal and index share in this boot, in hex; no worker has it."""
        return self._header_keys.setdefault(pair, new_header_key().hex())

    def _start_index(self, pair: int) -> None:
        index = process_table.index(pair)
        self._boot.children[index].send({"type": "start"})
        self._boot.ring(index)

    def _configure(self, process: process_table.Process, config: msgspec.Struct) -> None:
        child = self._boot.children[process]
        child.send(
            {
                "type": "configure",
                "role": process.role,
                "index": process.index,
                "epoch": self._boot.epoch,
                "config": msgspec.to_builtins(config),
                "descriptors": child.descriptors,
                "confinement": msgspec.to_builtins(confinement_of(process, self._config)),
                "log": {"bookie_id": self._facts.bookie_id},
            }
        )

    def _note(self, message: Message) -> None:
        kind = str(message.body.get("type"))
        if kind == "failed":
            self._failed[message.process] = str(message.body.get("reason"))
        elif kind == "journal_files_free" and message.process.role == "index":
            self._pass_on(process_table.journal(message.process.index), message.body)
        elif (take := self._told.get(kind)) is not None:
            take(message.body)
        elif (answer := self._asked.get(kind)) is not None:
            answer(message.process, message.body)

    def _pass_on(self, process: process_table.Process, body: dict[str, Any]) -> None:
        """Hand a message on to another child. One that is gone is started again with the child that sent it."""
        if process in self._boot.children:
            self._send_or_keep(process, body)

    def _send_or_keep(self, process: process_table.Process, body: dict[str, Any]) -> None:
        """Say something that must not be lost: where the socket has no room it is said a little later."""
        if process in self._unsent or not self._boot.children[process].send(body):
            self._unsent.setdefault(process, deque()).append(body)
        self._boot.ring(process)

    def _resend(self) -> None:
        """Say again what had no room. A child that is gone takes nothing: its end ends this boot."""
        for process, bodies in list(self._unsent.items()):
            child = self._boot.children.get(process)
            while bodies and child is not None and child.send(bodies[0]):
                bodies.popleft()
                self._boot.ring(process)
            if not bodies or child is None:
                del self._unsent[process]

    def _why(self, event: Exited) -> str:
        """Return the reason that a child gave, else how it ended."""
        if event.process in self._failed:
            return self._failed[event.process]
        if event.code == -signal.SIGSYS:
            return "killed for a system call that only an attacker makes (SIGSYS, see `[bookie] confinement`)"
        if event.code < 0:
            return f"killed by signal {-event.code}"
        return f"ended with code {event.code}"

    def _worker_config(self) -> WorkerConfig:
        return WorkerConfig(
            bookie_id=self._facts.bookie_id,
            incarnation=self._facts.incarnation,
            host=self._facts.host,
            port=self._facts.port,
            ledger_directories=self._config.ledgers.all_directories,
            shards=self._facts.shards,
            bookie=self._config.bookie,
            limits=self._config.limits,
            settings=self._config.network,
            tls=self._config.tls,
            authentication=self._config.authentication,
            authorization=self._config.authorization,
            cluster_id=self._facts.cluster_id,
            quotas=self._config.quotas,
            worker_count=self._boot.worker_count,
            is_audited=bool(self._config.audit.file),
            reads_only_reason=self._facts.reads_only_reason,
        )

    def _journal_config(self, pair: int, replayed: Replayed) -> JournalConfig:
        return JournalConfig(
            bookie_id=self._facts.bookie_id,
            incarnation=self._facts.incarnation,
            pair=pair,
            worker_count=self._boot.worker_count,
            bookie=self._config.bookie,
            limits=self._config.limits,
            settings=bookie_config.journal_settings(self._config, pair),
            disk=self._config.disk,
            replayed=replayed,
            adopt=self._config.ledgers.adopt,
            is_on_ledger_disk=space_thresholds.is_one_disk(
                self._config.journal.all_directories[pair],
                self._config.ledgers.all_directories[pair],
            ),
            format_level=self._facts.format_level,
            refuses_adds=self._facts.refuses_adds,
            header_key=self._header_key(pair),
        )

    def _index_config(self, pair: int) -> IndexConfig:
        return IndexConfig(
            bookie_id=self._facts.bookie_id,
            incarnation=self._facts.incarnation,
            pair=pair,
            worker_count=self._boot.worker_count,
            limits=self._config.limits,
            settings=bookie_config.ledger_settings(self._config, pair),
            scrub=self._config.scrub,
            journal_directory=self._config.journal.all_directories[pair],
            disk=self._config.disk,
            thresholds=space_thresholds.ledger_thresholds(
                self._config.disk,
                self._config.journal,
                space_thresholds.sharing(self._config.ledgers.all_directories, pair),
            ),
            journal_limit_bytes=self._config.journal.limit_bytes,
            journal_bytes_max=space_thresholds.journal_bytes_max(self._config.journal),
            journal_neighbours=self._config.journal.all_directories,
            shards=self._facts.shards,
            header_key=self._header_key(pair),
            is_limbo_listed=self._facts.is_limbo_listed,
        )

    def _gc_config(self) -> GcConfig:
        return GcConfig(
            bookie_id=self._facts.bookie_id,
            metadata=self._config.metadata,
            ledger_directories=self._config.ledgers.all_directories,
            shards=self._facts.shards,
            unconfirmed_ledgers_max=unconfirmed_ledgers_max(self._config.limits),
            settings=self._config.gc,
        )


class Message(msgspec.Struct, frozen=True):
    """A child said something."""

    process: Process
    body: dict[str, Any]


class Exited(msgspec.Struct, frozen=True):
    """A child ended; `code` is negative for a signal."""

    process: Process
    code: int


class Stop(msgspec.Struct, frozen=True):
    """Somebody asks the whole bookie to stop."""

    reason: str


Event = Message | Exited | Stop


class ChildEvents:
    """Events of one boot, in the order in which they were seen; messages of a child come before its
    end.
    """

    def __init__(self, boot: Boot) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._watched: dict[Process, ChildProcess] = {}
        for process, child in boot.children.items():
            self._watched[process] = child
            self._loop.add_reader(child.control, self._read, child)
            self._loop.add_reader(child.pidfd, self._ended, child)

    async def next(self, timeout_s: float | None = None) -> Event:
        """Return the next event. Raises TimeoutError after `timeout_s`."""
        if not self._events.empty():
            return self._events.get_nowait()
        async with asyncio.timeout(timeout_s):
            return await self._events.get()

    def stop(self, reason: str) -> None:
        """Queue a Stop; it comes after what children have said before."""
        self._events.put_nowait(Stop(reason))

    def close(self) -> None:
        """Stop watching; before the boot's descriptors are closed."""
        for child in list(self._watched.values()):
            self._forget(child)

    def _read(self, child: ChildProcess) -> None:
        try:
            while (body := child.receive()) is not None:
                self._events.put_nowait(Message(child.process, body))
        except EOFError:
            # Its end follows; an unread end of the socket would call us again and again.
            self._loop.remove_reader(child.control)

    def _ended(self, child: ChildProcess) -> None:
        if child.control.fileno() >= 0:
            self._read(child)
        self._forget(child)
        self._events.put_nowait(Exited(child.process, child.wait()))

    def _forget(self, child: ChildProcess) -> None:
        self._loop.remove_reader(child.control)
        self._loop.remove_reader(child.pidfd)
        self._watched.pop(child.process, None)


class Lifeline:
    """The tie to whoever started a bookie, a test or `fastbk dev`: told of each change, and its end stops the bookie.

    Our end of a SOCK_SEQPACKET socket, one JSON object a message; None: nobody is there, and nothing happens.
    """

    def __init__(self, end: socket.socket | None, boot: Callable[[], Boot | None]) -> None:
        """`boot`: returns the boot whose children are ready, if there is one."""
        self._end = end
        self.faults = FaultInjection(self.send, boot)
        self._remove_at_end: list[str] = []
        self.is_cut = False
        """The other end is gone."""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Read what comes on the running loop; call `on_end` once when the other end is gone."""
        if self._end is not None:
            self._end.setblocking(False)
            asyncio.get_running_loop().add_reader(self._end, self._read, self._end, on_end)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; what does not fit, or nobody reads, is lost."""
        if self._end is not None:
            with contextlib.suppress(OSError):
                self._end.send(msgspec.json.encode(message))

    def _read(self, end: socket.socket, on_end: Callable[[], None]) -> None:
        try:
            data = end.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            message = msgspec.json.decode(data, type=dict)
            if message.get("type") == "remove_at_end":
                self._remove_at_end.append(str(message["path"]))
            elif message.get("type") == FAULTS:
                self.faults.take(message)
            return
        asyncio.get_running_loop().remove_reader(end)
        self.is_cut = True
        for path in self._remove_at_end:
            with contextlib.suppress(OSError):
                os.unlink(path)
        on_end()
