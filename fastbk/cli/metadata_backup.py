"""`fastbk metadata backup|check|diff|restore`: metadata in a file, taken while the cluster runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    Verbs,
    add_verb,
    metadata_uri,
    note,
    opened_store,
    print_answer,
)
from fastbk.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    import argparse

    from fastbk.admin.metadata_archive import Summary
    from fastbk.admin.metadata_backup import Restored

NAMED_MAX = 20
"""Differences that are printed; --json has up to 1,000 of those in an archive, and all of `diff`."""


def add_verbs(verbs: Verbs) -> None:
    """Declare the verbs."""
    text = "write ledgers, streams, cursors and bookies' identities into a file, while the cluster runs"
    verb = add_verb(verbs, "backup", _backup, text)
    verb.add_argument("--to", type=Path, metavar="FILE", required=True, help="the file to write")
    text = "say whether a backup is whole and can be restored (exit code 1: not all of it), and what it has"
    add_verb(verbs, "check", _check, text).add_argument("file", type=Path, metavar="FILE")
    text = "say what metadata has else than a backup (exit code 1: something)"
    add_verb(verbs, "diff", _diff, text).add_argument("file", type=Path, metavar="FILE")
    text = "fill an empty metadata store from a backup (exit code 1: not with all); nothing is deleted before `confirm`"
    add_verb(verbs, "restore", _restore, text).add_argument("file", type=Path, metavar="FILE")


def _backup(options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_backup import backup
    from fastbk.errors import Error
    from fastbk.meta.last_backup import LastBackup, note_backup

    with opened_store(metadata_uri(options)) as store:
        summary = backup(store, options.to)
        taken = LastBackup(began_ms=summary.head.began_ms, backup_id=summary.archive_id)
        try:
            note_backup(store, taken)
        except Error as error:
            note(f"the backup is good, but metadata does not say that it was taken: {error}")
    return _print_summary(options, options.to, summary)


def _check(options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_archive import check_archive

    return _print_summary(options, options.file, check_archive(options.file))


def _print_summary(options: argparse.Namespace, path: Path, summary: Summary) -> int:
    from fastbk.units import format_count, format_size, format_utc_ms

    head, end = summary.head, summary.end
    facts = {
        "backup_id": summary.archive_id,
        "instance_id": head.instance_id,
        "began_ms": head.began_ms,
        "ended_ms": end.ended_ms,
        "software": head.software,
        "size_bytes": path.stat().st_size,
        "ledgers": end.ledgers,
        "records": end.records,
        "bookies": end.bookies,
        "left_out": end.left_out,
        "not_restorable": summary.not_restorable,
        "changes": end.changes,
        "changed": [
            {"kind": one.kind, "name": one.name, "change": one.change} for one in summary.changes
        ],
    }
    lines = [
        f"backup        {summary.archive_id}, {format_size(path.stat().st_size)}, by {head.software}",
        f"cluster       {head.instance_id}",
        f"taken         {format_utc_ms(head.began_ms)}, in {(end.ended_ms - head.began_ms) / 1000:.1f} s",
        f"ledgers       {end.ledgers}",
        f"records       {end.records} of namespaces, streams, cursors and settings",
        f"bookies       {end.bookies}",
    ]
    lines += [f"NOT IN IT     {one}" for one in end.left_out]
    lines += [f"UNREADABLE    {one}: a restore passes it over" for one in summary.not_restorable]
    if end.changes:
        lines.append(f"{format_count(end.changes, 'change')} while it was taken:")
        lines += [f"  {one}" for one in summary.changes[:NAMED_MAX]]
        if end.changes > NAMED_MAX:
            lines.append(f"  and {end.changes - NAMED_MAX} more")
    print_answer(options, facts, *lines)
    return FAILED if summary.not_restorable else DONE


def _diff(options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_archive import check_archive
    from fastbk.admin.metadata_backup import differences
    from fastbk.errors import ConfigError

    summary = check_archive(options.file)
    with opened_store(metadata_uri(options)) as store:
        if store.instance_id() != summary.head.instance_id:
            raise ConfigError(
                f"the backup is of the cluster {summary.head.instance_id}, the store is of {store.instance_id()}"
            )
        found = list(differences(options.file, store))
    facts = {
        "differences": [{"kind": one.kind, "name": one.name, "change": one.change} for one in found]
    }
    print_answer(
        options, facts, *(map(str, found) if found else ["metadata is as the backup has it"])
    )
    return FAILED if found else DONE


def _restore(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from fastbk.admin.metadata_archive import check_archive
    from fastbk.admin.metadata_backup import restore
    from fastbk.admin.metadata_rebuild import remade_store

    head = check_archive(options.file).head
    uri = metadata_uri(options)
    with closing(remade_store(uri, head.instance_id)) as store:
        done = restore(store, options.file)
    lines = [f"{uri} was restored from backup {done.archive_id} before: nothing was written"]
    if not done.was_complete:
        lines = [
            f"ledgers             {done.ledgers}",
            f"records             {done.records}",
            f"bookies             {done.bookies}",
            f"next ledger id      above {done.highest_id}",
            f"hold                {done.hold_id}",
        ]
    if done.level_raised:
        lines.append(
            f"format level        {done.level_raised}: its records need it, and it does not say so itself"
        )
    if done.deleted:
        lines.append(
            f"not restored        {done.deleted} ledgers that were deleted while the backup was taken"
        )
    lines += not_restored(done)
    print_answer(options, asdict(done), *lines)
    if not options.json:
        note(
            "What was written since the backup is not there yet: `fastbk metadata rebuild` adds it from the bookies."
            " Then start all bookies, check what you can, and run `fastbk metadata confirm`."
        )
    return FAILED if done.left_out else DONE


def not_restored(done: Restored) -> list[str]:
    """Return the lines about what is in no store now, and what comes of it."""
    lines = [f"NOT RESTORED        {one}" for one in done.left_out]
    if lines:
        lines.append(
            "After `confirm` bookies delete what they hold of ledgers that metadata does not have."
        )
    return lines
