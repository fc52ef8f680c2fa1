"""The lines and chunks that commands read: whole, and without a word of the thread that reads them."""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastbk.cli import data_files as cli_input
from fastbk.cli.data_files import VARIABLE, add_password, password_of, read_chunks, read_lines
from fastbk.errors import ConfigError
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


# A ledger's password: from a file, a variable, or the terminal; it is no argument.


def given(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_password(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("content", "found"), [(b"pw", b"pw"), (b"pw\n", b"pw"), (b"p w\n\n", b"p w\n"), (b"", b"")]
)
def test_a_file_has_it_and_a_newline_at_its_end_does_not_count(
    content: bytes, found: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    assert password_of(given("--password-file", str(path))) == found


def test_a_file_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "from the variable")
    assert password_of(given()) == b"from the variable"
    path = tmp_path / "secret"
    path.write_bytes(b"from the file")
    assert password_of(given("--password-file", str(path))) == b"from the file"
    monkeypatch.delenv(VARIABLE)
    assert password_of(given()) == b""


def test_a_file_that_cannot_be_one_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it"):
        password_of(given("--password-file", str(tmp_path / "none")))
    (tmp_path / "large").write_bytes(bytes(5000))
    with pytest.raises(ConfigError, match="more than 4096"):
        password_of(given("--password-file", str(tmp_path / "large")))


def test_it_is_no_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        given("--password", "pw")
    said = capsys.readouterr().err
    assert "list of processes: give --password-file FILE" in said and " pw" not in said
