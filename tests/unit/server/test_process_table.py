import importlib.util
import os
from pathlib import Path

import pytest

from fastbk.config import MetadataSettings
from fastbk.server import process_table
from fastbk.server.configuration import bookie_config
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import check
from fastbk.server.configuration.settings import (
    BookieSettings,
    JournalSettings,
    LedgerSettings,
    LimitSettings,
)
from fastbk.server.process_table import GC, INDEX, JOURNAL, Segment
from fastbk.units import KIB, MIB

ROOT = Path(__file__).resolve().parents[3]


def test_every_process_file_of_a_bookie_is_in_the_table_and_every_entry_has_its_file() -> None:
    files = {path.relative_to(ROOT) for path in (ROOT / "fastbk").glob("**/process.py")}
    named = {Path(*m.split(".")).with_suffix(".py") for m in process_table.MODULES.values()}
    assert named == {
        path for path in files if path.parts[1] not in ("native", "gateway", "console", "producers")
    }


def test_the_picture_shows_the_processes_of_the_table() -> None:
    picture = (ROOT / "ARCHITECTURE.md").read_text().split("```")[1]
    for role in (*process_table.MODULES, "supervisor"):
        assert f"│ {role}" in picture


def test_each_segment_is_written_by_its_owner_alone() -> None:
    """INV-R1: nobody is handed another's memory writable."""
    for process in process_table.children(3, 2):
        for source in process_table.descriptors(process, 3, 2).values():
            if isinstance(source, Segment):
                assert source.writable == (source.owner == process)


def test_a_pair_is_handed_nothing_of_another() -> None:
    """A19: no journal nor index can read, ring or write what belongs to another pair, nor its part of a worker."""
    for process in process_table.children(2, 3):
        if process.role not in ("journal", "index"):
            continue
        for source in process_table.descriptors(process, 2, 3).values():
            if isinstance(
                source, Segment | process_table.States | process_table.Lock | process_table.GcPair
            ):
                assert source.pair == process.index
            elif isinstance(source, process_table.Bell) and source.sleeper.role != "worker":
                assert source.sleeper.index == process.index


def test_there_is_a_segment_for_all_that_is_handed_out() -> None:
    made = {(segment.owner, segment.pair) for segment in process_table.segments(2, 3)}
    wanted = {
        (source.owner, source.pair)
        for process in process_table.children(2, 3)
        for source in process_table.descriptors(process, 2, 3).values()
        if isinstance(source, Segment)
    }
    assert made == wanted
    assert len(made) == 2 * 3 + 3 + 3 + 1


def test_every_child_is_drained() -> None:
    roles = {process.role for process in process_table.children(2)}
    assert roles == set(process_table.DRAIN_ORDER) == set(process_table.MODULES)


def test_journal_and_index_see_every_worker() -> None:
    for process in (JOURNAL, INDEX):
        names = process_table.descriptors(process, 2)
        assert {"worker_bell.0", "worker_bell.1", "worker_segment.0", "worker_segment.1"} <= set(
            names
        )


def test_gc_gets_nothing_of_the_data_path() -> None:
    assert set(process_table.descriptors(GC, 2)) == {"segment", "index.0"}


def test_modules_of_all_children_can_be_found() -> None:
    for module in process_table.MODULES.values():
        assert importlib.util.find_spec(module) is not None


def test_workers_are_one_on_few_cores() -> None:
    expected = max(1, min(16, len(os.sched_getaffinity(0)) // 4))
    assert process_table.worker_count(BookieConfig()) == expected


@pytest.mark.parametrize("workers", range(1, 17))
@pytest.mark.parametrize("frame_bytes", [16 * KIB, 128 * KIB, 5 * MIB + 4 * KIB, 31 * MIB])
def test_every_worker_s_credit_holds_its_largest_add(workers: int, frame_bytes: int) -> None:
    """INV-R3: an add that never gets credit would wait for ever."""
    limits = LimitSettings(frame_size_bytes_max=frame_bytes)
    for wanted_bytes in (3 * frame_bytes, 48 * MIB, 200 * MIB):
        cache_bytes, reserve_bytes = process_table.write_cache_sizes(wanted_bytes, limits, workers)
        spare_bytes = cache_bytes // process_table.CACHE_SPARE_PART
        assert cache_bytes + spare_bytes >= wanted_bytes
        assert reserve_bytes >= min(frame_bytes, cache_bytes // 2)
        entries = min(limits.batch_entries_max, frame_bytes // 36)
        assert (cache_bytes - reserve_bytes) // workers >= frame_bytes + 56 * entries


def of_pairs(pairs: int, workers: int = 1) -> BookieConfig:
    return BookieConfig(
        bookie=BookieSettings(workers=workers),
        metadata=MetadataSettings(uri="sqlite:/tmp/m"),
        journal=JournalSettings(directories=tuple(f"/j{pair}" for pair in range(pairs))),
        ledgers=LedgerSettings(directories=tuple(f"/l{pair}" for pair in range(pairs))),
    )


def test_a_bookie_of_one_pair_takes_what_it_is_set_to() -> None:
    config = of_pairs(1)
    assert (
        bookie_config.ledger_settings(config, 0).write_cache_size_bytes
        == config.ledgers.write_cache_size_bytes
    )
    limits = config.limits
    assert process_table.ring_sizes(process_table.worker(0), config) == [
        limits.add_ring_size_bytes, limits.request_ring_size_bytes
    ]  # fmt: skip
    single = BookieConfig(
        bookie=BookieSettings(workers=1),
        journal=JournalSettings(directory="/j"),
        ledgers=LedgerSettings(directory="/l"),
    )
    assert process_table.memory_table(single) == process_table.memory_table(config)


@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("count", range(1, 9))
def test_the_defaults_of_any_number_of_pairs_fit(count: int, workers: int) -> None:
    """A21; caches and rings are divided, down to what a pair can work with (A9, A16)."""
    config = of_pairs(count, workers)
    check(config)
    frame_bytes = config.limits.frame_size_bytes_max
    add, _, reply = bookie_config.ring_sizes(config.limits, count)
    assert add >= 3 * frame_bytes
    assert reply >= 2 * frame_bytes
    for size_bytes in bookie_config.ring_sizes(config.limits, count):
        assert size_bytes & (size_bytes - 1) == 0
    for pair in range(count):
        settings = bookie_config.ledger_settings(config, pair)
        assert settings.directory == f"/l{pair}"
        assert settings.write_cache_size_bytes >= 3 * frame_bytes
        assert bookie_config.journal_settings(config, pair).all_directories == (f"/j{pair}",)
    assert process_table.memory_bytes(config) < process_table.memory_bytes(of_pairs(1, workers)) * (
        1 + count / 2
    )
