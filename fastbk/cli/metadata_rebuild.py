"""`fastbk metadata collect|rebuild`: metadata anew, out of what stopped bookies hold and have seen of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.metadata_backup import not_restored
from fastbk.cli.options import (
    Verbs,
    add_verb,
    metadata_uri,
    need_linux,
    note,
    print_answer,
    some_of,
)
from fastbk.exit_codes import DONE, FAILED
from fastbk.units import format_count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fastbk.admin.metadata_rebuild import Rebuilt

NAMED_MAX = 20
"""Ledgers that the report names, of each kind; --json has all."""


def add_verbs(verbs: Verbs) -> None:
    """Declare `collect` and `rebuild`."""
    text = "write what a stopped bookie holds, and has seen of metadata, into a file for `rebuild`"
    verb = add_verb(verbs, "collect", _collect, text)
    verb.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        action="append",
        required=True,
        help="a directory of the bookie, or the folder of several; can be given several times",
    )
    verb.add_argument("--to", type=Path, metavar="FILE", required=True, help="the file to write")
    text = (
        "make metadata anew of what was collected from all bookies, or complete a restored backup"
    )
    verb = add_verb(verbs, "rebuild", _rebuild, text)
    verb.add_argument("files", type=Path, nargs="+", metavar="FILE", help="one of each bookie")
    help_text = "what `backup` wrote: it is restored first, and completed by what the bookies have"
    verb.add_argument("--backup", type=Path, metavar="FILE", help=help_text)


def _collect(options: argparse.Namespace) -> int:
    need_linux("fastbk metadata collect")
    from fastbk.admin.metadata_rebuild import collect, encode
    from fastbk.durable_files import replaced

    found = collect(options.data)
    with replaced(options.to) as draft:
        draft.chmod(0o600)  # metadata holds passwords
        draft.write_bytes(encode(found))
    facts = {
        "bookie_id": found.bookie_id,
        "instance_id": found.instance_id,
        "ledgers": sum(one.is_here for one in found.ledgers),
        "seen": sum(bool(one.seen) for one in found.ledgers),
        "deleted": sum(last - first + 1 for first, last in found.deleted),
        "damage": found.damage,
    }
    line = (
        f"{found.bookie_id}: {facts['ledgers']} ledgers are here, of {facts['seen']} metadata was seen,"
        f" {facts['deleted']} were seen deleted: {options.to}"
    )
    return print_answer(options, facts, line, *(f"  damage: {one}" for one in found.damage))


def _rebuild(options: argparse.Namespace) -> int:
    need_linux("fastbk metadata rebuild")
    from fastbk.admin.metadata_archive import check_archive
    from fastbk.admin.metadata_backup import restore
    from fastbk.admin.metadata_rebuild import instance_of, read_collection, rebuild, remade_store

    collections = [read_collection(one) for one in options.files]
    uri, backup = metadata_uri(options), options.backup
    instance_id = instance_of(collections)
    if backup is not None:
        instance_id = instance_id or check_archive(backup).head.instance_id
    restored = None
    with closing(remade_store(uri, instance_id)) as store:
        if backup is not None:
            restored = restore(store, backup)
        done = rebuild(store, collections, backup)
    left_out = [] if restored is None else restored.left_out
    lines = _lines(done) + ([] if restored is None else not_restored(restored))
    print_answer(options, {**asdict(done), "not_restored": left_out}, *lines)
    if not options.json:
        note("Start all bookies, check what you can, then run `fastbk metadata confirm`.")
    return FAILED if left_out else DONE


def _lines(done: Rebuilt) -> list[str]:
    lines = [
        f"bookies             {', '.join(done.bookies)}",
        f"ledgers             {done.created} made, {done.updated} brought up to date, {done.unchanged} as they were",
        f"deleted ledgers     {done.kept_deleted} not brought back, {done.deleted} deleted from the store",
        f"next ledger id      above {done.highest_id}",
        f"hold                {done.hold_id}",
    ]
    if done.absent_bookies:
        lines.append(f"NOT COLLECTED       {', '.join(done.absent_bookies)}: ledgers name them")
    for name, damage in done.damage.items():
        lines += [f"DAMAGE              {name}: {one}" for one in damage]
    notes = [f"ledger {ledger_id}: {one}" for ledger_id, each in done.notes.items() for one in each]
    lines += some_of(notes, NAMED_MAX)
    gone = [
        f"stream {name}: its record and cursors are gone, its {format_count(len(ids), 'ledger')} are there: {_ids(ids)}"
        for name, ids in done.streams.items()
    ]
    lines += some_of(gone, NAMED_MAX)
    older = [
        f"stream {path}: its record is older than {format_count(len(ids), 'segment')} of it: {_ids(ids)}"
        for path, ids in done.unlisted.items()
    ]
    lines += some_of(older, NAMED_MAX)
    if gone or older:
        lines.append(
            "Before anybody writes to streams, with all bookies up: fastbk stream reattach"
        )
    return lines


def _ids(ids: Sequence[int]) -> str:
    more = len(ids) - NAMED_MAX
    return ", ".join(map(str, ids[:NAMED_MAX])) + (f" and {more} more" if more > 0 else "")
