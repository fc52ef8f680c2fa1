"""The audit's slices: whatever slice a run ends behind, the next one does the rest, and nothing twice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fastbk.admin.copy_audit import Audited, AuditUnit, BookieAudited, units_of
from fastbk.client import LedgerInfo
from fastbk.errors import ConfigError
from fastbk.model.ledger import LedgerState
from fastbk.replication.auditing import PART_ENTRIES_MAX
from fastbk.spark.jobs.audit import AuditPlan, AuditProgress, slices_of
from tests.fixtures.fake_quorum import metadata_of

if TYPE_CHECKING:
    import random
    from pathlib import Path


def info_of(ledger_id: int, entries: int, entry_bytes: int = 100) -> LedgerInfo:
    """A closed ledger, of two fragments if it is long enough; -1 entries: an open one with a finished fragment."""
    metadata = metadata_of(3, 2, 2, *([7] if entries < 0 or entries > 10 else []))
    if entries >= 0:
        metadata = replace(
            metadata,
            state=LedgerState.CLOSED,
            last_entry_id=entries - 1,
            length=entries * entry_bytes,
        )
    return LedgerInfo(ledger_id, metadata, 1)


def test_units_lie_in_one_fragment_and_are_bounded() -> None:
    units = list(units_of(info_of(3, 50), 1000))
    assert [(one.first, one.last) for one in units] == [
        (0, 6), *((first, min(49, first + 9)) for first in range(7, 50, 10)),
    ]  # fmt: skip
    assert [one.size_bytes for one in units][:2] == [700, 1000]
    assert list(units_of(info_of(3, -1))) == [AuditUnit(3, 0, 6, 0)]
    assert list(units_of(info_of(3, 0))) == []
    large = list(units_of(info_of(3, 3 * PART_ENTRIES_MAX, 0)))
    assert max(one.last - one.first + 1 for one in large) == PART_ENTRIES_MAX
    assert sum(one.last - one.first + 1 for one in large) == 3 * PART_ENTRIES_MAX


def test_runs_that_end_anywhere_do_everything_once(rng: random.Random) -> None:
    for _ in range(200):
        infos = [
            info_of(ledger_id, rng.choice([-1, 0, 1, 5, 40, 200]))
            for ledger_id in sorted(rng.sample(range(1000), rng.randrange(8)))
        ]
        plan = AuditPlan(unit_bytes=rng.choice([100, 1000, 10**9]), slice_units=rng.randrange(1, 6))
        progress = AuditProgress()
        done: list[AuditUnit] = []
        for _ in range(3000):
            ends_behind = rng.randrange(1, 4)
            ended = True
            for at, one in enumerate(slices_of(iter(infos), plan, progress)):
                assert len(one.units) <= plan.slice_units
                if at == ends_behind:
                    ended = False
                    break
                done += one.units
                progress.audited.ledgers += one.ledgers
                progress.audited.open += one.open
                if one.ledger_id >= 0:
                    progress.ledger_id, progress.last = one.ledger_id, one.last
            if ended:
                break
        wanted = [unit for info in infos for unit in units_of(info, plan.unit_bytes)]
        assert done == wanted
        assert progress.audited.ledgers == len(infos)
        assert progress.audited.open == sum(not one.metadata.is_closed for one in infos)


def test_a_progress_file_says_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    assert AuditProgress.read(path, "u", None) == AuditProgress(wanted=["u", None])
    audited = Audited(ledgers=3, bookies={"b1": BookieAudited(due=5, good=4)}, findings=["x"])
    progress = AuditProgress(audited, 7, 99, 2, ["u", [3, 7]])
    progress.write(path)
    assert AuditProgress.read(path, "u", [7, 3, 7]) == progress
    assert list(tmp_path.iterdir()) == [path]
    for uri, ledgers in (("u", None), ("u", [3]), ("other", [3, 7])):
        with pytest.raises(ConfigError, match="other ledgers, or of another cluster"):
            AuditProgress.read(path, uri, ledgers)
    for strange in ("", "[]", "{}", '{"audited": 3, "ledger_id": 1}'):
        path.write_text(strange)
        with pytest.raises(ConfigError, match="no progress file"):
            AuditProgress.read(path, "u", None)


def test_a_plan_without_room_is_refused() -> None:
    with pytest.raises(ConfigError):
        AuditPlan(slice_units=0)


def test_a_progress_file_that_could_not_be_written_is_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    for path in (tmp_path, tmp_path / "missing" / "progress.json"):
        with pytest.raises(ConfigError, match="must be a file, in a folder that is there"):
            AuditPlan(progress=path)
    AuditPlan(progress=tmp_path / "progress.json")
