"""One process of AutoRecovery: always a replication worker, and the auditor while it is elected."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import threading

from fastbk.autorecovery.auditor import Auditor, AuditorOptions
from fastbk.autorecovery.state import AuditorCounts, ClusterState, clock_ms
from fastbk.autorecovery.worker import ReplicationWorker, WorkerOptions
from fastbk.client import Client
from fastbk.errors import Error
from fastbk.meta import MetadataStore
from fastbk.meta.api import Vote
from fastbk.observe.library_log import LibraryLog

ELECTION_INTERVAL_S = 2.0
MEND_INTERVAL_S = 5.0
PASS_AGE_MAX_S = 300.0
"""A pass that did not end for so long means that something stands still."""
_log = LibraryLog("fastbk.autorecovery")


def process_name() -> str:
    """Return a name for this process: its host and its process id."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()) or "host"
    return f"{host}-{os.getpid()}"


class _OwnVote:
    """The vote of one process, cast in threads of the store's.

    A call that was given up at its deadline goes on in its thread and may cast the vote yet. So the vote is kept here
    and not by the caller: a second one would wait behind the first, and nobody would be elected while this process
    lives.
    """

    def __init__(self, voter: str) -> None:
        self._voter = voter
        self._casting = threading.Lock()
        self._vote: Vote | None = None

    def cast(self, store: MetadataStore) -> Vote:
        """Return the vote; cast it if there is none, or its session has ended."""
        with self._casting:
            if self._vote is None or self._vote.is_lost:
                self._vote = store.coordination.vote(self._voter)
            return self._vote

    def withdraw(self, _: MetadataStore) -> None:
        """Withdraw it, also one that was cast for nobody."""
        with self._casting:
            if self._vote is not None:
                self._vote.close()


class Healer:
    """A worker, and an auditor while it is elected.

    Attributes:
        auditor: while this process is elected, else None.
        auditor_counts: of all times that it was elected.
        elections: how often it was elected.
    """

    def __init__(
        self,
        client: Client,
        name: str | None = None,
        auditor_options: AuditorOptions | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        self.name = process_name() if name is None else name
        self.worker = ReplicationWorker(client, self.name, worker_options)
        self.auditor: Auditor | None = None
        self.auditor_counts = AuditorCounts()
        self.elections = 0
        self.client = client
        self.state = ClusterState(client.records)
        self._auditor_options = auditor_options
        self._vote: Vote | None = None
        self._own_vote = _OwnVote(self.name)
        self._auditing: asyncio.Task[None] | None = None
        self._session_lost_ms: int | None = None
        self._election_ended_s = 0.0

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Work until `stop` is set, or for ever; then give back every lock and the election. Raises LevelLacking."""
        stop = asyncio.Event() if stop is None else stop
        self._election_ended_s = asyncio.get_running_loop().time()
        working = asyncio.create_task(self.worker.run())
        voting = asyncio.create_task(self._elect())
        mending = asyncio.create_task(self._mend())
        stopping = asyncio.create_task(self.client.records.follow_level(stop))
        tasks = {working, voting, mending, stopping}
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for one in ended:
                one.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._stop_auditing()
            await self._withdraw()

    def late_passes(self) -> dict[str, float]:
        """Return the passes that did not end for too long, with seconds: a sign that something stands still."""
        now_s = asyncio.get_running_loop().time()
        ended = {"marks": self.worker.refreshed_s, "election": self._election_ended_s}
        if self.auditor is not None:
            ended |= self.auditor.pass_ended_s
        return {name: now_s - at for name, at in ended.items() if now_s - at > PASS_AGE_MAX_S}

    # --- placement ---------------------------------------------------------------------------------------------

    async def _mend(self) -> None:
        """Move what the auditor of this process found misplaced, again and again."""
        while True:
            auditor = self.auditor
            if auditor is not None:
                try:
                    await self.worker.mending.run(
                        auditor.placement,
                        lambda: self.auditor is auditor and self.worker.may_move,  # noqa: B023
                    )
                except Error as error:
                    _log.warning("autorecovery.worker_failed", kind="moves", reason=str(error))
            await asyncio.sleep(MEND_INTERVAL_S * random.uniform(0.8, 1.2))

    # --- the election ------------------------------------------------------------------------------------------

    async def _elect(self) -> None:
        while True:
            try:
                is_elected = await self._is_elected()
                self._election_ended_s = asyncio.get_running_loop().time()
            except Error as error:
                # Nobody knows: another process may be the auditor by now.
                is_elected = False
                _log.warning("autorecovery.election_unknown", reason=str(error))
            if self._auditing is not None and (not is_elected or self._auditing.done()):
                await self._stop_auditing()
            if is_elected and self._auditing is None:
                self._begin_auditing()
            await asyncio.sleep(ELECTION_INTERVAL_S * random.uniform(0.8, 1.2))

    async def _is_elected(self) -> bool:
        if self._vote is not None and self._vote.is_lost:
            # The session of this process has ended: what it thinks is lost may be so for itself only.
            self._session_lost_ms = clock_ms()
            self._vote = None
            _log.warning("autorecovery.session_lost")
        if self._vote is None:
            self._vote = await self.client.call_store(self._own_vote.cast)
        vote = self._vote
        return await self.client.call_store(lambda _: vote.is_elected())

    def _begin_auditing(self) -> None:
        self.elections += 1
        _log.info("autorecovery.elected", auditor=self.name)
        self.auditor = Auditor(
            self.client,
            self.name,
            self.worker.rate,
            self._auditor_options,
            self._session_lost_ms,
            self.auditor_counts,
        )
        self._auditing = asyncio.create_task(self.auditor.run())

    async def _stop_auditing(self) -> None:
        task, self._auditing, self.auditor = self._auditing, None, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("autorecovery.auditor_failed", reason=repr(error), failed=error)
        _log.info("autorecovery.auditor_ended", auditor=self.name)

    async def _withdraw(self) -> None:
        self._vote = None
        try:
            await self.client.call_store(self._own_vote.withdraw)
        except Error as error:
            # It goes with the session.
            _log.warning("autorecovery.vote_unwithdrawn", reason=str(error))
