"""`fastbk stream append`, `read` and `tail`: lines of a file or stdin become records, as they come
in, and records are printed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from fastbk.cli.input import opened_input, read_lines
from fastbk.cli.options import note, print_answer
from fastbk.cli.progress import ByteProgress
from fastbk.cli.stream.options import (
    LOST,
    add_on_gap,
    add_range,
    pattern_of,
    pattern_start_of,
    range_of,
    stream_of,
)
from fastbk.cli.stream.output import RecordLine, line_of_json, print_gap, print_record
from fastbk.errors import (
    ConfigError,
    DataLost,
    Error,
    PositionTruncated,
    RecordTooLarge,
    StreamNotFound,
    TxidOutOfOrder,
)
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.stream.client import Client
    from fastbk.stream.namespace.namespace import Namespace
    from fastbk.stream.pattern.reader import PatternReader, PatternStart
    from fastbk.stream.positions import DLSN, AtSeq, Start
    from fastbk.stream.reader.stream_reader import StreamReader
    from fastbk.stream.records import Gap, Record
    from fastbk.stream.stream import Stream
    from fastbk.stream.writer.stream_writer import StreamWriter


def add_append_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `append` takes, beside the stream."""
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="default: - (stdin)")
    parser.add_argument(
        "--json-lines", action="store_true",
        help="each line is an object as `read --json` prints it: payload or payload_base64, txid, key, headers",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true",
        help="number the lines (transaction id = line, from 1; with --json-lines: txid) and pass over those that the"
        " stream has: after a failure give the same command again, and nothing is missing or twice; refused where"
        " others have appended, too",
    )  # fmt: skip
    parser.add_argument("--create", action="store_true", help="make the stream if it is not there")


async def append(client: Client, options: argparse.Namespace) -> int:
    """Append all lines; print the position of the last record."""
    split_stream_path(options.stream)
    stream = stream_of(client, options.stream)
    progress = ByteProgress(options.stream)
    refused: Error | None = None
    with opened_input(options.file) as descriptor:
        try:
            async with stream.writer(create=options.create) as writer:
                appending = _Appending(writer, options, progress)
                if options.resume:
                    appending.before = await _Before.of(
                        stream, writer, is_numbered=not options.json_lines
                    )
                try:
                    await appending.run(descriptor)
                except (ConfigError, TxidOutOfOrder) as error:
                    refused = error  # what is before it is kept, as after a good end
                last = await writer.publish()
                last_txid, epoch = writer.last_txid, writer.epoch
        finally:
            progress.end()
    if refused is not None:
        raise (
            type(refused)(f"{refused}; {appending.text} before it")
            if appending.records
            else refused
        )
    dlsn = None if last is None else str(last)
    facts = {
        "stream": options.stream,
        "records": appending.records,
        "bytes": appending.size_bytes,
        "passed_over": appending.passed_over,
        "last_dlsn": dlsn,
        "last_txid": last_txid,
        "epoch": epoch,
    }
    if not options.json:
        before = (
            f", {format_count(appending.passed_over, 'line')} were there before"
            if appending.passed_over
            else ""
        )
        note(f"{options.stream}: {appending.text}{before}")
    return print_answer(options, facts, *([dlsn] if dlsn else ()))


class _Appending:
    """Lines on their way into the stream, and how many they are."""

    def __init__(
        self, writer: StreamWriter, options: argparse.Namespace, progress: ByteProgress
    ) -> None:
        self.records = self.size_bytes = self.passed_over = 0
        self.before: _Before | None = None
        self._writer = writer
        self._options = options
        self._progress = progress

    @property
    def text(self) -> str:
        """What was appended, in words."""
        return f"{format_count(self.records, 'record')}, {format_size(self.size_bytes)} appended"

    async def run(self, descriptor: int) -> None:
        """Append what the stream does not have. Raises Error, with the line's number where it is a line's fault."""
        number = 0
        async for lines in read_lines(descriptor):
            for raw in lines:
                number += 1
                line = _line(raw, number, self._options)
                if self.before is not None and self.before.has(line, number):
                    self.passed_over += 1
                    continue
                await self._writer.ready()
                try:
                    self._writer.append_nowait(
                        line.payload, txid=line.txid, key=line.key, headers=line.headers
                    )
                except (RecordTooLarge, TxidOutOfOrder) as error:
                    raise type(error)(f"line {number}: {error}") from error
                self.records += 1
                self.size_bytes += len(line.payload)
            self._progress.moved(self.records, self.size_bytes)
        if self.before is not None and number:
            self.before.check()


