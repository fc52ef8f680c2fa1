"""What `/info` says of a bookie's state, beside who it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

import fastbk

if TYPE_CHECKING:
    from fastbk.server.disks.disk_reports import DiskBoard
    from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget


def life_info(life: Lifecycle, budget: RestartBudget, disks: DiskBoard) -> dict[str, object]:
    """Return state, since when and why, what speaks against readiness, restarts and disks."""
    now_s = time.monotonic()
    return {
        "software": f"fastbk {fastbk.__version__}",
        "state": life.state.value,
        "state_seconds": round(now_s - life.since_s, 1),
        "reason": life.reason,
        "not_ready": life.not_ready(now_s),
        "conditions": msgspec.to_builtins(life.conditions(now_s)),
        "restarts": budget.total,
        "disks": disks.shown(),
    }
