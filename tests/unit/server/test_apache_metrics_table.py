"""Our metrics by Apache's names against those that a bookie of Apache's showed, names, types and labels.

`apache_metrics_4.17.2.txt` was written down from a bookie with DbLedgerStorage and one directory of each kind; what
differs has a reason in `apache_metrics_differences.txt`, and nothing else has.
"""

from __future__ import annotations

from pathlib import Path

from fastbk.observe.names import NAMES
from fastbk.server.admin.apache_metrics import SUMMARIES, TOTALS, VALUES

GOLDEN = Path(__file__).parents[2] / "golden"


def rows(name: str) -> dict[str, str]:
    """Return what stands behind each name."""
    lines = (GOLDEN / name).read_text().splitlines()
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}


def test_what_has_no_name_of_ours_has_one_of_apaches() -> None:
    asked = {slot for one in SUMMARIES for slot in (one.slot_name, *(one.failed or ()))}
    asked |= {slot for one in TOTALS for slot in (*one.done, *(one.failed or ()))}
    asked |= {slot for one in VALUES for slot in one.plus}
    assert {name.slot_name for name in NAMES if not name.is_own} <= asked


def test_every_difference_has_a_reason_and_every_reason_a_difference() -> None:
    ours, theirs = rows("apache_metrics.txt"), rows("apache_metrics_4.17.2.txt")
    differing = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    reasons = {
        name.rstrip(":"): why for name, why in rows("apache_metrics_differences.txt").items()
    }
    assert differing == set(reasons)
    assert all(reasons.values())
    assert len(ours.keys() & theirs.keys()) >= 67
