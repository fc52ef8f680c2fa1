"""The audit of every copy of every entry, shared out: `fastbk ledger audit`, by as many machines as Spark has.

The driver lists the ledgers and cuts them into units; a task reads all copies of its units from the bookies and says
what it found. Units go out in slices: what a slice found is written (Parquet, if wanted) before the next begins, and a
progress file says behind which unit to go on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastbk
import fastbk.sync
from fastbk.admin.copy_audit import (
    UNIT_BYTES,
    Audited,
    AuditUnit,
    BookieAudited,
    audit,
    findings_of,
    units_of,
)
from fastbk.client import LedgerInfo
from fastbk.errors import ConfigError
from fastbk.model.ids import EntryId, LedgerId
from fastbk.replication.auditing import PartAudited
from fastbk.replication.repair_options import RepairOptions
from fastbk.safe_files import replaced
from fastbk.spark.jobs.folders import check_place, delete, names_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = (
    "ledger long, first long, last long, differing long, lost long, findings array<string>,"
    " copies array<struct<bookie: string, due: long, good: long, bytes: long, bad: long, error: string>>"
)
"""A row for each unit. `findings`: as `fastbk ledger audit` prints them. Without copies: the ledger was deleted."""
SLICE = "slice="
UNITS_AT_ONCE = 2
"""By each task: one waits for bookies while the other's copies are checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """How to go about it.

    Attributes:
        ledgers: ids, or None: all. unit_bytes: of one copy's data in a unit, estimated.
        bytes_per_s: of each bookie, for each unit under way; 0: as fast as it goes.
        slice_units: so many are done between two marks of progress.
        to: where rows go as Parquet, anything that Spark can write to; None: nowhere.
        progress: a file on the driver's disk that says how far it is; if it is there, this run goes on from it.
    """

    ledgers: Sequence[LedgerId] | None = None
    unit_bytes: int = UNIT_BYTES
    bytes_per_s: float = 0.0
    slice_units: int = 1024
    to: str | None = None
    progress: Path | None = None

    def __post_init__(self) -> None:
        if self.slice_units < 1 or self.unit_bytes < 1:
            raise ConfigError("slice_units and unit_bytes must be above 0")
        if self.to is not None:
            check_place(self.to)
        path = self.progress
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            # Else hours of reading would end where the first mark of progress is to be written.
            raise ConfigError(f"--progress {path} must be a file, in a folder that is there")


@dataclass(slots=True)
class AuditProgress:
    """What is done: all units up to `last` of `ledger_id`, in `slices` slices, of what was asked for.

    Attributes:
        wanted: the cluster's URI and the ledgers (None: all) that it is about.
    """

    audited: Audited = field(default_factory=Audited)
    ledger_id: LedgerId = -1
    last: EntryId = -1
    slices: int = 0
    wanted: list[Any] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None, uri: str, ledgers: Sequence[LedgerId] | None) -> AuditProgress:
        """Return what a file says; the beginning, if there is none. ConfigError: it is about something else.

        What another audit has done says nothing of this one: ledgers would be called whole that nobody looked at.
        """
        wanted = [uri, None if ledgers is None else sorted(set(ledgers))]
        if path is None or not path.exists():
            return cls(wanted=wanted)
        try:
            content = json.loads(path.read_text())
            found = content["audited"]
            bookies = {name: BookieAudited(**one) for name, one in found.pop("bookies").items()}
            audited = Audited(**found, bookies=bookies)
            done = cls(
                audited, content["ledger_id"], content["last"], content["slices"], content["wanted"]
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{path} is no progress file of an audit: {error!r}") from error
        if done.wanted != wanted:
            raise ConfigError(
                f"{path} is of an audit of other ledgers, or of another cluster: give this one a file of its own"
            )
        return done

    def write(self, path: Path | None) -> None:
        """Write the file anew, whole or not at all, and durably."""
        if path is not None:
            with replaced(path) as draft:
                draft.write_text(json.dumps(asdict(self)))


@dataclass(slots=True)
class Slice:
    """Units between two marks of progress.

    Attributes:
        ledgers: begun in it; open: of those, still being written.
        ledger_id, last: the last ledger that was looked at, and where its last unit ends; -1: it has none.
    """

    units: list[AuditUnit] = field(default_factory=list)
    ledgers: int = 0
    open: int = 0
    ledger_id: LedgerId = -1
    last: EntryId = -1


def run(
    spark: SparkSession,
    uri: str,
    plan: AuditPlan | None = None,
    on_progress: Callable[[Audited], None] = lambda _: None,
) -> Audited:
    """Audit, and return what was found: with a progress file, by all runs that had it.

    Raises NoSuchLedger for one that is named and not there, MetadataUnavailable.
    """
    plan = AuditPlan() if plan is None else plan
    progress = AuditProgress.read(plan.progress, uri, plan.ledgers)
    if plan.to is not None and not progress.slices:
        _forget(spark, plan.to)
    with fastbk.sync.connect(uri) as client:
        infos: Iterable[LedgerInfo] = (
            client.list_ledgers()
            if plan.ledgers is None
            else map(client.ledger_info, sorted(set(plan.ledgers)))
        )
        for one in slices_of(infos, plan, progress):
            parts = _shared_out(spark, uri, plan, one.units)
            if plan.to is not None and parts:
                rows = spark.createDataFrame(list(map(row_of, parts)), ROWS).coalesce(1)
                rows.write.mode("overwrite").parquet(f"{plan.to}/{SLICE}{progress.slices:06}")
            audited = progress.audited
            audited.ledgers += one.ledgers
            audited.open += one.open
            audited.deleted += len({part.ledger_id for part in parts if not part.copies})
            for part in parts:
                audited.count(part)
            if one.ledger_id >= 0:
                progress.ledger_id, progress.last = one.ledger_id, one.last
                progress.slices += bool(one.units)
                progress.write(plan.progress)
            on_progress(audited)
    return progress.audited


def _forget(spark: SparkSession, to: str) -> None:
    """Delete what an audit before this one has written: it may have more slices, and rows of two would be mixed."""
    for name in names_in(spark, to):
        if name.startswith(SLICE):
            delete(spark, f"{to}/{name}")


def slices_of(infos: Iterable[LedgerInfo], plan: AuditPlan, done: AuditProgress) -> Iterator[Slice]:
    """Yield what is left to do of ledgers by rising ids; the last slice may have no units."""
    begun_id, begun_through = done.ledger_id, done.last
    one = Slice()
    for info in infos:
        if info.ledger_id < begun_id:
            continue
        is_begun = info.ledger_id == begun_id
        one.ledgers += not is_begun
        one.open += not is_begun and not info.metadata.is_closed
        one.ledger_id, one.last = info.ledger_id, begun_through if is_begun else -1
        for unit in units_of(info, plan.unit_bytes):
            if is_begun and unit.last <= begun_through:
                continue
            one.units.append(unit)
            one.last = unit.last
            if len(one.units) == plan.slice_units:
                yield one
                one = Slice(ledger_id=unit.ledger_id, last=unit.last)
    yield one


def _shared_out(
    spark: SparkSession, uri: str, plan: AuditPlan, units: Sequence[AuditUnit]
) -> list[PartAudited]:
    if not units:
        return []
    context = spark.sparkContext
    tasks = min(len(units), 4 * context.defaultParallelism)
    options = RepairOptions().limited(plan.bytes_per_s)
    shared = context.parallelize(units, tasks)
    found: list[PartAudited] = shared.mapPartitions(
        lambda some: audit_units(uri, options, some)
    ).collect()
    return found


def audit_units(
    uri: str, options: RepairOptions, units: Iterable[AuditUnit]
) -> Iterator[PartAudited]:
    """Audit the units of one task, in a worker."""
    return iter(asyncio.run(_audited(uri, options, units)))


async def _audited(
    uri: str, options: RepairOptions, units: Iterable[AuditUnit]
) -> list[PartAudited]:
    left = iter(units)
    found: list[PartAudited] = []
    async with fastbk.connect(uri) as client:

        async def work() -> None:
            for unit in left:
                found.append(await audit(client, unit, options))

        await asyncio.gather(*(work() for _ in range(UNITS_AT_ONCE)))
    return found


def row_of(part: PartAudited) -> tuple[Any, ...]:
    """Return a unit's row, as ROWS has it."""
    copies = [
        (copy.bookie_id, copy.due, copy.good, copy.size_bytes, copy.bad_count, copy.error)
        for copy in part.copies
    ]
    findings = list(findings_of(part))
    return (
        part.ledger_id,
        part.first,
        part.last,
        part.differing_count,
        part.lost_count,
        findings,
        copies,
    )
