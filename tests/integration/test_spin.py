"""`[bookie] spin`: who polls is not rung for, and nobody polls while nothing is under way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fixtures.wait import wait_until
from tools.bench_costs import counters_of, entry_costs
from tools.one_bookie import one_bookie

SPINS = ("fastbk_worker_spins_total", "fastbk_journal_spins_total")


@pytest.mark.alone
def test_who_polls_is_not_rung_for(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    settings = {"bookie": {"spin": "1ms", "processors": [last]}}
    with one_bookie(tmp_path, settings) as bookie:
        others = os.sched_getaffinity(0) - {last}
        for name, pid in bookie.bookie.pids.items():
            if name.startswith("journal"):
                assert os.sched_getaffinity(pid) == {last}
            elif name.startswith("worker"):
                assert os.sched_getaffinity(pid) == (others or {last})
        alone = entry_costs(bookie, 1, 0.5)
        before = counters_of(bookie)
        ledger_id = bookie.create_ledger()
        bookie.write(ledger_id, 1)
        wait_until(lambda: counters_of(bookie)[SPINS[0]] > before[SPINS[0]], "the worker polled")
        quiet = [counters_of(bookie)[name] for name in SPINS]
        # Reads, and metrics, are no adds.
        with bookie.load([ledger_id], window=1) as load:
            load.read(0.2, [1])
        assert [counters_of(bookie)[name] for name in SPINS] == quiet
    # Without spin they are 1 and 2 (test_wake_ups.py); a commit that takes longer than that ends in a sleep.
    assert alone["bells journal→worker"] <= 0.8
    assert alone["journal sleeps"] <= 1.8
