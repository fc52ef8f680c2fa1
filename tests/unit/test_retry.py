"""Pauses between attempts: they double up to a limit, end in time, and differ with jitter."""

from __future__ import annotations

import pytest

from fastbk.retry import Backoff, Retry, jittered


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.restart()
    assert backoff.next_s() == 1.0


def test_the_last_attempts_come_before_the_end() -> None:
    backoff = Backoff(1.0, 100.0, give_up_s=10.0, now_s=50.0)
    now_s, pauses = 50.0, []
    while (pause_s := backoff.next_in_time_s(now_s)) is not None:
        pauses.append(pause_s)
        now_s += pause_s
    assert pauses == [1.0, 2.0, 3.5, 1.75, 1.0]
    assert now_s <= 60.0
    backoff.restart(now_s)
    assert backoff.next_in_time_s(now_s) == 1.0


def test_jitter_never_prolongs_a_pause() -> None:
    pauses = {jittered(4.0) for _ in range(100)}
    assert len(pauses) > 1
    assert all(2.0 <= one <= 4.0 for one in pauses)


def test_a_retry_raises_the_last_error_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("fastbk.retry.time.monotonic", lambda: now_s)
    attempts = Retry(1.0, 8.0, give_up_s=4.0)
    assert 0.5 <= attempts.pause_s() <= 1.0
    now_s = 3.5
    with pytest.raises(OSError, match="away"):
        attempts.pause_s(OSError("away"))
    with pytest.raises(TimeoutError):
        attempts.pause_s()
    attempts.restart()
    assert 0.5 <= attempts.pause_s(OSError("away")) <= 1.0
