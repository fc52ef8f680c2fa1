"""`fastbk bookie expand` and `fastbk bookie move-shards`: more directories for a stopped bookie, what lives where."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_config, add_json, need_linux, note, print_answer
from fastbk.cli.progress import ProgressLine
from fastbk.errors import ConfigError
from fastbk.units import format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from fastbk.server.configuration.bookie_config import BookieConfig

LOCK_WAIT_S = 1.0
SHARDS = 64


def add_expand(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `expand`."""
    add_config(parser)
    add_json(parser)


def add_move(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `move-shards`."""
    add_config(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--even", action="store_true", help="as few as go, until all pairs have as many"
    )
    where.add_argument("--to", type=int, metavar="PAIR", help="where the --shards go, from 0 on")
    parser.add_argument("--shards", metavar="LIST", help="of 0 to 63, such as 0,5,8-15")
    add_json(parser)


def expand(options: argparse.Namespace) -> int:
    """Add the directories that are new in the configuration."""
    need_linux("fastbk bookie expand")
    from fastbk.meta.uri import open_store
    from fastbk.meta.zookeeper.security import use_file
    from fastbk.server.offline.expansion import expand as expand_bookie
    from fastbk.server.offline.shard_moves import end_move

    with _locked(options.config) as config:
        use_file(config.metadata.zookeeper_file)
        end_move(config)
        with closing(open_store(config.metadata.uri)) as store:
            added = expand_bookie(config, store, config.bookie.id or config.bookie.listen)
    if added and not options.json:
        note(
            "no ledger lives there yet: `fastbk bookie move-shards --even` moves some, new bookies have them by birth"
        )
    text = (
        f"added: {', '.join(added)}"
        if added
        else "nothing to add: all directories are the bookie's"
    )
    return print_answer(options, {"added": added}, text)


def move(options: argparse.Namespace) -> int:
    """Move shards from pair to pair."""
    need_linux("fastbk bookie move-shards")
    from fastbk.server.offline.shard_moves import end_move, move_evenly, move_shards

    if (options.to is None) == (options.shards is not None):
        raise ConfigError("give --to PAIR and --shards LIST, or --even")
    line = ProgressLine()
    copied_bytes = 0

    def on_bytes(size_bytes: int) -> None:
        nonlocal copied_bytes
        copied_bytes += size_bytes
        line.at(lambda: f"{format_size(copied_bytes)} copied")

    with _locked(options.config) as config:
        done = end_move(config)
        if done:
            note(f"an earlier move was cut off; it is {done}")
        if options.even:
            moved = move_evenly(config, on_bytes)
        else:
            moved = move_shards(config, shards_of(options.shards), options.to, on_bytes)
    line.end()
    lines = [
        f"pair {one.source} to pair {one.target}: {len(one.shards)} shards, {one.ledgers} ledgers,"
        f" {one.entries} entries"
        for one in moved
    ]
    return print_answer(options, [asdict(one) for one in moved], *(lines or ["nothing to move"]))


def shards_of(text: str) -> list[int]:
    """Return the shards that a list such as `0,5,8-15` names. Raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise ConfigError(f"--shards {text}: {part!r} is no shard and no range of shards")
        found += range(int(first), int(last if dash else first) + 1)
    if not found or max(found) >= SHARDS:
        raise ConfigError(f"--shards {text}: shards are 0 to {SHARDS - 1}")
    return sorted(set(found))


@contextmanager
def _locked(path: Path) -> Iterator[BookieConfig]:
    """Read the configuration and lock its directories. Raises ConfigError, StorageError: the bookie runs."""
    from fastbk.server.configuration import bookie_file
    from fastbk.server.configuration.checks import check
    from fastbk.server.directories import locked_pairs

    config = bookie_file.load(path)
    check(config)
    with locked_pairs(config.journal.all_directories, config.ledgers.all_directories, LOCK_WAIT_S):
        yield config
