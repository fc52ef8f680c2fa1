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

        def is_polled() -> bool:
            """Without spin they are 1 and 2 (test_wake_ups.py). A commit that takes longer ends in a sleep."""
            alone = entry_costs(bookie, 1, 0.1)
            return alone["bells journal→worker"] <= 0.8 and alone["journal sleeps"] <= 1.8

        # While somebody else has the processors or the disk, nobody can be seen to poll.
        wait_until(is_polled, "a tenth of a second in which adds are polled for")
        before = counters_of(bookie)
        ledger_id = bookie.create_ledger()
        bookie.write(ledger_id, 1)
        wait_until(lambda: counters_of(bookie)[SPINS[0]] > before[SPINS[0]], "the worker polled")
        quiet = [counters_of(bookie)[name] for name in SPINS]
        # Reads, and metrics, are no adds.
        with bookie.load([ledger_id], window=1) as load:
            load.read(0.2, [1])
        assert [counters_of(bookie)[name] for name in SPINS] == quiet
