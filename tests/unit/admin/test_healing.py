"""How far a run over many ledgers is: what was read of a ledger counts before the ledger is done."""

from __future__ import annotations

import time

import pytest

from fastbk.admin.healing import Progress
from fastbk.replication.repair_options import CopyRate


def test_bytes_read_within_a_ledger_give_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    progress = Progress(ledgers=1, size_bytes=400, began_s=0.0)
    assert progress.left_s() is None
    progress.rate.spend(100, 1.0)
    assert (progress.bytes_read, progress.left_s()) == (100, 30.0)
    progress.rate.spend(900, 2.0)  # a striped ledger is read twice
    assert progress.left_s() == 0.0


def test_a_rate_that_others_share_counts_from_the_beginning_of_the_run() -> None:
    rate = CopyRate()
    rate.spend(1000, 1.0)
    assert Progress(rate=rate).bytes_read == 0


def test_without_sizes_ledgers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    assert Progress(ledgers=4, ledgers_done=1, began_s=0.0).left_s() == 30.0


def test_of_ledgers_and_bytes_the_slower_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    progress = Progress(ledgers=2, ledgers_done=1, size_bytes=100, bytes_done=10, began_s=0.0)
    assert progress.left_s() == pytest.approx(90.0)
