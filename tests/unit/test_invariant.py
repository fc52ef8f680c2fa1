"""A broken invariant ends the process: nothing that handles the world's errors may swallow it."""

from __future__ import annotations

import pytest

from fastbk.errors import InvariantError, check_invariant


def test_a_kept_invariant_says_nothing() -> None:
    check_invariant(True, "INV-J1 holds")


def test_a_broken_one_is_not_an_exception_to_handle() -> None:
    def swallow() -> None:
        try:
            check_invariant(False, "INV-J1 acknowledged before its sync")
        except Exception:
            pass

    with pytest.raises(InvariantError, match="INV-J1 acknowledged"):
        swallow()
