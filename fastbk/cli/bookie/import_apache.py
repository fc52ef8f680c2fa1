"""`fastbk bookie import`: what a stopped bookie of Apache's has stored, into a new bookie of the same id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.bookie.directories import LOCK_WAIT_S
from fastbk.cli.options import add_config, add_json, need_linux, note, print_json
from fastbk.cli.progress import ProgressLine
from fastbk.errors import ConfigError
from fastbk.units import format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fastbk.apache.importer.bookie_files import ApacheDirectories
    from fastbk.apache.importer.import_bookie import Counts, Imported
    from fastbk.server.configuration.bookie_config import BookieConfig

SHOWN_MAX = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = "the file of the bookie that it becomes: same id, same metadata, empty directories of its own"
    add_config(parser, text)
    parser.add_argument(
        "--from-conf",
        type=Path,
        metavar="FILE",
        help="Apache's bk_server.conf, which names the directories to read; BK_ variables go before it",
    )
    parser.add_argument(
        "--journal",
        action="append",
        default=[],
        metavar="DIR",
        help="in its place: a journal directory, the one that has `current`; again for each, in the order of the file",
    )
    parser.add_argument(
        "--ledgers",
        action="append",
        default=[],
        metavar="DIR",
        help="a ledger directory; again for each",
    )
    parser.add_argument(
        "--indexes",
        action="append",
        default=[],
        metavar="DIR",
        help="an index directory, where they are others than the ledger directories; again for each, in the same order",
    )
    parser.add_argument(
        "--index",
        choices=["use", "ignore", "require"],
        default="use",
        help="use: what indexes add, where they can be read (the default); require: no import unless all can; ignore",
    )
    parser.add_argument(
        "--replace-cookie",
        action="store_true",
        help="take the place of Apache's cookie in the metadata: its directories start no Apache bookie any more",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="read and check everything, write nothing"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Import; 1 if something that was found is damaged."""
    need_linux("fastbk bookie import")
    from fastbk.apache.importer import import_bookie
    from fastbk.apache.importer.import_bookie import Rate
    from fastbk.apache.importer.index import IndexUse
    from fastbk.meta.uri import open_store
    from fastbk.meta.zookeeper.security import use_file
    from fastbk.model.ids import BookieId
    from fastbk.server.configuration import bookie_file
    from fastbk.server.configuration.checks import check
    from fastbk.server.directories import locked_pairs

    apache = _source(options)
    config = bookie_file.load(options.config)
    check(config)
    _check_apart(config, apache)
    bookie_id = BookieId(config.bookie.id or config.bookie.listen)
    plan = import_bookie.ImportPlan(
        bookie_id, apache, options.replace_cookie, IndexUse(options.index)
    )
    line, rate = ProgressLine(), Rate()

    def on_bytes(counts: Counts) -> None:
        line.at(
            lambda: (
                f"{format_size(counts.read_bytes)} read, {format_size(rate.of(counts.read_bytes))}/s,"
                f" {counts.entries:,} entries"
            )
        )

    use_file(config.metadata.zookeeper_file)
    store = open_store(config.metadata.uri)
    try:
        if options.dry_run:
            done = import_bookie.survey(plan, store, on_bytes)
        else:
            journals, ledgers = config.journal.all_directories, config.ledgers.all_directories
            with locked_pairs(journals, ledgers, LOCK_WAIT_S):
                done = import_bookie.run(config, store, plan, on_bytes)
    finally:
        line.end()
        store.close()
    _print_imported(options, done, rate.of(done.counts.read_bytes))
    return 1 if done.counts.is_damaged else 0


def _source(options: argparse.Namespace) -> ApacheDirectories:
    from fastbk.apache.configuration import source
    from fastbk.apache.importer import bookie_files

    journals, ledgers, indexes = options.journal, options.ledgers, options.indexes
    if options.from_conf is not None:
        if journals or ledgers or indexes:
            raise ConfigError("give --from-conf, or --journal, --ledgers and --indexes")
        read = source.read(options.from_conf, os.environ)
        journals = read.items("journalDirectories") or read.items("journalDirectory")[:1]
        ledgers = read.items("ledgerDirectories")
        indexes = read.items("indexDirectories")
    if not journals or not ledgers:
        raise ConfigError(
            "give --from-conf FILE, or each --journal and --ledgers directory of the bookie that is to be imported"
        )
    return bookie_files.find_directories(journals, ledgers, indexes)


