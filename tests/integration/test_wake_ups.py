"""What docs/performance.md says of sleeps, bells and system calls: an add costs none more than it has to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench_costs import entry_costs, network_calls
from tools.one_bookie import one_bookie

SECONDS = 1.0


@pytest.mark.alone
def test_an_add_wakes_each_process_as_often_as_it_has_to(tmp_path: Path) -> None:
    with one_bookie(tmp_path) as bookie:
        alone = entry_costs(bookie, 1, SECONDS)
        many = entry_costs(bookie, 100, SECONDS)
        apart = entry_costs(bookie, 100, SECONDS, connections=100)
    # A lone add: the client's bytes and the journal's bell wake the worker, the worker's bell and the disk the journal.
    assert alone["receives"] <= 1.05
    assert alone["sends"] <= 1.05
    assert alone["polls"] <= 1.05
    assert alone["batches"] <= 1.05
    assert alone["bells worker→journal"] <= 1.05
    assert alone["bells journal→worker"] <= 1.05
    assert alone["worker sleeps"] <= 2.2
    assert alone["journal sleeps"] <= 2.3
    # The index hears of it each 5 ms.
    assert alone["bells journal→index"] * alone["entries a second"] <= 250
    # A hundred at once are few batches, and none of them costs more wake-ups than a lone add.
    assert many["batches"] <= 0.1
    assert many["bells worker→journal"] <= many["batches"] * 1.05
    assert many["bells journal→worker"] <= many["batches"] * 1.05
    assert network_calls(many) <= 0.1 + many["batches"] * 9
    assert many["journal sleeps"] <= many["batches"] * 2.5
    # Its bytes to the journal: the entry, its header, at most a block of padding for each batch.
    assert many["journal bytes"] - many["of them padding"] <= 1200
    # Over a connection each: a receive and a send. Whoever is ready together shares a wait; without that, an add
    # makes a poll (1.0). How many are ready together is the client's and the scheduler's timing: 4 to 7 here.
    assert apart["receives"] <= 1.02
    assert apart["sends"] <= 1.02
    assert apart["polls"] <= 0.5
    assert apart["worker wakes"] <= 0.1
