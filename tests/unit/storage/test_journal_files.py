"""The plan of a replay, from headers alone."""

from __future__ import annotations

import msgspec
import pytest

from fastbk.errors import StorageError
from fastbk.native.journal import NO_END, JournalEnd, JournalHeader
from fastbk.storage.directories import JOURNAL_LOG
from fastbk.storage.journal_files import (
    FoundFile,
    OldFile,
    ReplayEnd,
    ReplayFile,
    conclude_replay,
    name_of,
    passed_files,
    passed_header,
    plan_replay,
)
from fastbk.storage.manifest import LogEntry

INCARNATION = 77
SIZE = 1 << 20


def header(
    file_id: int,
    predecessor_file_id: int = 0,
    predecessor_sequence: int = 0,
    state: str = "valid",
    incarnation: int = INCARNATION,
) -> JournalHeader:
    return JournalHeader(
        state=state, size_bytes=SIZE, block_size_bytes=4096, file_id=file_id, salt=1, incarnation=incarnation,
        file_size_bytes=SIZE, predecessor_file_id=predecessor_file_id,
        predecessor_sequence=predecessor_sequence, predecessor_crc=5, first_sequence=predecessor_sequence + 1,
        first_record_sequence=predecessor_sequence * 10, created_s=0, pair=0, adopts=False, bookie_id="b",
    )  # fmt: skip


def found(
    file_id: int, *header_arguments: int, name_id: int | None = None, **more: object
) -> FoundFile:
    name_id = file_id if name_id is None else name_id
    return FoundFile(name_id, f"/j/{name_of(name_id)}", header(file_id, *header_arguments, **more))  # type: ignore[arg-type]


def ended(last_sequence: int, kind: str = "tail", **more: int) -> JournalEnd:
    fields = {
        "last_crc": 9, "next_record_sequence": last_sequence * 10 + 10, "end_bytes": 0, "batches": 0, "records": 0,
        "bytes": 0, "later_sequence": 0, "later_acked_through": 0, "read_error": 0, "passed_damage": 0,
    }  # fmt: skip
    return JournalEnd(kind=kind, last_sequence=last_sequence, **{**fields, **more})


def test_each_file_ends_where_its_successor_says() -> None:
    plan = plan_replay([found(3, 2, 50), found(1), found(2, 1, 20)], 0, INCARNATION)
    assert [(file.file_id, file.end_sequence) for file in plan.files] == [
        (1, 20),
        (2, 50),
        (3, NO_END),
    ]
    assert not plan.damage
    assert plan.next_file_id == 4
    end = conclude_replay(plan, [ended(20, "closing"), ended(50, "successor"), ended(61)])
    assert (end.predecessor_file_id, end.predecessor_sequence, end.predecessor_crc) == (3, 61, 9)
    assert end.next_record_sequence == 620
    assert [(file.file_id, file.last_sequence) for file in end.old_files] == [
        (1, 20),
        (2, 50),
        (3, 61),
    ]


def test_files_behind_the_mark_are_not_read() -> None:
    plan = plan_replay([found(1), found(2, 1, 20), found(3, 2, 50)], 20, INCARNATION)
    assert [file.file_id for file in plan.files] == [2, 3]
    assert [file.file_id for file in plan.behind] == [1]
    # The last one is read even when the mark is past all of it: only its batches say so.
    plan = plan_replay([found(2, 1, 20), found(3, 2, 50)], 70, INCARNATION)
    assert plan.files == [ReplayFile(3, f"/j/{name_of(3)}", NO_END)]
    end = conclude_replay(plan, [ended(70)])
    assert end.predecessor_sequence == 70
    assert [(file.file_id, file.last_sequence) for file in end.old_files] == [(2, 50), (3, 70)]