def _check_apart(config: BookieConfig, apache: ApacheDirectories) -> None:
    """Raise ConfigError when a directory of ours is one of Apache's, or one lies in the other."""
    theirs = [path.resolve() for path in (*apache.journals, *apache.ledgers, *apache.indexes)]
    for name in (*config.journal.all_directories, *config.ledgers.all_directories):
        ours = Path(name).resolve()
        for other in theirs:
            if ours == other or ours in other.parents or other in ours.parents:
                raise ConfigError(
                    f"{name} is to be a directory of the new bookie, and {other} is one of Apache's: name others in the"
                    " new bookie's file, which are empty. Apache's stay as they are"
                )


def _print_imported(options: argparse.Namespace, done: Imported, bytes_per_s: int) -> None:
    counts = done.counts
    index = counts.index
    if options.json:
        counted = {name: value for name, value in vars(index).items() if name != "told"}
        answer = {
            **vars(counts),
            "dry_run": options.dry_run,
            "was_finished": done.was_finished,
            "ledgers": done.ledgers,
            "in_limbo": done.in_limbo,
            "open_ledgers": done.open_ledgers,
            "left_out_ledgers": len(counts.left_out_ledgers),
            "bytes_per_s": bytes_per_s,
            "index": {**counted, "missing_ledgers": len(index.missing_ledgers)},
            "damage": [str(one) for one in counts.damage],
            "told": index.told,
        }
        print_json(answer)
        return
    if done.was_finished:
        print("the import was done before, but for its marks; they are gone: start the bookie")
        return
    print(_text(done, "found" if options.dry_run else "imported"))
    _note_damage(
        [*(f"not read: {one}" for one in index.not_read), *index.told, *map(str, counts.damage)]
    )


def _text(done: Imported, what: str) -> str:
    counts = done.counts
    lines = [
        f"{what}: {done.ledgers:,} ledgers, {counts.entries:,} entries, {format_size(counts.bytes)}",
        f"left out, for metadata does not list them: {_left_out(counts)} ledgers,"
        f" {counts.left_out_entries:,} entries, {format_size(counts.left_out_bytes)}",
        f"damaged: {counts.damaged_entries:,} entries, {counts.damaged_places:,} places in files;"
        f" ends that were cut off: {counts.cut_off_ends:,}",
        f"without a digest that could be checked: {counts.unproven_entries:,} entries",
        *_index_text(counts),
        f"in limbo: {done.in_limbo:,} ledgers, of which {done.open_ledgers:,} are not closed and the others not whole",
    ]
    if what == "found":
        lines[-1] = (
            f"metadata counts on the bookie for {done.in_limbo:,} ledgers; {done.open_ledgers:,} of them are not"
            " closed, and would be fenced and in limbo: best close them first"
        )
    return "\n".join(lines)


def _left_out(counts: Counts) -> str:
    from fastbk.apache.importer.import_bookie import LEFT_OUT_KEPT_MAX

    found = len(counts.left_out_ledgers)
    return f"{found:,}" if found < LEFT_OUT_KEPT_MAX else f"{found:,} or more"


def _index_text(counts: Counts) -> list[str]:
    index = counts.index
    lines = [
        f"whole copies: {counts.journal_entries:,} in journals, {counts.log_entries:,} in entry logs"
    ]
    if index.read:
        lines[0] += (
            f"; of these {index.in_place:,} where the index has them, {index.elsewhere:,} elsewhere,"
            f" {index.not_named:,} that it does not name, {index.not_checked:,} not looked up"
        )
        lines += [
            f"the index lists {index.ledgers:,} ledgers, {index.unlisted_ledgers:,} of them not in metadata; of the"
            f" others it names {index.entries:,} entries, of which {index.missing_entries:,} of"
            f" {len(index.missing_ledgers):,} ledgers are missing",
            f"ledgers whose key in the index is another: {index.other_keys:,}; places where the index is damaged:"
            f" {index.damaged_places:,}",
        ]
    return lines


def _note_damage(damage: Sequence[str]) -> None:
    for one in damage[:SHOWN_MAX]:
        note(one)
    if len(damage) > SHOWN_MAX:
        note(f"... and {len(damage) - SHOWN_MAX} more; --json lists them")
