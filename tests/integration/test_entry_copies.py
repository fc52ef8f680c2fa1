"""What docs/performance.md says of copies: none of an entry's bytes is copied once more than it has to be."""

from __future__ import annotations

from pathlib import Path

from tools.bench_costs import entry_costs
from tools.one_bookie import ENTRY_BYTES, one_bookie

SECONDS = 1.5
STORED_BYTES = ENTRY_BYTES + 36
"""With Apache's header of 32 bytes and a CRC32C."""


def test_an_entry_is_copied_once_by_each_process_and_not_by_the_flush(tmp_path: Path) -> None:
    with one_bookie(tmp_path) as bookie:
        costs = entry_costs(bookie, 1000, SECONDS)
    assert costs["journal bytes"] - costs["of them padding"] <= STORED_BYTES + 120
    assert costs["write cache bytes"] <= STORED_BYTES * 1.02
    # What a ledger brings before it has a chunk, and the last chunk of each flush, are few.
    assert costs["part that the flush copied"] <= 0.1
    # Chunks are padded to blocks, and their item tables have room to spare.
    assert costs["entry log bytes"] <= STORED_BYTES * 1.1
