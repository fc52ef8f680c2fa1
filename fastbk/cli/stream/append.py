"""`fastbk stream append`: lines of a file or stdin become records, as they come in."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from fastbk.cli.options import note, print_answer
from fastbk.cli.progress import ByteProgress
from fastbk.cli.stream.options import stream_of
from fastbk.cli.stream.output import RecordLine, line_of_json
from fastbk.errors import ConfigError, os_errors_as
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from fastbk.stream.client import Client

PIECE_BYTES = 256 * 1024
LINE_BYTES_MAX = 64 << 20
PIECES_WAITING = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `append` takes, beside the stream."""
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="default: - (stdin)")
    parser.add_argument(
        "--json-lines", action="store_true",
        help="each line is an object as `read --json` prints it: payload or payload_base64, txid, key, headers",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true",
        help="number the lines (transaction id = line, from 1; with --json-lines: txid) and pass over those that the"
        " stream has: after a failure give the same command again, and nothing is missing or twice",
    )  # fmt: skip
    parser.add_argument("--create", action="store_true", help="make the stream if it is not there")


async def append(client: Client, options: argparse.Namespace) -> int:
    """Append all lines; print the position of the last record."""
    split_stream_path(options.stream)
    descriptor = 0 if options.file == "-" else _opened(options.file)
    stream = stream_of(client, options.stream)
    progress = ByteProgress(options.stream)
    records = size_bytes = passed_over = 0
    try:
        async with stream.writer(create=options.create) as writer:
            last_before = writer.last_txid
            number = 0
            async for lines in _lines(descriptor):
                for raw in lines:
                    number += 1
                    line = _line(raw, number, options)
                    if options.resume and line.txid is not None and line.txid <= last_before:
                        passed_over += 1
                        continue
                    await writer.ready()
                    writer.append(line.payload, txid=line.txid, key=line.key, headers=line.headers)
                    records += 1
                    size_bytes += len(line.payload)
                progress.moved(records, size_bytes)
            last = await writer.publish()
            last_txid, epoch = writer.last_txid, writer.epoch
    finally:
        progress.end()
        if descriptor:
            os.close(descriptor)
    dlsn = None if last is None else str(last)
    facts = {
        "stream": options.stream,
        "records": records,
        "bytes": size_bytes,
        "passed_over": passed_over,
        "last_dlsn": dlsn,
        "last_txid": last_txid,
        "epoch": epoch,
    }
    if not options.json:
        before = f", {format_count(passed_over, 'line')} were there before" if passed_over else ""
        counted = format_count(records, "record")
        note(f"{options.stream}: {counted}, {format_size(size_bytes)} appended{before}")
    return print_answer(options, facts, *([dlsn] if dlsn else ()))


def _line(raw: bytes, number: int, options: argparse.Namespace) -> RecordLine:
    if not options.json_lines:
        return RecordLine(raw, number if options.resume else None)
    line = line_of_json(raw, number)
    if options.resume and line.txid is None:
        raise ConfigError(f"line {number}: --resume needs a txid in every line")
    return line


def _opened(name: str) -> int:
    with os_errors_as(ConfigError, name):
        return os.open(name, os.O_RDONLY)


async def _lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield lines without their ends, as soon as they are there.

    Read by a thread that nobody waits for: a terminal or a pipe may say nothing for ever. It reads past Python's
    buffers, whose locks would hold up the interpreter's end.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(PIECES_WAITING)
    is_over = False

    def read() -> None:
        found: bytes | OSError = b"something"
        with suppress(RuntimeError):  # the loop has ended
            while found and not isinstance(found, OSError):
                room.acquire()
                if is_over:
                    return
                try:
                    found = os.read(descriptor, PIECE_BYTES)
                except OSError as error:
                    found = error
                # No future to wait for: it would be cancelled under the thread when the command fails.
                loop.call_soon_threadsafe(pieces.put_nowait, found)

    threading.Thread(target=read, name="fastbk-lines", daemon=True).start()
    rest = b""
    try:
        while True:
            piece = await pieces.get()
            if isinstance(piece, OSError):
                raise ConfigError(f"the input cannot be read: {piece.strerror}") from piece
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise ConfigError(f"a line has more than {format_size(LINE_BYTES_MAX)}")
            yield lines
            room.release()
    finally:
        is_over = True
        room.release()
    if rest:
        yield [rest]
