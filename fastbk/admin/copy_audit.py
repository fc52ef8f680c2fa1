"""`fastbk ledger audit`: reads every copy of many ledgers and says, by bookie and ledger, what is not as it should be.

Ledgers are cut into units that any process can do by itself (`units_of`, `audit`); Spark's job of the same name hands
out the same units, where one machine is not enough. Only finished fragments are looked at: of the one that is being
written the last entries may rightly be on an ack quorum only. Nothing is changed: `fastbk bookie repair` does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from fastbk.admin.healing import Patience, infos_of
from fastbk.client import Client, LedgerInfo
from fastbk.errors import Error, NoSuchLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.replication.auditing import AWAY, PART_ENTRIES_MAX, AuditPart, PartAudited
from fastbk.replication.copy_check import last_of_fragment
from fastbk.replication.repair_options import RepairOptions

UNIT_BYTES = 64 * 1024 * 1024
"""Estimated bytes of one copy's data. They bound what is under way, and show progress."""
FINDINGS_LISTED_MAX = 1000


@dataclass(frozen=True, slots=True)
class AuditUnit:
    """Entries first..last of a ledger, all in one fragment; `size_bytes` of one copy's data, estimated."""

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    size_bytes: int


@dataclass(slots=True)
class BookieAudited:
    """What was found of one bookie's copies, over all ledgers.

    Attributes:
        due: copies it should have. good: shown with a good digest; size_bytes: of their data. bad: not shown.
        unasked: neither, since it could not be asked to the end.
    """

    due: int = 0
    good: int = 0
    size_bytes: int = 0
    bad: int = 0

    @property
    def unasked(self) -> int:
        """Copies of which nothing is known."""
        return self.due - self.good - self.bad


@dataclass(slots=True)
class Audited:
    """What was found over all ledgers.

    Attributes:
        ledgers: looked at. open: of those, with a fragment that is being written. deleted: gone meanwhile.
        entries: looked at. lost: without any good copy. differing: with good copies that are not the same.
        bookies: by bookie id.
        findings: a line each, the first 1,000; finding_count: how many there are.
    """

    ledgers: int = 0
    open: int = 0
    deleted: int = 0
    entries: int = 0
    lost: int = 0
    differing: int = 0
    bookies: dict[BookieId, BookieAudited] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    finding_count: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every copy that was looked for is there, good, and like the others."""
        return not self.finding_count

    def count(self, part: PartAudited) -> None:
        """Add what was found of one unit."""
        if part.copies:
            self.entries += part.last - part.first + 1
        self.lost += part.lost_count
        self.differing += part.differing_count
        for copy in part.copies:
            bookie = self.bookies.setdefault(copy.bookie_id, BookieAudited())
            bookie.due += copy.due
            bookie.good += copy.good
            bookie.size_bytes += copy.size_bytes
            bookie.bad += copy.bad_count
        for line in findings_of(part):
            self.finding_count += 1
            if len(self.findings) < FINDINGS_LISTED_MAX:
                self.findings.append(line)


def units_of(info: LedgerInfo, size_bytes: int = UNIT_BYTES) -> Iterator[AuditUnit]:
    """Yield the units of a ledger's finished fragments, ascending."""
    metadata = info.metadata
    entry_bytes = 0.0
    if metadata.is_closed and metadata.last_entry_id >= 0:
        entry_bytes = metadata.length / (metadata.last_entry_id + 1)
    step = max(1, min(PART_ENTRIES_MAX, int(size_bytes / max(entry_bytes, 1.0))))
    for index, fragment in enumerate(metadata.fragments):
        last = last_of_fragment(metadata, index)
        if last is None:
            return
        for first in range(fragment.first_entry_id, last + 1, step):
            end = min(last, first + step - 1)
            yield AuditUnit(info.ledger_id, first, end, int((end - first + 1) * entry_bytes))


def findings_of(part: PartAudited) -> Iterator[str]:
    """Yield a line for each thing that is not as it should be."""
    ledger = f"ledger {part.ledger_id}"
    for copy in part.copies:
        for first, last, why in copy.bad:
            what = f"entry {first}" if first == last else f"entries {first}..{last}"
            yield f"{copy.bookie_id}: {ledger}, {what}: {why}"
        if copy.error:
            yield f"{copy.bookie_id}: {ledger}, entries {part.first}..{part.last}: {copy.error}"
    for entry_id, groups in part.differing.items():
        said = " | ".join(", ".join(group) for group in groups)
        yield f"{ledger}, entry {entry_id}: good copies differ: {said}"
    for entry_id in part.lost:
        yield f"{ledger}, entry {entry_id}: no good copy"


async def audit(
    client: Client,
    unit: AuditUnit,
    options: RepairOptions | None = None,
    patience: Patience | None = None,
) -> PartAudited:
    """Look at all copies of one unit, by what the metadata says now; without copies: the ledger is gone.

    `patience`, in place of `options`: of a run over many units, so that they do not each wait for a silent bookie.

    Raises MetadataUnavailable.
    """
    try:
        info = await client.ledger_info(unit.ledger_id)
    except NoSuchLedger:
        return PartAudited(unit.ledger_id, unit.first, unit.last)
    up = {bookie.service.bookie_id for bookie in await client.list_bookies()}
    members = info.metadata.fragment_of(unit.first).ensemble
    away = [member for member in members if member not in up]
    if patience is not None:
        options = patience.options(members)
    procedure = AuditPart(unit.ledger_id, info.metadata, unit.first, unit.last, options, away)
    part = await client.run_procedure(unit.ledger_id, info.metadata, procedure)
    if patience is not None:
        patience.note([copy.bookie_id for copy in part.copies if copy.error and copy.error != AWAY])
    return part


async def audit_all(
    client: Client,
    ledger_ids: Iterable[LedgerId] | None,
    options: RepairOptions,
    *,
    units_at_once: int = 4,
    on_progress: Callable[[Audited], None] = lambda _: None,
) -> Audited:
    """Audit these ledgers, or all; several units at a time. Raises NoSuchLedger for one that is named and not there."""
    audited = Audited()
    gone: set[LedgerId] = set()
    patience = Patience(options)
    units = _units(client, ledger_ids, audited)
    taking = asyncio.Lock()

    async def worker() -> None:
        while True:
            async with taking:
                unit = await anext(units, None)
            if unit is None:
                return
            part = await audit(client, unit, patience=patience)
            if not part.copies and unit.ledger_id not in gone:
                gone.add(unit.ledger_id)
                audited.deleted += 1
            audited.count(part)
            on_progress(audited)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(units_at_once):
                group.create_task(worker())
    except ExceptionGroup as group:
        error = group.exceptions[0]
        if len(group.exceptions) == 1 or isinstance(error, Error):
            raise error from None
        raise
    return audited


async def _units(
    client: Client, ledger_ids: Iterable[LedgerId] | None, audited: Audited
) -> AsyncIterator[AuditUnit]:
    async for info in infos_of(client, ledger_ids):
        audited.ledgers += 1
        audited.open += not info.metadata.is_closed
        for unit in units_of(info):
            yield unit
