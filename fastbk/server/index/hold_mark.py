"""A test switch: the mark stays where the start has put it, so the next start has everything since then to replay.

    FASTBK_HOLD_MARK=1      in the environment of a bookie, which hands it on to its index

Flushes go on and free the caches, and what they wrote is read as ever; but no manifest is written, the journal is told
of no mark and keeps all its files (`[journal] limit` bounds them: beyond it normal adds are refused), and nothing that
the manifest on disk names is unlinked. Whatever ends the index, a clean stop too, the next start finds files that no
manifest names, removes them, and replays the journal. Replay itself moves the mark as ever: with the switch still set,
it holds again from that start's end on.

For tests and measurements of replay only. A journal that does not sync ([journal] sync = "never") must not be combined
with it: a clean stop then promises what was not flushed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.index import Index
    from fastbk.storage.commits import Commits

VARIABLE = "FASTBK_HOLD_MARK"


def hold_mark_if_set(index: Index, commits: Commits, *, log: Callable[..., None]) -> None:
    """Hold the mark from now on if the environment says so, and say it aloud. After replay, in the main loop."""
    if os.environ.get(VARIABLE, "0") in ("", "0"):
        return
    commits.is_held = True
    index.hold_mark()
    log(
        "index.mark_is_held",
        variable=VARIABLE,
        mark=commits.manifest.mark,
        next="for tests only: the journal grows to its limit, and each start replays all of it",
    )
