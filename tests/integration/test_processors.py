"""`[bookie] processors`: workers and journals keep to them, nobody else does, and a machine has to have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastbk.errors import StorageError
from tools.one_bookie import one_bookie


def test_workers_and_journals_keep_to_their_processors(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    with one_bookie(tmp_path, {"bookie": {"processors": [last]}}) as bookie:
        pids = bookie.bookie.pids
        for name, pid in pids.items():
            expected = {last} if name.startswith(("worker", "journal")) else os.sched_getaffinity(0)
            assert os.sched_getaffinity(pid) == expected, name
        bookie.write(bookie.create_ledger(), 100)


def test_a_processor_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with (
        pytest.raises(
            StorageError, match=r"\[bookie\] processors: 4095 cannot be used here, but 0"
        ),
        one_bookie(tmp_path, {"bookie": {"processors": [0, 4095]}}),
    ):
        pass
