"""Names of files, and which of them to merge, seal and delete."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.storage import commits
from fastbk.storage.directories import JOURNALS, LOCATIONS, LOGS, NumberedFiles
from fastbk.storage.maintenance import FILES_MAX, MERGE_FILES_MIN, TIER_BYTES, choose_merge, tier_of
from fastbk.storage.manifest import LocationsEntry, LogEntry

IDS = st.integers(0, 2**64 - 1)


def files_of(sizes: list[int]) -> list[LocationsEntry]:
    return [
        LocationsEntry(file_id=100 + i, first_generation=i, last_generation=i, size_bytes=size)
        for i, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("files", [LOGS, LOCATIONS, JOURNALS])
@given(an_id=IDS)
def test_names_there_and_back(files: NumberedFiles, an_id: int) -> None:
    assert files.id_of(files.name(an_id)) == an_id


@pytest.mark.parametrize(
    ("files", "golden"),
    [(LOGS, "logs/{}.log"), (LOCATIONS, "locations/{}.loc"), (JOURNALS, "{}.journal")],
)
def test_names_that_are_no_others(files: NumberedFiles, golden: str) -> None:
    assert files.path("/d", 0x1F) == f"/d/{golden.format('000000000000001f')}"
    whole = "0000000000000001"
    others = ("", f"1{files.ending}", f"{whole[:-1]}g{files.ending}", f"{whole}{files.ending}.new")
    for name in (*others, whole, f"{whole}{files.ending.upper()}", f"x{whole}{files.ending}"):
        assert files.id_of(name) is None


def test_tiers() -> None:
    sizes = (0, TIER_BYTES, TIER_BYTES + 1, 8 * TIER_BYTES, 8 * TIER_BYTES + 1)
    assert [tier_of(size) for size in sizes] == [0, 0, 1, 1, 2]


def test_few_files_are_left_alone() -> None:
    assert choose_merge([]) == ()
    assert choose_merge(files_of([1] * (MERGE_FILES_MIN - 1))) == ()


def test_the_newest_small_ones_are_merged() -> None:
    large = [100 * TIER_BYTES]
    chosen = choose_merge(files_of(large * 3 + [10] * 9))
    assert [entry.file_id for entry in chosen] == list(range(103, 112))


def test_a_damaged_file_is_never_merged() -> None:
    files = files_of([10] * 20)
    assert [entry.file_id for entry in choose_merge(files, {105})] == list(range(106, 120))
    assert choose_merge(files, {115}) == ()


@given(st.lists(st.integers(1, 1 << 34), max_size=80), st.sets(st.integers(100, 180), max_size=3))
def test_what_is_chosen_are_always_the_newest_neighbours(
    sizes: list[int], damaged: set[int]
) -> None:
    files = files_of(sizes)
    chosen = choose_merge(files, damaged)
    assert list(chosen) == files[len(files) - len(chosen) :]
    assert not {entry.file_id for entry in chosen} & damaged
    assert not chosen or len(chosen) >= MERGE_FILES_MIN
    if not damaged and len(files) >= FILES_MAX:
        assert chosen


def test_lookups_and_rewriting_stay_bounded() -> None:
    """10,000 flushes of 64 KiB: few files at any time, and each byte is written again a few times only."""
    files: list[LocationsEntry] = []
    flushed = rewritten = most = 0
    for generation in range(10_000):
        files += files_of([65536])
        files[-1] = msgspec.structs.replace(
            files[-1], first_generation=generation, last_generation=generation
        )
        flushed += 65536
        while chosen := choose_merge(files):
            size = sum(entry.size_bytes for entry in chosen)
            rewritten += size
            files = files[: len(files) - len(chosen)]
            files.append(
                LocationsEntry(
                    file_id=-generation,
                    first_generation=chosen[0].first_generation,
                    last_generation=chosen[-1].last_generation,
                    size_bytes=size,
                )
            )
        most = max(most, len(files))
    assert most <= 5 * MERGE_FILES_MIN
    assert rewritten <= 6 * flushed


def log(log_id: int, live: int, sealed: bool) -> LogEntry:
    return LogEntry(log_id=log_id, salt=0, durable_bytes=4096, live_bytes=live, sealed=sealed)


def test_appending_seals_the_others() -> None:
    logs = commits.appended((log(1, 5, False), log(3, 5, False)), log(3, 9, False))
    assert logs == (log(1, 5, True), log(3, 9, False))
    assert commits.appended(logs, log(2, 1, False)) == (
        log(1, 5, True),
        log(2, 1, False),
        log(3, 9, True),
    )


def test_only_sealed_logs_without_live_bytes_are_dead() -> None:
    logs = (log(1, 0, True), log(2, 5, True), log(3, 0, False))
    kept, dead = commits.split_dead(logs)
    assert kept == (log(2, 5, True), log(3, 0, False))
    assert dead == (log(1, 0, True),)


def test_a_count_adds_what_came_since_it_was_begun() -> None:
    before = (log(1, 5, True), log(2, 5, False))
    logs = (log(1, 5, True), log(2, 9, False), log(3, 2, False))
    counted = commits.recounted(logs, before, {2: 3})
    assert counted == (log(1, 0, True), log(2, 7, False), log(3, 2, False))
