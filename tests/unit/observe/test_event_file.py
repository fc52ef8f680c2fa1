"""The files of events: whole lines only, a bounded size, and what a crash leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.observe.event_log import EventFile, numbered, read_events
from fastbk.observe.events import Event


def event(number: int, text: str = "") -> Event:
    time = f"2026-11-28T03:00:{number % 60:02d}.000000Z"
    return Event(
        number=number, time=time, kind="disk", event="disk.slow", level="warning", source="b-1",
        process="journal", values={"reason": text},
    )  # fmt: skip


def numbers(path: Path) -> list[int]:
    return [one.number for one in read_events(path)]


def test_events_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    assert file.open(may_make=True)
    for number in (1, 2, 3):
        file.append(event(number, "é\n").line())
    file.close()
    assert list(read_events(path)) == [event(number, "é\n") for number in (1, 2, 3)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_file_is_made_unless_it_may_be(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    assert not file.open(may_make=False)
    assert list(tmp_path.iterdir()) == []
    file.close()


@pytest.mark.parametrize("cut", [1, 20, len(event(2).line()) - 1])
def test_a_line_that_was_cut_short_is_left_out_and_closed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(event(1).line() + event(2).line()[:cut])
    assert numbers(path) == [1]
    file = EventFile(path)
    assert file.open(may_make=False)
    file.append(event(3).line())
    file.close()
    assert numbers(path)[0] == 1
    assert numbers(path)[-1] == 3


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b"[1]\n" + event(1).line() + b"\xff\xfe\n{}\n" + b"[" * 100_000 + b"\n" + event(2).line()
    )
    assert numbers(path) == [1, 2]


def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    path, line_bytes = tmp_path / "events.jsonl", len(event(10).line())
    file = EventFile(path, size_bytes_max=10 * line_bytes, files_max=3)
    file.open(may_make=True)
    for number in range(10, 99):
        file.append(event(number).line())
    file.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "events.1.jsonl",
        "events.2.jsonl",
        "events.jsonl",
    ]
    assert all(one.stat().st_size <= 10 * line_bytes for one in tmp_path.iterdir())
    kept = numbers(path)
    assert kept == list(range(kept[0], 99))
    assert 21 <= len(kept) <= 30


def test_a_file_that_is_renamed_while_it_is_read_is_read_once(tmp_path: Path) -> None:
    path, line_bytes = tmp_path / "events.jsonl", len(event(10).line())
    file = EventFile(path, size_bytes_max=10 * line_bytes)
    file.open(may_make=True)
    for number in range(10, 25):
        file.append(event(number).line())
    reading = read_events(path)
    found = [next(reading).number]
    for number in range(25, 45):  # two rotations
        file.append(event(number).line())
    file.close()
    found += [one.number for one in reading]
    assert found[:15] == list(range(10, 25))
    assert found == sorted(set(found))
    assert numbered(path, 3).exists()


def test_a_writer_stays_in_the_directory_that_it_opened(tmp_path: Path) -> None:
    """INV-D2: where another directory has come to lie at the path, nothing is made there."""
    folder = tmp_path / "ledgers"
    folder.mkdir()
    file = EventFile(folder / "events.jsonl", size_bytes_max=1)
    file.open(may_make=True)
    file.append(event(1).line())
    folder.rename(tmp_path / "gone")
    folder.mkdir()
    file.append(event(2).line())
    file.close()
    assert list(folder.iterdir()) == []
    assert numbers(tmp_path / "gone" / "events.jsonl") == [1, 2]