def test_recycled_and_unused_files_are_no_gap() -> None:
    files = [
        found(5, 4, 40),
        found(2, 1, 10, name_id=6),  # renamed for re-use, crashed before its header
        found(7, state="unused"),
    ]
    plan = plan_replay(files, 40, INCARNATION)
    assert [file.file_id for file in plan.files] == [5]
    assert [file.file_id for file in plan.unused] == [6, 7]
    assert not plan.damage
    assert plan.next_file_id == 8
    end = conclude_replay(plan, [ended(44)])
    assert end.predecessor_file_id == 5, "the chain goes on from the file that was written to"
    assert end.next_file_id == 8


def test_a_missing_file_is_damage_only_above_the_mark() -> None:
    files = [found(1), found(3, 2, 50)]
    plan = plan_replay(files, 0, INCARNATION)
    assert [(file.file_id, file.end_sequence) for file in plan.files] == [(1, NO_END), (3, NO_END)]
    assert [(each.file_id, each.last_sequence) for each in plan.damage] == [(2, 50)]
    assert not plan_replay(files, 50, INCARNATION).damage
    plan = plan_replay([found(3, 2, 50)], 49, INCARNATION)
    assert [(each.first_sequence, each.last_sequence) for each in plan.damage] == [(50, 50)]
    plan = plan_replay([found(3, 2, 50)], 50, INCARNATION)
    assert not plan.damage


def test_a_journal_that_is_gone_is_damage() -> None:
    assert not plan_replay([], 0, INCARNATION).damage
    plan = plan_replay([], 17, INCARNATION)
    assert [each.first_sequence for each in plan.damage] == [18]
    end = conclude_replay(plan, [])
    assert end.predecessor_sequence >= 17


@pytest.mark.parametrize("mark", [0, 20, 50])
def test_both_headers_damaged(mark: int) -> None:
    files = [found(1), found(2, state="damaged"), found(3, 2, 50)]
    plan = plan_replay(files, mark, INCARNATION)
    if mark == 50:
        assert not plan.damage
        assert [file.file_id for file in plan.behind] == [1, 2]
    else:
        assert [(each.file_id, each.last_sequence) for each in plan.damage] == [(2, 50)]
    # The last one: what it held is unknown.
    plan = plan_replay([found(1), found(2, state="damaged")], mark, INCARNATION)
    assert [(each.file_id, each.last_sequence) for each in plan.damage] == [(2, 0)]


def test_damage_in_a_file_never_gives_a_sequence_twice() -> None:
    plan = plan_replay([found(1), found(2, 1, 20)], 0, INCARNATION)
    end = conclude_replay(
        plan, [ended(7, "damage"), ended(25, "damage", later_sequence=31, later_acked_through=29)]
    )
    assert end.predecessor_sequence == 31
    assert [(each.file_id, each.first_sequence) for each in end.damage] == [(1, 8), (2, 26)]
    assert "batch 31" in end.damage[1].reason
    assert [(file.file_id, file.last_sequence) for file in end.old_files] == [(1, 20), (2, 31)]


def test_another_incarnation_is_refused() -> None:
    with pytest.raises(StorageError, match="incarnation"):
        plan_replay([found(1, incarnation=78)], 0, INCARNATION)
    with pytest.raises(StorageError, match="renamed by hand"):
        plan_replay([found(9, name_id=8)], 0, INCARNATION)


def test_an_id_that_a_manifest_names_is_given_to_no_other_file() -> None:
    """The files of that name may be lost: what a manifest says of them would count for the new one."""
    assert plan_replay([], 50, 77, next_file_id=9).next_file_id == 9
    assert plan_replay([found(12, 5, 40)], 50, 77, next_file_id=9).next_file_id == 13


def test_what_the_mark_has_passed_needs_no_header() -> None:
    """The plan is the same but for the sizes, whatever lies between such files."""
    files = [
        found(1),
        found(2, 1, 20),
        found(3, 2, 50),
        found(4, 3, 60, state="damaged"),
        found(5, 4, 70),
        found(6, 5, 80),
        found(7, 6, 90),
        found(8, 7, 95),
        found(9, 0, 0, name_id=10),
    ]
    known = [
        msgspec.structs.replace(file, header=passed_header(file.file_id))
        if file.file_id in (1, 3, 5)
        else file
        for file in files
    ]
    usual, plan = (plan_replay(given, 90, INCARNATION) for given in (files, known))
    assert plan.files == usual.files
    assert [file.file_id for file in plan.files] == [7, 8]
    assert not plan.damage
    assert plan.next_file_id == usual.next_file_id == 11
    assert {file.file_id for file in plan.behind} == {file.file_id for file in usual.behind}
    assert all(file.last_sequence <= 90 for file in plan.behind)
    assert plan.last_used == usual.last_used


