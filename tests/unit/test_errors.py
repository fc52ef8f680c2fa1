"""A copy of an error says all that the error says, its cause and context included."""

from __future__ import annotations

import copy
import pickle

import pytest

from fastbk.errors import (
    REPLICAS_SHOWN_MAX,
    ConfigError,
    Error,
    InvariantError,
    NotEnoughBookies,
    PositionTruncated,
    WriterFailed,
    check_invariant,
)


def raised(cause: BaseException | None, *, hides: bool = False) -> Error:
    """Return an error as a caller gets it: raised while another one was handled."""
    try:
        try:
            raise KeyError("context")
        except KeyError:
            error = NotEnoughBookies("few", ledger_id=7, replicas={"a": "away"})
            if cause is not None:
                raise error from cause
            if hides:
                raise error from None
            raise error  # noqa: B904 -- its context is what is tested
    except Error as caught:
        return caught


def test_a_copy_has_the_cause_and_the_context() -> None:
    cause = OSError(5, "i/o")
    for again in (raised(cause).copy(), copy.copy(raised(cause)), raised(cause).copy().copy()):
        assert again.__cause__ is cause and again.__suppress_context__
        assert isinstance(again.__context__, KeyError)
    assert not raised(None).copy().__suppress_context__, "its context is shown"
    assert raised(None, hides=True).copy().__suppress_context__, "its context stays hidden"
    with pytest.raises(NotEnoughBookies) as caught:
        raise raised(cause).copy()
    assert caught.value.__cause__ is cause


def test_a_copy_shares_nothing_that_can_change() -> None:
    error = raised(None)
    error.add_note("first")
    again = error.copy()
    again.add_note("second")
    again.replicas["b"] = "away, too"
    assert error.__notes__ == ["first"] and again.__notes__ == ["first", "second"]
    assert error.replicas == {"a": "away"} and again.ledger_id == 7
    assert again.__traceback__ is None


def test_subclasses_keep_what_they_add() -> None:
    error = PositionTruncated("gone")
    error.first_available = "2.0.0"
    for again in (error.copy(), copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert isinstance(again, PositionTruncated) and again.first_available == "2.0.0"
    assert isinstance(ConfigError("x").copy(), ValueError)
    failed = WriterFailed("x", outcome="unknown").copy()
    assert (failed.outcome, failed.retryable) == ("unknown", False)


def test_the_text_names_the_first_bookies_and_counts_the_others() -> None:
    """A cluster of a thousand bookies made it a text of 70 KB."""
    why = {f"bookie-{number}": "read-only" for number in range(1000)}
    error = NotEnoughBookies("too few", replicas=why)
    assert len(str(error)) < 400
    assert str(error).startswith("too few [bookie-0: read-only; bookie-1: read-only; ")
    assert str(error).endswith(f"bookie-7: read-only; and {1000 - REPLICAS_SHOWN_MAX} more]")
    assert error.replicas == why and error.copy().replicas == why
    few = NotEnoughBookies("too few", replicas=dict(list(why.items())[:REPLICAS_SHOWN_MAX]))
    assert str(few).endswith("bookie-7: read-only]")


# A broken invariant ends the process: nothing that handles the world's errors may swallow it.


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
