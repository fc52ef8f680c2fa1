"""The lines and chunks that commands read: whole, and without a word of the thread that reads them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.cli import data_files as cli_input
from fastbk.cli.data_files import read_chunks, read_lines
from tests.fixtures.wait import wait_until

LINES = [b"%d" % number * (number % 50) for number in range(1000)]


@pytest.fixture
def descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A file of many more pieces than may wait."""
    monkeypatch.setattr(cli_input, "PIECE_BYTES", 1000)
    (tmp_path / "lines").write_bytes(b"\n".join(LINES))
    opened = os.open(tmp_path / "lines", os.O_RDONLY)
    yield opened
    os.close(opened)


async def test_all_lines_come_whole_and_in_order(descriptor: int) -> None:
    assert [line async for lines in read_lines(descriptor) for line in lines] == LINES


@pytest.mark.parametrize("size_bytes", [1, 999, 1000, 1001, 7000, 1 << 20])
async def test_what_is_read_comes_whole_with_ends_and_in_chunks(
    descriptor: int, size_bytes: int
) -> None:
    text = b"\n".join(LINES)
    ends = [line async for lines in read_lines(descriptor, keep_ends=True) for line in lines]
    assert ends == [line + b"\n" for line in LINES[:-1]] + LINES[-1:]
    os.lseek(descriptor, 0, os.SEEK_SET)
    chunks = [chunk async for some in read_chunks(descriptor, size_bytes) for chunk in some]
    assert chunks == [text[at : at + size_bytes] for at in range(0, len(text), size_bytes)]


async def test_a_line_and_a_chunk_come_while_the_pipe_stays_open() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0) as pipe:
        lines = read_lines(reading)
        pipe.write(b"one\ntwo\nbeg")
        assert await asyncio.wait_for(anext(lines), 20) == [b"one", b"two"]
        pipe.write(b"un\n")
        assert await asyncio.wait_for(anext(lines), 20) == [b"begun"]
        await lines.aclose()


def test_a_command_that_ends_before_its_input_hears_nothing_of_the_reading_thread(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(repr(args.exc_value)))

    async def fail_at_once() -> None:
        async for lines in read_lines(descriptor):
            raise ValueError(lines[0])

    with pytest.raises(ValueError, match="b''"):
        asyncio.run(fail_at_once())
    wait_until(lambda: all(one.name != "fastbk-input" for one in threading.enumerate()), "its end")
    assert told == []
