"""The hash of ledger ids that decides where a ledger lives (`src/base/shard.h`), as workers compute it."""

from __future__ import annotations

from fastbk.native._bookie import lib

SHARD_COUNT: int = lib.FBK_SHARD_COUNT
PAIRS_MAX: int = lib.FBK_PAIRS_MAX
"""Journal/index pairs of one bookie."""


def shard_of(ledger_id: int) -> int:
    """Return the shard, 0..63, that a ledger falls into. Part of the disk format: it never changes."""
    return lib.fbk_python_shard_of(ledger_id)
