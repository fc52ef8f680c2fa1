"""`fastbk stream append`: lines of a file or stdin become records, as they come in, by the writer or by a producer."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fastbk.cli.data_files import opened_input, read_lines
from fastbk.cli.options import note, print_answer
from fastbk.cli.progress import ByteProgress
from fastbk.cli.stream_options import RecordLine, line_of_json, stream_of
from fastbk.errors import ConfigError, DataLost, Error, PositionTruncated, TxidOutOfOrder
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastbk.stream.client import Client
    from fastbk.stream.positions import DLSN
    from fastbk.stream.records import Record
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
        "--producer", metavar="NAME",
        help="append as one of any number, through a write service (fastbk serve); another command of the same name is"
        " ended. Without it: as the stream's one writer",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true",
        help="number the lines (from 1; with --json-lines: txid) and pass over those that the stream has: after a"
        " failure give the same command again, and nothing is missing or twice. With --producer the stream knows how"
        " many lines of that name it has, whoever else appends, so other lines need another name; without it, refused"
        " where others have appended, too",
    )  # fmt: skip
    parser.add_argument("--create", action="store_true", help="make the stream if it is not there")


async def append(client: Client, options: argparse.Namespace) -> int:
    """Append all lines; print the position of the last record."""
    split_stream_path(options.stream)
    stream = stream_of(client, options.stream)
    progress = ByteProgress(options.stream)
    with opened_input(options.file) as descriptor:
        try:
            if options.producer is None:
                appending, last, more = await _append_as_writer(
                    stream, options, progress, descriptor
                )
            else:
                appending, last, more = await _append_as_producer(
                    stream, options, progress, descriptor
                )
        finally:
            progress.end()
    if (refused := appending.refused) is not None:
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
        **more,
    }
    if not options.json:
        before = (
            f", {format_count(appending.passed_over, 'line')} were there before"
            if appending.passed_over
            else ""
        )
        note(f"{options.stream}: {appending.text}{before}")
    return print_answer(options, facts, *([dlsn] if dlsn else ()))


async def _append_as_writer(
    stream: Stream, options: argparse.Namespace, progress: ByteProgress, descriptor: int
) -> tuple[_Appending, DLSN | None, dict[str, object]]:
    async with stream.writer(create=options.create) as writer:
        appending = _Appending(writer.ready, options, progress)
        if options.resume:
            appending.before = await _Before.of(stream, writer, is_numbered=not options.json_lines)

        def take(line: RecordLine) -> None:
            writer.append_nowait(line.payload, txid=line.txid, key=line.key, headers=line.headers)

        await appending.run(descriptor, take)
        last = await writer.publish()
        return appending, last, {"last_txid": writer.last_txid, "epoch": writer.epoch}


async def _append_as_producer(
    stream: Stream, options: argparse.Namespace, progress: ByteProgress, descriptor: int
) -> tuple[_Appending, DLSN | None, dict[str, object]]:
    async with stream.producer(options.producer, create=options.create) as producer:
        appending = _Appending(producer.ready, options, progress)
        # Line n of a new name has number n without --resume, too, so that the command can be given again with it.
        number = max(producer.last_number, 0)
        if options.resume:
            appending.before = _Numbered(producer.name, producer.last_number)

        def take(line: RecordLine) -> None:
            nonlocal number
            number = number + 1 if line.txid is None or not options.resume else line.txid
            producer.append_nowait(line.payload, number=number, key=line.key, headers=line.headers)

        await appending.run(descriptor, take)
        last = await producer.flush()
        more = {"producer": producer.name, "last_number": producer.last_number}
        return appending, last, more


class _Appending:
    """Lines on their way into the stream, and how many they are.

    Attributes:
        before: what the stream has of them; None: all lines are new.
        refused: why it ended before the last line; what is before it is kept, as after a good end.
    """

    def __init__(
        self,
        ready: Callable[[], Awaitable[object]],
        options: argparse.Namespace,
        progress: ByteProgress,
    ) -> None:
        self.records = self.size_bytes = self.passed_over = 0
        self.before: _Before | _Numbered | None = None
        self.refused: Error | None = None
        self._ready = ready
        self._options = options
        self._progress = progress

    @property
    def text(self) -> str:
        """What was appended, in words."""
        return f"{format_count(self.records, 'record')}, {format_size(self.size_bytes)} appended"

    async def run(self, descriptor: int, take: Callable[[RecordLine], None]) -> None:
        """Append what the stream does not have. Raises Error, with the line's number where it is a line's fault."""
        try:
            await self._run(descriptor, take)
        except (ConfigError, TxidOutOfOrder) as error:
            self.refused = error

    async def _run(self, descriptor: int, take: Callable[[RecordLine], None]) -> None:
        number = 0
        async for lines in read_lines(descriptor):
            for raw in lines:
                number += 1
                line = _line(raw, number, self._options)
                if self.before is not None and self.before.has(line, number):
                    self.passed_over += 1
                    continue
                await self._ready()
                try:
                    take(line)
                except (ConfigError, TxidOutOfOrder) as error:
                    raise type(error)(f"line {number}: {error}") from error
                self.records += 1
                self.size_bytes += len(line.payload)
            self._progress.moved(self.records, self.size_bytes)
        if self.before is not None and number:
            self.before.check()


class _Numbered:
    """What the stream has of a producer's lines: those up to its last number, whoever else appends."""

    def __init__(self, name: str, last_number: int) -> None:
        self._name = name
        self._last_number = last_number
        self._highest = -1

    def has(self, line: RecordLine, number: int) -> bool:
        """Return whether the line is a record of the stream already."""
        del number
        assert line.txid is not None
        self._highest = max(self._highest, line.txid)
        return line.txid <= self._last_number

    def check(self) -> None:
        """Raise ConfigError for lines that end before those that the stream has: they are others."""
        if self._highest < self._last_number:
            raise ConfigError(
                f"--resume: the stream has lines up to {self._last_number} of producer {self._name}, and the last one"
                f" here is {self._highest}: these are other lines than before, or fewer. Nothing was appended. Give"
                " other lines another name (--producer), or append them without --resume"
            )


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
