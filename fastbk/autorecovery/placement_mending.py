"""Moving copies that lie otherwise than their ledger's rule wants it: "mended as soon as it can be".

    mending = PlacementMending(client, name, options, counts)
    await mending.run(audit, may_go_on)            # the auditor's process: what its rounds found
    await mending.make_room(ledger_id, gone)       # a worker: a ledger for whose lost copies there is no place

The auditor's process moves copies, by the rate that its worker's lease allows, and under the ledger's lock. Copies that
are missing come first: it moves none while its worker has ledgers to repair. What was found misplaced may be well by
now, so each ledger is judged anew. `fastbk cluster rebalance` moves in the same way.

With E > Qw it may be that no bookie that is left keeps an enforced rule in the place of a lost one, but would if
another copy moved first: its neighbours in the ring are in both racks that are left. Such a ledger was parked until a
bookie came. A worker moves the other copy, and then replaces the lost one.

`heal placement off` ends both; copies of lost bookies are made anew as before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from fastbk.autorecovery.placement_audit import PlacementAudit
from fastbk.autorecovery.state import ClusterState, WorkerCounts
from fastbk.client import Client
from fastbk.client.placement_judge import PlacementJudge, read_judge
from fastbk.client.placement_moves import Mender, Ranking, move_copies
from fastbk.errors import Error, NoSuchLedger
from fastbk.model.ids import BookieId, LedgerId
from fastbk.observe.library_log import LibraryLog
from fastbk.placement.rules import rule_of
from fastbk.replication.re_replication import LedgerReReplicated, Move
from fastbk.replication.repair_options import RepairOptions

LEDGERS_AT_ONCE = 4
RETRY_S = 600.0
"""A ledger that could not be mended is tried again so much later; bookies and rules change seldom."""
RUN_S = 20.0
ROOM_KEPT_S = 10.0
"""What was read of the cluster to make room for one ledger serves others for so long."""
_log = LibraryLog("fastbk.autorecovery")


class PlacementMending:
    """The moves of one process."""

    def __init__(
        self, client: Client, name: str, options: RepairOptions, counts: WorkerCounts
    ) -> None:
        """`name`: of this process, in locks. `options`: of its worker, whose rate the moves share."""
        self._client = client
        self._name = name
        self._options = options
        self._counts = counts
        self._state = ClusterState(client.records)
        self._due_s: dict[LedgerId, float] = {}
        self._room: tuple[float, PlacementJudge, Mender] | None = None
        """When the cluster was read last to make room, and what was: many ledgers may ask for it at once."""

    async def is_on(self) -> bool:
        """Return whether operators let copies be moved."""
        return (await self._state.settings.read()).mends_placement

    async def run(self, audit: PlacementAudit, may_go_on: Callable[[], bool]) -> None:
        """Mend misplaced ledgers for about `RUN_S` seconds, while `may_go_on`."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        listed = [each.ledger_id for each in audit.misplaced]
        self._due_s = {each: self._due_s[each] for each in listed if each in self._due_s}
        ids = [each for each in listed if self._due_s.get(each, now_s) <= now_s]
        if not ids or not may_go_on() or not await self.is_on():
            return
        judge = await self._client.call_store(partial(read_judge, last_places=audit.last_places))
        mender = Mender(Ranking(judge), fill_of(judge))
        queue = iter(ids)
        moved_before = self._counts.copies_moved

        async def work() -> None:
            for ledger_id in queue:
                if not may_go_on() or loop.time() >= now_s + RUN_S:
                    return
                if await self._mended(ledger_id, judge, mender):
                    audit.mended(ledger_id)
                    self._due_s.pop(ledger_id, None)
                else:
                    self._due_s[ledger_id] = loop.time() + RETRY_S

        async with asyncio.TaskGroup() as group:
            for _ in range(min(LEDGERS_AT_ONCE, len(ids))):
                group.create_task(work())
        if not audit.misplaced and self._counts.copies_moved > moved_before:
            audit.request()  # what was counted is no longer so

    async def _mended(self, ledger_id: LedgerId, judge: PlacementJudge, mender: Mender) -> bool:
        """Return whether a ledger lies as its rule wants it now; what happens to it ends no other one's turn."""
        try:
            async with self._client.locks.hold(ledger_id, self._name) as lock:
                if lock is None:
                    return False
                mending = self._mend(ledger_id, judge, mender)
                return bool(await self._client.locks.run(lock, mending))
        except NoSuchLedger:
            return True
        except Error as error:
            self._failed(ledger_id, str(error))
        except Exception as error:  # noqa: BLE001 -- a fault of ours must not end the other moves
            self._failed(ledger_id, repr(error), error)
        return False

    async def _mend(self, ledger_id: LedgerId, judge: PlacementJudge, mender: Mender) -> bool:
        metadata = (await self._client.ledger_info(ledger_id)).metadata
        if not metadata.is_closed:
            return False
        verdict = judge.judge_ledger(ledger_id, metadata)
        misplaced = {each.first_entry_id for each in (*verdict.enforced, *verdict.soft)}
        if not misplaced:
            return True
        if (await self._client.marks.read(ledger_id)).missing:
            return False  # a worker makes its copies first
        rule = rule_of(metadata.custom, judge.rules.rule)
        moves: list[Move] = []
        for fragment in metadata.fragments:
            if fragment.first_entry_id in misplaced:
                moves += mender.mend(fragment, metadata.write_quorum, rule)
        if not moves:
            return False
        done = await self._move(ledger_id, moves)
        for bookie_id in done.refusing:
            mender.avoid(bookie_id)
        if done.is_deleted:
            return True
        metadata = (await self._client.ledger_info(ledger_id)).metadata
        verdict = judge.judge_ledger(ledger_id, metadata)
        is_well = not (verdict.enforced or verdict.soft)
        self._counts.ledgers_mended += is_well
        return is_well

    async def make_room(self, ledger_id: LedgerId, gone: Collection[BookieId]) -> bool:
        """Move copies so that those of gone bookies have a place; return whether any were. The caller has the lock."""
        metadata = (await self._client.ledger_info(ledger_id)).metadata
        if not metadata.is_closed or not await self.is_on():
            return False
        now_s = asyncio.get_running_loop().time()
        if self._room is None or now_s - self._room[0] > ROOM_KEPT_S:
            judge = await self._client.call_store(read_judge)
            self._room = now_s, judge, Mender(Ranking(judge), fill_of(judge))
        _, judge, mender = self._room
        rule = rule_of(metadata.custom, judge.rules.rule)
        moves: list[Move] = []
        for fragment in metadata.fragments:
            moves += mender.make_room(fragment, metadata, rule, gone, random.Random(ledger_id))
        return bool(moves) and bool((await self._move(ledger_id, moves)).replacements)

    async def _move(self, ledger_id: LedgerId, moves: Sequence[Move]) -> LedgerReReplicated:
        services = [bookie.service for bookie in await self._client.list_bookies()]
        unlisted = [each.bookie_id for each in services if each.endpoint() is None]
        done = await move_copies(
            self._client, ledger_id, moves, self._options, "placement", unlisted
        )
        self._counts.copies_moved += len(done.replacements)
        if done.replacements:
            _log.info(
                "autorecovery.copies_moved",
                ledger_id=ledger_id,
                copies=len(done.replacements),
                size_bytes=done.size_bytes,
            )
        if done.left:
            self._failed(ledger_id, "; ".join(list(done.left.values())[:3]))
        return done

    def _failed(self, ledger_id: LedgerId, reason: str, fault: Exception | None = None) -> None:
        self._counts.moves_failed += 1
        _log.warning("autorecovery.move_failed", ledger_id=ledger_id, reason=reason, failed=fault)


def fill_of(judge: PlacementJudge) -> Mapping[BookieId, float]:
    """Return how full bookies are beside each other, by the free space that they publish."""
    return {
        bookie_id: -float(place.view.free_bytes or 0) for bookie_id, place in judge.places.items()
    }
