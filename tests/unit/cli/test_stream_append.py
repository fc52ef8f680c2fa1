"""The lines that `fastbk stream append` reads: whole, and without a word of the thread that reads them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.cli.stream import append
from fastbk.cli.stream.append import _lines
from tests.fixtures.wait import wait_until

LINES = [b"%d" % number * (number % 50) for number in range(1000)]


@pytest.fixture
def descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A file of many more pieces than may wait."""
    monkeypatch.setattr(append, "PIECE_BYTES", 1000)
    (tmp_path / "lines").write_bytes(b"\n".join(LINES))
    opened = os.open(tmp_path / "lines", os.O_RDONLY)
    yield opened
    os.close(opened)


async def test_all_lines_come_whole_and_in_order(descriptor: int) -> None:
    assert [line async for lines in _lines(descriptor) for line in lines] == LINES


def test_a_command_that_ends_before_its_input_hears_nothing_of_the_reading_thread(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(repr(args.exc_value)))

    async def fail_at_once() -> None:
        async for lines in _lines(descriptor):
            raise ValueError(lines[0])

    with pytest.raises(ValueError, match="b''"):
        asyncio.run(fail_at_once())
    wait_until(lambda: all(one.name != "fastbk-lines" for one in threading.enumerate()), "its end")
    assert told == []
