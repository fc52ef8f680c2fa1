"""`fastbk stream read` and `tail`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from fastbk.cli.stream.options import (
    LOST,
    add_on_gap,
    add_range,
    pattern_of,
    pattern_start_of,
    range_of,
    stream_of,
)
from fastbk.cli.stream.output import print_gap, print_record
from fastbk.errors import ConfigError, StreamNotFound
from fastbk.stream.paths import split_stream_path

if TYPE_CHECKING:
    import argparse

    from fastbk.stream.client import Client
    from fastbk.stream.namespace.namespace import Namespace
    from fastbk.stream.pattern.reader import PatternReader, PatternStart
    from fastbk.stream.positions import DLSN, AtSeq, Start
    from fastbk.stream.reader.stream_reader import StreamReader
    from fastbk.stream.records import Gap
    from fastbk.stream.stream import Stream

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
    from fastbk.stream.pattern.record import is_match

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