class _Before:
    """What the stream has, so that `--resume` passes over lines that are records, and over nothing else.

    A line's number, or its `txid`, says nothing of a stream that others append to, too. So the last line that is passed
    over has to be the stream's last record, and of numbered lines there have to be as many as records.
    """

    def __init__(self, path: str, last: Record | None, *, is_numbered: bool) -> None:
        self._path = path
        self._last = last
        self._is_numbered = is_numbered
        self._passed: tuple[int, RecordLine] | None = None
        self._is_checked = last is None

    @classmethod
    async def of(cls, stream: Stream, writer: StreamWriter, *, is_numbered: bool) -> _Before:
        """Look at the last record; the writer is open, so nothing comes behind it."""
        if writer.last_txid < 0:
            return cls(stream.path, None, is_numbered=is_numbered)
        position = await stream.last_position()
        assert position is not None
        try:
            last = await stream.get(position.dlsn)
        except (PositionTruncated, DataLost) as error:
            raise ConfigError(
                f"{stream.path}: --resume needs the stream's last record: {error}"
            ) from error
        return cls(stream.path, last, is_numbered=is_numbered)

    def has(self, line: RecordLine, number: int) -> bool:
        """Return whether the line is a record of the stream already. Raises ConfigError when that cannot be told."""
        assert line.txid is not None
        if self._last is None or line.txid > self._last.txid:
            self.check()
            return False
        if self._passed is not None and self._passed[1].txid == line.txid:
            raise ConfigError(
                f"line {number}: it has the txid of the line before, {line.txid}; --resume needs another one for each"
            )
        self._passed = (number, line)
        return True

    def check(self) -> None:
        """Raise ConfigError unless the last line that was passed over is the last record."""
        last, passed = self._last, self._passed
        if self._is_checked or last is None:
            return
        if passed is None and not self._is_numbered:
            return  # all lines are behind all records
        if self._is_numbered and last.seq + 1 != last.txid:
            why = f"its last record is number {last.seq + 1} and has the transaction id {last.txid}"
        elif passed is None or passed[1].txid != last.txid:
            why = f"no line has the transaction id of its last record, {last.txid}"
        elif (passed[1].payload, passed[1].key, passed[1].headers) != (
            bytes(last.payload),
            last.key,
            last.headers,
        ):
            why = f"line {passed[0]} is not its last record, {last.dlsn}, which has the same transaction id"
        else:
            self._is_checked = True
            return
        raise ConfigError(
            f"{self._path}: --resume cannot tell which lines are there: {why}, so not only this command has appended to"
            " the stream. Nothing was appended. Give only the lines that are missing, without --resume"
        )


def _line(raw: bytes, number: int, options: argparse.Namespace) -> RecordLine:
    if not options.json_lines:
        return RecordLine(raw, number if options.resume else None)
    line = line_of_json(raw, number)
    if options.resume and line.txid is None:
        raise ConfigError(f"line {number}: --resume needs a txid in every line")
    return line


STREAMS_AT_ONCE = 16
"""Of which the last records are looked for together."""


def add_read_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `read` takes, beside the stream."""
    add_range(parser)
    parser.add_argument("--max", type=int, metavar="N", help="at most so many records")
    _add_manner(parser)


def add_tail_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tail` takes, beside the stream."""
    parser.add_argument(
        "-n",
        "--last",
        type=int,
        default=10,
        metavar="N",
        help="begin with the last N (10); of a pattern, of each",
    )
    parser.add_argument("--max", type=int, metavar="N", help="end after so many records")
    _add_manner(parser)


