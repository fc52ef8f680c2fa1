"""A copy that was refused stands in the journal all the same; replay has to find out anew that it is not the first.

On the fake disk, with one failure at each operation of a start (INV-A5).
"""

from __future__ import annotations

import contextlib
import copy

import pytest

from fastbk.errors import Error
from tests.crash.test_bookie_storage import FAULTS, check_restart, formatted
from tests.fixtures.storage_harness import Book, Life

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("fault", ["eio", "short"])
def test_one_failure_in_replay_lets_no_refused_copy_in(fault: str) -> None:
    with formatted() as pristine:
        known = Book()
        life = Life(pristine, known)
        for entry_id in range(4):
            life.add(1, entry_id, b"first %d" % entry_id)
        life.settle()
        life.flush()
        life.add(1, 2, b"another")
        life.settle()
        life.close()
        with pristine.copy() as fake:
            before = fake.operations()
            Life(fake, copy.deepcopy(known)).close()
            total = fake.operations() - before
        assert total > 20
        for nth in range(1, total + 1):
            with pristine.copy() as fake:
                fake.fault(nth=nth, **FAULTS[fault])
                # It may refuse to start, and starts the next time.
                with contextlib.suppress(OSError, Error):
                    Life(fake, copy.deepcopy(known)).close()
                fake.clear_faults()
                check_restart(fake, copy.deepcopy(known), f"{fault} at operation {nth} of {total}")