def test_the_newest_file_that_is_sealed_is_read() -> None:
    """It may be the last one that was written to: a start ended before the journal had its next one."""
    logs = [
        LogEntry(log_id=JOURNAL_LOG | file_id, salt=1, durable_bytes=8192, live_bytes=1, sealed=sealed, kind="journal")
        for file_id, sealed in ((3, True), (5, True), (7, True), (8, False))
    ]  # fmt: skip
    logs.append(LogEntry(log_id=4, salt=1, durable_bytes=8192, live_bytes=1, sealed=True))
    assert passed_files(logs) == {3, 5}
    assert passed_files(logs[4:]) == frozenset()


@pytest.mark.parametrize(
    ("end", "adopts", "listed", "cut_at"),
    [
        (ended(70, "closing", end_bytes=SIZE // 2), True, {2}, SIZE // 2),
        (ended(70, end_bytes=SIZE // 2), True, {2}, SIZE // 2),
        (ended(70, end_bytes=SIZE - SIZE // 8), True, {2}, 0),
        (ended(70, end_bytes=SIZE // 2), False, {2}, 0),
        (ended(70, end_bytes=SIZE // 2), True, {1}, 0),
        (ended(70, "damage", end_bytes=SIZE // 2), True, {2}, 0),
        (ended(70, end_bytes=SIZE // 2, read_error=-5), True, {2}, 0),
        (ended(59, end_bytes=SIZE // 2), True, {2}, 0),  # what the mark has passed cannot be read
    ],
)
def test_the_last_file_is_cut_if_it_is_a_log_and_nothing_lies_behind_its_end(
    end: JournalEnd, adopts: bool, listed: set[int], cut_at: int
) -> None:
    last = found(2, 1, 50)
    last = msgspec.structs.replace(last, header=msgspec.structs.replace(last.header, adopts=adopts))
    plan = plan_replay([found(1), last], 60, INCARNATION)
    replayed = conclude_replay(plan, [end]).with_kept(listed)
    assert replayed.predecessor_end_bytes == cut_at
    assert replayed.message()["predecessor_end_bytes"] == cut_at


@pytest.mark.parametrize(
    ("counted_bytes", "cut_at"), [(SIZE // 2, SIZE // 2), (SIZE // 2 + 4096, 0)]
)
def test_what_a_manifest_counts_is_not_cut_off(counted_bytes: int, cut_at: int) -> None:
    """Its last batch has a loose record that is damaged, so it ends before it; the runs in it are whole."""
    last = found(2, 1, 50)
    last = msgspec.structs.replace(last, header=msgspec.structs.replace(last.header, adopts=True))
    end = conclude_replay(
        plan_replay([found(1), last], 60, INCARNATION), [ended(70, end_bytes=SIZE // 2)]
    )
    logs = [
        LogEntry(log_id=JOURNAL_LOG | 1, salt=7, durable_bytes=SIZE, live_bytes=1, sealed=True),
        LogEntry(
            log_id=JOURNAL_LOG | 2, salt=7, durable_bytes=counted_bytes, live_bytes=1, sealed=True
        ),
    ]
    assert end.with_kept({1, 2}, logs).predecessor_end_bytes == cut_at


def test_a_file_whose_size_nobody_looked_at_is_told_later() -> None:
    """The journal asks for it before it counts."""
    end = ReplayEnd(9, 8, 70, 1, 9, [OldFile(3, "", 0, 0), OldFile(8, "", 70, SIZE)], [])
    assert [file["file_id"] for file in end.message()["old_files"]] == [8]  # type: ignore[attr-defined]
    assert end.files_named_later == [3]
