"""Simulated worlds: fresh seeds break no invariant, the same seed is the same world, and enough happens in them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.batches import run_many
from tests.simulation.columns import columns
from tests.simulation.plan import CLASSES, draw_plan
from tests.simulation.world import run_seed
from tests.style.tree import ROOT

pytestmark = pytest.mark.slow

FRESH_SEEDS = 125
# Seeds that once broke an invariant, by a bug of the product or of the simulator; what it was.
PAST_FAILURES = {
    36: "each refusal of a deleted ledger's adds sent everything again",
    255: "the same, and the highest entry of a bookie rotten: its fence covers nothing",
    2009028: "a repaired ledger's lost bookie that came back and spoke the truth",
    510003679: "an entry that only a liar made complete",
    510023045: "the same",
    910000621: "a reader of a ledger that is deleted meanwhile",
    910001607: "a ledger deleted while everything was being healed",
    910003235: "an intruder who was the first to show a key to a bookie without data",
    930000439: "a liar to which a repair gave copies",
    930023259: "a bookie that confirmed a copy that it could no longer read",
    930034697: "the same",
    940005496: "a recoverer that gave an honest copy to what a liar had lost",
    940008683: "a bookie reborn after its ledger was deleted",
    940014012: "a bookie that metadata named again after it was reborn",
    950006634: "a repair whose only target had a copy that conflicts",
    438810652992: "a bookie that was wiped between a recoverer's copies and its close",
    644333508903: "the same",
    1938321625000471: "a bookie that was wiped between a repair's copies and its name in metadata",
    1938321625100294: "a reader that took the no of bookies of an older ensemble for a proof",
}


def test_fresh_seeds_break_nothing() -> None:
    """`./dev sim` runs thousands of them, on all processors."""
    *_, total = run_many(int(os.environ["SEED"]) * 1_000_000, FRESH_SEEDS, 1)
    for seed, _, text in total.failed:
        print(f"./dev sim REPLAY={seed}\n{text}")
    assert not total.failed
    assert total.counted > total.seeds / 2, "too little happens in these worlds"


@pytest.mark.parametrize("seed", PAST_FAILURES, ids=str)
def test_past_failures_stay_mended(seed: int) -> None:
    result = run_seed(seed)
    assert result.violation is None, result.text


def test_every_kind_of_fault_strikes() -> None:
    missing = {
        "block", "clog", "corrupt", "crash_client", "cut", "delay", "duplicate", "expire", "fail_sync", "isolate",
        "kill", "lose", "make_busy", "make_liar", "metadata_down", "pause", "power_cut", "read_only", "reorder",
        "slow_disk", "split", "wipe",
    }  # fmt: skip
    classes = set(CLASSES)
    for seed in range(150):
        classes -= set(draw_plan(seed).classes)
        missing -= set(run_seed(seed).faults)
        if not classes | missing:
            return
    pytest.fail(f"150 worlds have none of {sorted(classes | missing)}")


def test_a_seed_is_one_world_whatever_the_order_of_hashes() -> None:
    program = (
        "from tests.simulation.world import run_seed\n"
        "print([run_seed(seed).digest for seed in range(700, 720)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    assert len(digests) == 1


def test_a_trace_shows_what_happened_to_whom() -> None:
    result = run_seed(3, is_traced=True)
    lines = list(columns(result))
    assert "c0" in lines[0] and "b0" in lines[0] and "m" in lines[0].split()
    assert any("synced" in line for line in lines)
    assert f"{result.events} events, no violation" == lines[-1]
