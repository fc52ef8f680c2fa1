"""`[bookie] spin`: who polls. That nobody rings for them: native/test_worker_spin.c, native/test_journal_spin.c.

How often that saves a bell hangs on how soon a machine gives a processor: `./dev bench costs` measures it.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.fixtures.wait import wait_until
from tools.bench_costs import counters_of
from tools.one_bookie import OneBookie, one_bookie

SPINS = ("fastbk_worker_spins_total", "fastbk_journal_spins_total")


def spins_of(bookie: OneBookie) -> list[float]:
    """Return how often its worker and its journal have polled; a process that has just started has no counters yet."""
    counters = counters_of(bookie)
    return [counters.get(name, 0.0) for name in SPINS]


def test_worker_and_journal_poll_for_adds_and_for_nothing_else(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    settings = {"bookie": {"spin": "1ms", "processors": [last]}}
    with one_bookie(tmp_path, settings) as bookie:
        others = os.sched_getaffinity(0) - {last}
        for name, pid in bookie.bookie.pids.items():
            if name.startswith("journal"):
                assert os.sched_getaffinity(pid) == {last}
            elif name.startswith("worker"):
                assert os.sched_getaffinity(pid) == (others or {last})
        before = spins_of(bookie)
        ledger_id = bookie.create_ledger()
        bookie.write(ledger_id, 1)
        wait_until(
            lambda: all(now > then for now, then in zip(spins_of(bookie), before, strict=True)),
            "worker and journal polled",
        )
        quiet = spins_of(bookie)
        # Reads, and metrics, are no adds.
        with bookie.load([ledger_id], window=1) as load:
            load.read(0.2, [1])
        assert spins_of(bookie) == quiet
