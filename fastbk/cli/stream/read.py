"""`fastbk stream read` and `tail`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from fastbk.cli.stream.options import LOST, add_on_gap, add_range, range_of, stream_of
from fastbk.cli.stream.output import print_gap, print_record
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from fastbk.stream.client import Client
    from fastbk.stream.positions import Start
    from fastbk.stream.stream import Stream


def add_read_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `read` takes, beside the stream."""
    add_range(parser)
    parser.add_argument("--max", type=int, metavar="N", help="at most so many records")
    _add_manner(parser)


def add_tail_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tail` takes, beside the stream."""
    parser.add_argument(
        "-n", "--last", type=int, default=10, metavar="N", help="begin with the last N (10)"
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
    stream = stream_of(client, options.stream)
    start, end = range_of(options)
    return await _print(stream, start, options, end=end, tail=False)


async def tail(client: Client, options: argparse.Namespace) -> int:
    """Print the last records, and what comes, until the stream is sealed."""
    from fastbk.stream.positions import AtSeq

    if options.last < 0:
        raise ConfigError("-n must be 0 or more")
    stream = stream_of(client, options.stream)
    start: Start = "latest"
    last = await stream.last_position() if options.last else None
    if options.last:
        first = await stream.first()
        begin = 0 if first is None else first.seq
        start = AtSeq(max(begin, 0 if last is None else last.seq + 1 - options.last))
    return await _print(stream, start, options, end=None, tail=True)


async def _print(
    stream: Stream, start: Start, options: argparse.Namespace, *, end: Start | None, tail: bool
) -> int:
    from fastbk.stream.records import Gap

    if options.max is not None and options.max < 1:
        raise ConfigError("--max must be 1 or more")
    if options.payload and options.json:
        raise ConfigError("--payload prints payloads as they are, --json records as JSON: give one of them")
    left = options.max
    on_gap: Literal["raise", "yield"] = "yield" if options.on_gap == "tell" else "raise"
    async with stream.reader(start, end=end, tail=tail, on_gap=on_gap) as reader:
        async for chunk in reader.chunks(max_wait=0.0):
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
