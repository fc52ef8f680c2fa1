"""Writes what happened to a ledger as events of the TLA+ model; `model/README.md` defines the format.

Only worlds that the model speaks of are of use (`plan_for_model`): no liars, no deferred sync, no explicit LACs, each
client recovers once, and what a crash had not made durable is gone.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.procedure import (
    AddEntry,
    BookieRequest,
    ReadEntries,
    ReadEntry,
    ReadLac,
    Reply,
)
from fastbk.replication.recovery import RecoverLedger
from fastbk.wire.statuses import Status
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.world import World

_NO = (Status.NO_ENTRY, Status.NO_LEDGER)
_CLASSES = {"liars", "failed syncs", "corruption"}
_FAULTS = {"make_liar", "fail_sync", "corrupt", "lose_rack"}
_WORK = {"tell_lac", "force", "intrude", "repair", "delete", "cancel"}


def plan_for_model(plan: Plan) -> Plan:
    """Leave out of a plan what the model does not know."""
    plan.is_deferred = False
    plan.ack_racks, plan.racks, plan.moves, plan.forgets = 0, {}, [], []
    plan.is_rack_away = False
    plan.classes = [one for one in plan.classes if one not in _CLASSES]
    plan.faults = [
        replace(item, more=0.0) if item.kind in ("kill", "power_cut") else item
        for item in plan.faults
        if item.kind not in _FAULTS
    ]
    plan.ledgers = 1
    plan.options["stale"] = 0.0
    plan.work = [item for item in plan.work if item.kind not in _WORK and not item.more]
    return plan


class Recorder:
    """Collects the lines of one trace, that of ledger 0."""

    def __init__(self, name: str) -> None:
        self.lines: list[str] = []
        self._name = name
        self._fenced: set[BookieId] = set()
        self._started: set[str] = set()
        self._recovering: set[str] = set()
        self._fragments: dict[str, Fragment] = {}

    def _write(self, event: str, **keys: Any) -> None:
        if not self.lines:
            return  # before the ledger's life
        self.lines.append(json.dumps({"event": event, **keys}))

    # --- the writer and recoverers -----------------------------------------------------------------------------

    def created(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        if ledger_id == 0:
            header = {
                "trace": self._name,
                "write_quorum": metadata.write_quorum,
                "ack_quorum": metadata.ack_quorum,
                "version": 0,
                "ensemble": list(metadata.fragments[0].ensemble),
            }
            self.lines.append(json.dumps(header))

    def add_sent(
        self, client: str, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId, lac: EntryId
    ) -> None:
        if ledger_id == 0:
            self._write(
                "AddSent", client=client, bookie=bookie, entry=entry_id, last=lac, recovery=False
            )

    def sent(
        self, client: str, bookie: BookieId, ledger_id: LedgerId, request: BookieRequest
    ) -> None:
        if ledger_id == 0 and isinstance(request, AddEntry):
            self._write(
                "AddSent",
                client=client,
                bookie=bookie,
                entry=request.entry_id,
                last=request.lac,
                recovery=request.recovery,
            )

    def acked(self, client: str, ledger_id: LedgerId, entry_id: EntryId) -> None:
        if ledger_id == 0:
            self._write("Acked", client=client, entry=entry_id)

    def recovery_moved(self, client: str, procedure: Any) -> None:
        """A recoverer may have changed its ensemble in memory."""
        assert isinstance(procedure, RecoverLedger)
        self._started.add(client)
        tail = procedure._tail
        if tail is None or client not in self._recovering:
            return
        fragment = tail.rewrite.fragments[-1]
        before = self._fragments.get(client)
        self._fragments[client] = fragment
        if before is not None and before != fragment:
            self._write(
                "EnsembleCas",
                client=client,
                version=None,
                first=fragment.first_entry_id,
                ensemble=list(fragment.ensemble),
                recovery=True,
            )

    # --- bookies -----------------------------------------------------------------------------------------------

    def add_ack(
        self, client: str, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId, recovery: bool
    ) -> None:
        if ledger_id == 0:
            self._write("AddAck", client=client, bookie=bookie, entry=entry_id, recovery=recovery)

    def add_refused(
        self, client: str, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId
    ) -> None:
        if ledger_id == 0:
            self._write("AddRefused", client=client, bookie=bookie, entry=entry_id, recovery=False)

    def fenced(self, client: str, bookie: BookieId, ledger_id: LedgerId) -> None:
        if ledger_id == 0 and bookie not in self._fenced:
            self._fenced.add(bookie)
            self._write("Fenced", client=client, bookie=bookie)

    def answered(
        self,
        client: str,
        bookie: BookieId,
        ledger_id: LedgerId,
        request: BookieRequest,
        reply: Reply,
        lac: EntryId,
    ) -> None:
        if ledger_id != 0:
            return
        who = {"client": client, "bookie": bookie}
        recovery = isinstance(request, ReadEntry) and request.fence
        if isinstance(request, ReadLac) or (
            isinstance(request, ReadEntry) and request.entry_id < 0
        ):
            if reply.status in (Status.OK, *_NO):
                self._write("LacRead", **who, last=lac, recovery=recovery)
        elif isinstance(request, ReadEntry):
            event = "ReadOk" if reply.found else "ReadNo" if reply.status in _NO else "ReadUnknown"
            self._write(event, **who, entry=request.entry_id, recovery=recovery)
        elif isinstance(request, ReadEntries):
            for one in reply.found:
                self._write("ReadOk", **who, entry=one.entry_id, recovery=False)

    def crashed(self, name: str) -> None:
        kind = "bookie" if name.startswith("b") else "client"
        self._write("Crash", **{kind: name})

    def in_limbo(self, bookie: BookieId, ledger_id: LedgerId) -> None:
        """A bookie that has lost its data comes back; it was silent until now."""
        if ledger_id == 0:
            self._fenced.add(bookie)
            self._write("Wipe", bookie=bookie)

    # --- metadata ----------------------------------------------------------------------------------------------

    def metadata_read(self, client: str, versioned: VersionedLedger) -> None:
        """A client has read metadata; a recoverer may go on from there."""
        if (
            client in self._started
            and versioned.metadata.state is LedgerState.IN_RECOVERY
            and client not in self._recovering
        ):
            self._recovering.add(client)
            self._write("RecoveryJoin", client=client, version=versioned.version)

    def metadata_changed(
        self, client: str, ledger_id: LedgerId, old: LedgerMetadata, now: VersionedLedger
    ) -> None:
        if ledger_id != 0 or old.is_closed:
            return  # nothing that the model knows happens to a closed ledger
        new, version = now.metadata, now.version
        segments = [[one.first_entry_id, list(one.ensemble)] for one in new.fragments]
        if new.is_closed and not old.is_closed:
            self._write(
                "CloseCas",
                client=client,
                version=version,
                last=new.last_entry_id,
                segments=segments,
            )
        elif new.state is not old.state:
            self._recovering.add(client)
            self._write("RecoveryCas", client=client, version=version)
        elif new.fragments != old.fragments and new.fragments[-1] == old.fragments[-1]:
            self._write("NameCas", client=client, version=version, segments=segments)
        elif new.fragments != old.fragments:
            last = new.fragments[-1]
            self._write(
                "EnsembleCas",
                client=client,
                version=version,
                first=last.first_entry_id,
                ensemble=list(last.ensemble),
                recovery=False,
            )
        else:
            self._write("OtherCas", version=version)


def write_traces(file: Path, first: int, count: int) -> int:
    """Write the traces of `count` worlds from seed `first` on; worlds that break an invariant raise."""
    with file.open("w") as out:
        for seed in range(first, first + count):
            out.writelines(f"{line}\n" for line in trace_of(seed))
    return count


def trace_of(seed: int) -> list[str]:
    world = World(plan_for_model(draw_plan(seed)))
    recorder = world.checks.recorder = Recorder(f"seed {seed}")
    try:
        world.run()
    finally:
        world.close()
    return recorder.lines
