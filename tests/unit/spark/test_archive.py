"""What a run of the archive takes of a stream, after the runs before it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from fastbk.errors import DataLost
from fastbk.spark.jobs.archive import ArchivedStream, counting, stretch_of
from fastbk.stream.positions import DLSN

if TYPE_CHECKING:
    from fastbk.spark.offset_resolver import StreamBounds

pytest.importorskip("pyspark")


def now(first_seq: int, end_seq: int, stream_id: str = "s1") -> StreamBounds:
    """A stream with ten records a segment, of an entry each."""

    def at(seq: int) -> SimpleNamespace:
        dlsn = DLSN(1 + seq // 10, seq % 10, 0)
        return SimpleNamespace(dlsn=dlsn, seq=seq, stream_id=stream_id)

    return cast("StreamBounds", SimpleNamespace(first=at(first_seq), end=at(end_seq)))


def line(end: DLSN, end_seq: int, stream_id: str = "s1") -> ArchivedStream:
    return ArchivedStream("a/b", stream_id, "", 0, str(end), end_seq, end_seq, 0, "0", "")


def test_a_run_goes_on_where_the_last_one_ended() -> None:
    found = stretch_of("a/b", now(0, 25), line(DLSN(2, 3, 0), 13))
    assert (found.first, found.first_seq, found.end_seq) == (str(DLSN(2, 3, 0)), 13, 25)


def test_what_was_truncated_behind_the_archive_is_not_missed() -> None:
    """A run's end can lie at the end of a segment, and the next record in the next one."""
    found = stretch_of("a/b", now(20, 25), line(DLSN(2, 10, 0), 20))
    assert (found.first, found.first_seq) == (str(DLSN(3, 0, 0)), 20)


def test_what_was_truncated_before_it_was_archived_is_an_error_that_says_which() -> None:
    with pytest.raises(DataLost, match=r"a/b: records 13\.\.19 were truncated before"):
        stretch_of("a/b", now(20, 25), line(DLSN(2, 3, 0), 13))


def test_another_stream_of_the_same_name_is_taken_from_its_beginning() -> None:
    found = stretch_of("a/b", now(0, 25, "s2"), line(DLSN(2, 3, 0), 13))
    assert (found.first, found.first_seq, found.id) == (str(DLSN(1, 0, 0)), 0, "s2")


def test_of_two_runs_with_the_same_records_the_later_one_counts() -> None:
    """The earlier one was taken over when its manifest was all that it had left to write."""

    def of(
        first_seq: int, end_seq: int, stream: str = "a/b", stream_id: str = "s1"
    ) -> ArchivedStream:
        return replace(line(DLSN(1, 0, 0), end_seq, stream_id), stream=stream, first_seq=first_seq)

    right = [(1, of(0, 20)), (1, of(0, 5, "c")), (3, of(20, 40)), (4, of(40, 41))]
    late = [(2, of(20, 30)), (2, of(5, 9, "c"))]
    made_anew = [(5, of(0, 7, "a/b", "s2"))]
    assert counting(right + made_anew) == right + made_anew
    lines = sorted([*right, *late, *made_anew], key=lambda one: one[0])
    assert counting(lines) == [one for one in lines if one != late[0]]