def _add_manner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--payload",
        action="store_true",
        help="the payloads alone, each with a line end; a terminal gets control characters escaped",
    )
    add_on_gap(parser, LOST)


async def read(client: Client, options: argparse.Namespace) -> int:
    """Print records from one position up to another, or up to the last that is visible."""
    _check(options)
    found = await pattern_of(client, options.stream)
    if found is None:
        start, end = range_of(options)
        one = stream_of(client, options.stream).reader(
            start, end=end, tail=False, on_gap=_on_gap(options)
        )
        return await _print(one, options, tail=False)
    if options.end is not None:
        raise ConfigError(
            "--to is a place in one stream: with a pattern leave it out, or name one stream"
        )
    begin = pattern_start_of(options.start, "--from")
    return await _print(
        found[0].reader(found[1], begin, tail=False, on_gap=_on_gap(options)), options, tail=False
    )


async def tail(client: Client, options: argparse.Namespace) -> int:
    """Print the last records, of each stream of a pattern, and what comes, until the stream is sealed."""
    _check(options)
    if options.last < 0:
        raise ConfigError("-n must be 0 or more")
    found = await pattern_of(client, options.stream)
    if found is None:
        stream = stream_of(client, options.stream)
        start: Start = await _last(stream, options.last) if options.last else "latest"
        return await _print(
            stream.reader(start, tail=True, on_gap=_on_gap(options)), options, tail=True
        )
    begin: PatternStart = (
        await _last_of_all(client, *found, options.last) if options.last else "latest"
    )
    return await _print(
        found[0].reader(found[1], begin, tail=True, on_gap=_on_gap(options)), options, tail=True
    )


async def _last(stream: Stream, count: int) -> AtSeq:
    """Return the place of the last so many records."""
    from fastbk.stream.positions import AtSeq

    last, first = await stream.last_position(), await stream.first()
    begin = 0 if first is None else first.seq
    return AtSeq(max(begin, 0 if last is None else last.seq + 1 - count))


async def _last_of_all(
    client: Client, namespace: Namespace, names: str, count: int
) -> dict[str, DLSN]:
    """Return the place of the last so many records of each stream that is there; others begin at their first one."""
    from fastbk.stream.context import gathered
    from fastbk.stream.cursor.opening import place_of
    from fastbk.stream.pattern.store import is_match

    async def begin(path: str) -> tuple[str, DLSN] | None:
        stream = stream_of(client, path)
        try:
            return path, (await place_of(await stream.context(), await _last(stream, count)))[0]
        except StreamNotFound:
            return None  # it was deleted just now

    paths = [
        one.path
        async for one in namespace.streams()
        if is_match(names, split_stream_path(one.path)[1])
    ]
    return dict(one for one in await gathered(begin, paths, STREAMS_AT_ONCE) if one is not None)


def _on_gap(options: argparse.Namespace) -> Literal["raise", "yield"]:
    return "yield" if options.on_gap == "tell" else "raise"


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that say nothing together."""
    if options.max is not None and options.max < 1:
        raise ConfigError("--max must be 1 or more")
    if options.payload and options.json:
        raise ConfigError(
            "--payload prints payloads as they are, --json records as JSON: give one of them"
        )


async def _print(
    reader: StreamReader[Gap] | PatternReader[Gap], options: argparse.Namespace, *, tail: bool
) -> int:
    from fastbk.stream.records import Gap

    left = options.max
    async with reader:
        async for chunk in reader.chunks():
            if isinstance(chunk, Gap):
                print_gap(chunk, options)
                continue
            for record in chunk if left is None else chunk[:left]:
                print_record(record, options)
            if tail:
                sys.stdout.flush()
            if left is not None:
                left -= min(left, len(chunk))
                if left == 0:
                    break
    return 0
