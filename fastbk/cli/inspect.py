"""`fastbk inspect KIND PATH`: what is in a bookie's files, without a bookie; never writes there, takes no lock."""

from __future__ import annotations

import os
import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from fastbk.cli.options import add_json, need_linux, note, print_answer
from fastbk.errors import ConfigError, StorageError
from fastbk.units import format_entries

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator

    from fastbk.inspect.items import Item

LARGE = {
    "journal": ("journal files: batches, adds, fences", r"[0-9a-f]{16}\.journal", ("",)),
    "entrylog": ("entry logs: runs and entries", r"[0-9a-f]{16}\.log", ("", "logs")),
    "locations": ("locations files: where runs lie, ledger states", r"[0-9a-f]{16}\.loc", ("", "locations")),
}  # fmt: skip
"""Kind -> text, names of such files, folders of a directory in which they lie."""
SMALL = {
    "manifest": "both slots of a ledger directory's manifest",
    "mark": "up to where the journal is contained in a ledger directory",
    "identity": "a directory's identity.json",
    "cookie": "a directory's cookie, current/VERSION",
    "audit": "a ledger directory's log of deletions",
    "limbo": "the ledgers that a reborn bookie is going to put into limbo",
    "scrub": "how far a ledger directory's scrub is, and what it has in quarantine",
    "unclean": "what a life without a clean stop has left",
}
"""Kind -> text; `read_<kind>` of `fastbk.inspect.small_files` reads it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the kinds and their options."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, (text, _, _) in LARGE.items():
        kind = kinds.add_parser(name, help=text)
        kind.add_argument("path", metavar="PATH", help="a file, or the directory of several")
        kind.add_argument("--ledger", type=int, metavar="ID", help="only of this ledger")
        kind.add_argument("--entry", type=int, metavar="ID", help="only of entries with this id")
        kind.add_argument("--limit", type=int, metavar="N", help="stop after so many lines a file")
        kind.add_argument(
            "--summary", action="store_true", help="only headers, damage, ends and totals"
        )
        if name != "locations":
            kind.add_argument(
                "--salvage",
                metavar="DIR",
                help="write the entries that can be read into a new directory, and show a summary; `-`: to stdout"
                " instead of all else",
            )
        add_json(kind)
    for name, text in SMALL.items():
        kind = kinds.add_parser(name, help=text)
        kind.add_argument("path", metavar="PATH", help="the file, or its directory")
        add_json(kind)


def run(options: argparse.Namespace) -> int:
    """Show it; 1 when something could not be read that should be there (a torn tail is no such thing)."""
    need_linux("fastbk inspect")
    damaged = _small(options) if options.kind in SMALL else _large(options)
    if damaged:
        note(f"fastbk: {damaged} damaged place{'s' if damaged > 1 else ''}")
    return 1 if damaged else 0


def _small(options: argparse.Namespace) -> int:
    from fastbk.inspect import small_files

    read: Callable[[str], Iterator[Item]] = getattr(small_files, f"read_{options.kind}")
    damaged = 0
    for item in read(options.path):
        damaged += item.is_damage
        lines = [f"{item.what} at {item.offset_bytes}" if item.offset_bytes else item.what]
        for name, value in item.facts.items():
            lines += [
                f"  {'' if nth else name:<16} {line}" for nth, line in enumerate(_lines(value))
            ]
        facts = {"what": item.what, "offset_bytes": item.offset_bytes, **item.facts}
        print_answer(options, facts, *lines)
    return damaged


def _lines(value: object) -> list[str]:
    """Return a fact as lines: a list of records has one each."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [" ".join(f"{name}={field}" for name, field in record.items()) for record in value]
    if isinstance(value, dict):
        return [" ".join(f"{name}={field}" for name, field in value.items())]
    if isinstance(value, list):
        return [", ".join(map(str, value)) or "none"]
    return [str(value)]


def _large(options: argparse.Namespace) -> int:
    for name in ("ledger", "entry", "limit"):
        number = getattr(options, name)
        if number is not None and number < 0:
            raise ConfigError(f"--{name} must not be negative")
    salvage_to = getattr(options, "salvage", None)
    salvage = None
    if salvage_to is not None and salvage_to != "-":
        from fastbk.inspect.items import Salvage

        salvage = Salvage(salvage_to)
    damaged = 0
    try:
        for path in _files(options):
            damaged += _show(options, path, salvage.take if salvage else None)
    finally:
        if salvage is not None:
            salvage.close()
    if salvage is not None:
        note(f"{format_entries(salvage.entries)} of {len(salvage.ledgers)} ledgers in {salvage_to}")
    return damaged


def _files(options: argparse.Namespace) -> list[str]:
    """Return the files at the path, in the order of their ids. Raises StorageError if there is none."""
    if not os.path.isdir(options.path):
        return [os.path.realpath(options.path)]  # a link that was named is meant
    _, pattern, folders = LARGE[options.kind]
    for folder in folders:
        directory = os.path.join(options.path, folder)
        try:
            names = sorted(name for name in os.listdir(directory) if re.fullmatch(pattern, name))
        except OSError as error:
            if folder:
                continue
            raise StorageError(f"{directory}: {error.strerror}") from error
        if names:
            return [os.path.join(directory, name) for name in names]
    raise StorageError(f"{options.path} holds no {options.kind} files")


def _read(kind: str, path: str) -> Generator[Item, None, None]:
    from fastbk.inspect.index_files import read_entry_log, read_locations
    from fastbk.inspect.items import Counter, FileReader
    from fastbk.inspect.journal import read_journal
    from fastbk.inspect.small_files import logs_listed_for
    from fastbk.storage.directories import LOGS

    with FileReader(path) as source:
        if kind == "journal":
            items = read_journal(source)
        elif kind == "entrylog":
            log_id = LOGS.id_of(os.path.basename(path))
            items = read_entry_log(source, (logs_listed_for(path) or {}).get(log_id or 0))
        else:
            items = read_locations(source, logs_listed_for(path))
        yield from Counter().through(items)


def _show(options: argparse.Namespace, path: str, salvage: Callable[[Item], None] | None) -> int:
    """Print a file's items and hand on its entries; return how many places are damaged."""
    from fastbk.inspect.items import line_of

    to_stdout = getattr(options, "salvage", None) == "-"
    damaged = shown = 0
    with closing(_read(options.kind, path)) as items:
        for nth, item in enumerate(items):
            if nth == 0 and not options.json and not to_stdout:
                print(path)
            damaged += item.is_damage
            if not item.covers(options.ledger, options.entry):
                continue
            if item.entry is not None and salvage is not None:
                salvage(item)
            if to_stdout:
                if item.entry is not None:
                    sys.stdout.write(line_of(item))
                elif item.is_damage:
                    note(f"{path}: {_line(item)}")
                continue
            is_short = options.summary or salvage is not None
            if is_short and item.what not in ("header", "damage", "end", "total"):
                continue
            if options.limit is not None and shown >= options.limit and salvage is None:
                break
            shown += 1
            if options.limit is None or shown <= options.limit:
                _print(options, path, item)
    return damaged


def _print(options: argparse.Namespace, path: str, item: Item) -> None:
    record = {"file": path, "what": item.what, "offset_bytes": item.offset_bytes}
    print_answer(options, {**record, **item.facts}, _line(item))


def _line(item: Item) -> str:
    facts = "  ".join(f"{name}={_value(value)}" for name, value in item.facts.items())
    return f"{item.offset_bytes:>12}  {item.what:<9} {facts}"


def _value(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return repr(value) if isinstance(value, str) and " " in value else str(value)
