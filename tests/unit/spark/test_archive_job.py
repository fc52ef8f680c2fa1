"""What a run of the archive takes of a stream, after the runs before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("pyspark")

from fastbk.errors import DataLost
from fastbk.spark.jobs.archive import Line, stretch_of
from fastbk.spark.looking import Now
from fastbk.stream.positions import DLSN


def now(first_seq: int, end_seq: int, stream_id: str = "s1") -> Now:
    """A stream with ten records a segment, of an entry each."""

    def at(seq: int) -> SimpleNamespace:
        dlsn = DLSN(1 + seq // 10, seq % 10, 0)
        return SimpleNamespace(dlsn=dlsn, seq=seq, stream_id=stream_id)

    return cast("Now", SimpleNamespace(first=at(first_seq), end=at(end_seq)))


def line(end: DLSN, end_seq: int, stream_id: str = "s1") -> Line:
    return Line("a/b", stream_id, "", 0, str(end), end_seq, end_seq, 0, "0", "")


def test_a_run_goes_on_where_the_last_one_ended() -> None:
    found = stretch_of("a/b", now(0, 25), line(DLSN(2, 3, 0), 13))
    assert (found.first, found.first_seq, found.end_seq) == (DLSN(2, 3, 0), 13, 25)


def test_what_was_truncated_behind_the_archive_is_not_missed() -> None:
    """A run's end can lie at the end of a segment, and the next record in the next one."""
    found = stretch_of("a/b", now(20, 25), line(DLSN(2, 10, 0), 20))
    assert (found.first, found.first_seq) == (DLSN(3, 0, 0), 20)


def test_what_was_truncated_before_it_was_archived_is_an_error_that_says_which() -> None:
    with pytest.raises(DataLost, match=r"a/b: records 13\.\.19 were truncated before"):
        stretch_of("a/b", now(20, 25), line(DLSN(2, 3, 0), 13))


def test_another_stream_of_the_same_name_is_taken_from_its_beginning() -> None:
    found = stretch_of("a/b", now(0, 25, "s2"), line(DLSN(2, 3, 0), 13))
    assert (found.first, found.first_seq, found.stream_id) == (DLSN(1, 0, 0), 0, "s2")
