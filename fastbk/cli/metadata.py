"""`fastbk metadata init|format|show|hold|confirm|backup|restore|rebuild|…`: the place where a
cluster's metadata is.

A hold keeps bookies from deleting what restored metadata does not list. These verbs need the
metadata store only, so they work before the first bookie starts. `backup`, `check`, `diff` and
`restore` are about metadata in a file, taken while the cluster runs. `collect` and `rebuild` write
lost metadata anew from what stopped bookies have.
"""

from __future__ import annotations

import base64
import hashlib
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    Verbs,
    add_common,
    add_confirmation,
    add_verb,
    add_verbs,
    exit_without_consent,
    metadata_uri,
    need_linux,
    note,
    opened_store,
    print_answer,
    run_verb,
    some_of,
)
from fastbk.cli.terminal import add_watch
from fastbk.errors import ConfigError, MetadataConflict
from fastbk.exit_codes import DONE, FAILED
from fastbk.meta.zookeeper.security import VARIABLE
from fastbk.units import format_count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fastbk.admin.metadata_backup import Restored, Summary
    from fastbk.admin.metadata_rebuild import Rebuilt
    from fastbk.meta.rollback import Hold
    from fastbk.meta.uri import ZooKeeperLocation

BY_HAND = "an operator ran `fastbk metadata hold`"
run = run_verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = add_verbs(parser)
    add_verb(verbs, "init", _init, "make a new cluster; refuses where there is something")
    text = "forget all ledgers and bookies in ZooKeeper and make a new cluster"
    formatting = add_verb(verbs, "format", _format, text)
    add_confirmation(formatting)
    add_watch(add_verb(verbs, "show", _show, "print which cluster it is and which bookies are up"))
    text = "put metadata on hold: nothing is deleted by its word until `confirm`"
    hold = add_verb(verbs, "hold", _hold, text)
    hold.add_argument("--reason", default="", help="what other operators read")
    text = "say whether metadata is on hold (exit code 1) and why"
    add_watch(add_verb(verbs, "status", _status, text))
    text = "end the hold: what metadata does not list now may be deleted"
    add_confirmation(add_verb(verbs, "confirm", _confirm, text))
    text = "give all nodes in ZooKeeper the rights that the file of FASTBK_ZOOKEEPER_FILE names"
    add_confirmation(add_verb(verbs, "secure", _secure, text))
    text = "print the id by which a user of ZooKeeper's digest authentication, or a certificate, stands in [acl]"
    acl_id = add_verb(verbs, "acl-id", _acl_id, text)
    acl_id.add_argument("--user", help="with --password-file")
    acl_id.add_argument("--password-file", metavar="FILE")
    acl_id.add_argument(
        "--certificate-file", metavar="FILE", help="instead: a client's certificate, for an x509 id"
    )
    text = "list what nobody can read in metadata (exit code 1: something), and remove one of it"
    bad = add_verb(verbs, "bad-records", _bad_records, text)
    bad.add_argument(
        "--remove",
        metavar="RECORD",
        help="as it is listed; a ledger goes with what bookies hold of it",
    )
    add_confirmation(bad)
    add_backup_verbs(verbs)
    add_rebuild_verbs(verbs)
    add_common(verbs)


def _init(options: argparse.Namespace) -> int:
    uri = metadata_uri(options)
    location = _zookeeper(uri)
    if location is None:
        _refuse_existing_file(uri)
        instance_id = _instance_id(uri)
    else:
        from fastbk.meta.zookeeper import admin as zookeeper_admin

        instance_id = zookeeper_admin.init(location)
    return _made(options, uri, instance_id)


def _format(options: argparse.Namespace) -> int:
    uri = metadata_uri(options)
    location = _zookeeper(uri)
    if location is None:
        raise ConfigError(
            f"{uri}: format is for ZooKeeper; remove the file, then `fastbk metadata init`"
        )
    from fastbk.meta.zookeeper import admin as zookeeper_admin

    action = f"forget all ledgers, streams and bookies of the cluster at {uri}"
    code = None
    if zookeeper_admin.exists(location) or options.dry_run:
        code = exit_without_consent(options, action)
    if code is not None:
        return code
    return _made(options, uri, zookeeper_admin.format_cluster(location))


def _show(options: argparse.Namespace) -> int:
    uri = metadata_uri(options)
    location = _zookeeper(uri)
    facts: dict[str, str | list[str]]
    if location is None:
        facts = _facts_of_store(uri)
    else:
        from fastbk.meta.zookeeper import admin as zookeeper_admin

        facts = dict(asdict(zookeeper_admin.show(location)))
    lines = []
    for name, value in facts.items():
        text = value if isinstance(value, str) else ", ".join(value) or "none"
        lines.append(f"{name.replace('_', ' '):<17} {text}")
    return print_answer(options, facts, *lines)


def _secure(options: argparse.Namespace) -> int:
    uri = metadata_uri(options)
    location = _zookeeper(uri)
    if location is None:
        raise ConfigError(
            f"{uri}: only ZooKeeper's nodes have rights; the file belongs to its user"
        )
    from fastbk.meta.zookeeper import admin as zookeeper_admin

    count = zookeeper_admin.secure(location, is_dry=True)
    code = exit_without_consent(options, f"set the rights of {count} nodes at {uri}")
    if code is not None:
        return code
    count = zookeeper_admin.secure(location)
    return print_answer(
        options, {"nodes": count}, f"{count} nodes have the rights of {VARIABLE} now"
    )


def _acl_id(options: argparse.Namespace) -> int:
    if options.certificate_file:
        if options.user or options.password_file:
            raise ConfigError("give --user and --password-file, or --certificate-file")
        from fastbk.security.certificates import java_subject

        return _acl(options, f"x509:{java_subject(options.certificate_file)}")
    if not options.user or not options.password_file:
        raise ConfigError("give --user and --password-file, or --certificate-file")
    from fastbk.safe_files import read_password

    password = read_password(options.password_file)
    digest = hashlib.sha1(f"{options.user}:{password}".encode(), usedforsecurity=False).digest()
    return _acl(options, f"digest:{options.user}:{base64.b64encode(digest).decode()}")


def _acl(options: argparse.Namespace, acl_id: str) -> int:
    return print_answer(options, {"acl_id": acl_id}, acl_id)


def _made(options: argparse.Namespace, uri: str, instance_id: str) -> int:
    facts = {"uri": uri, "instance_id": instance_id}
    return print_answer(options, facts, f"{uri}: cluster {instance_id}")


def _zookeeper(uri: str) -> ZooKeeperLocation | None:
    """Return where in ZooKeeper the URI points, None for other stores. Raises ConfigError."""
    from fastbk.meta.uri import is_zookeeper, parse_zookeeper

    return parse_zookeeper(uri) if is_zookeeper(uri) else None


def _refuse_existing_file(uri: str) -> None:
    scheme, _, path = uri.partition(":")
    if scheme == "memory":
        raise ConfigError(f"{uri}: what is in memory ends with this command")
    if scheme == "sqlite" and Path(path).exists():
        raise MetadataConflict(f"{path} exists already: choose another path")


def _instance_id(uri: str) -> str:
    from fastbk.meta import open_store

    with closing(open_store(uri)) as store:
        return store.instance_id()


def _facts_of_store(uri: str) -> dict[str, str | list[str]]:
    from fastbk.meta import open_store

    scheme, _, path = uri.partition(":")
    if scheme == "sqlite" and not Path(path).exists():
        raise ConfigError(f"{path} does not exist; `fastbk metadata init` makes it")
    with closing(open_store(uri)) as store:
        bookies = store.list_bookies()
        return {
            "uri": store.uri,
            "instance_id": store.instance_id(),
            "writable_bookies": [bookie.service.bookie_id for bookie in bookies if bookie.writable],
            "readonly_bookies": [
                bookie.service.bookie_id for bookie in bookies if not bookie.writable
            ],
            "identities": [identity.bookie_id for identity in store.list_identities()],
        }


def _hold(options: argparse.Namespace) -> int:
    from fastbk.meta.rollback import new_hold, place_hold

    reason = f"{BY_HAND}: {options.reason}" if options.reason else BY_HAND
    with opened_store(metadata_uri(options)) as store:
        return _print(options, place_hold(store, new_hold(reason)), code=DONE)


def _status(options: argparse.Namespace) -> int:
    from fastbk.meta.rollback import read_hold

    with opened_store(metadata_uri(options)) as store:
        hold = read_hold(store)
    return _print(options, hold, code=DONE if hold is None else FAILED)


def _confirm(options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_backup import raise_if_half_restored
    from fastbk.meta.rollback import confirm_hold, read_hold

    with opened_store(metadata_uri(options)) as store:
        raise_if_half_restored(store)
        hold = read_hold(store)
        if hold is None:
            return _print(options, None, code=DONE)
        action = f"end the hold on metadata ({hold}); bookies then delete what it does not list"
        code = exit_without_consent(options, action)
        if code is not None:
            return code
        if not confirm_hold(store, hold.hold_id):
            raise MetadataConflict(
                "the hold has changed meanwhile: read it by `fastbk metadata status`, then confirm again"
            )
    return _print(options, None, code=DONE)


def _bad_records(options: argparse.Namespace) -> int:
    from fastbk.admin.bad_records import find_bad_records, remove_bad_record

    with opened_store(metadata_uri(options)) as store:
        if options.remove:
            code = exit_without_consent(options, f"remove {options.remove} from metadata")
            if code is not None:
                return code
            remove_bad_record(store, options.remove)
            return print_answer(
                options, {"removed": options.remove}, f"{options.remove} is removed"
            )
        bad_records = find_bad_records(store)
    facts = {
        "bad_records": [
            {"record": bad_record.path, "reason": bad_record.reason} for bad_record in bad_records
        ]
    }
    print_answer(
        options, facts, *(map(str, bad_records) if bad_records else ["all of metadata can be read"])
    )
    return FAILED if bad_records else DONE


def _print(options: argparse.Namespace, hold: Hold | None, *, code: int) -> int:
    from fastbk.meta.rollback import NEXT_STEP, when

    if hold is None:
        print_answer(options, {"hold": None}, "metadata is not on hold")
        return code
    facts = {"id": hold.hold_id, "since_ms": hold.since_ms, "reasons": list(hold.reasons)}
    lines = [
        f"metadata is on hold since {when(hold)}:",
        *(f"  {reason}" for reason in hold.reasons),
    ]
    print_answer(options, {"hold": facts}, *lines, f"{NEXT_STEP}.")
    return code


NAMED_MAX = 20
"""Differences that are printed; --json has up to 1,000 of those in an archive, and all of `diff`."""


def add_backup_verbs(verbs: Verbs) -> None:
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
    from fastbk.meta.health_records import LastBackup, note_backup

    with opened_store(metadata_uri(options)) as store:
        summary = backup(store, options.to)
        taken = LastBackup(began_ms=summary.head.began_ms, backup_id=summary.archive_id)
        try:
            note_backup(store, taken)
        except Error as error:
            note(f"the backup is good, but metadata does not say that it was taken: {error}")
    return _print_summary(options, options.to, summary)


def _check(options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_backup import check_archive

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
            {"kind": change.kind, "name": change.name, "change": change.change}
            for change in summary.changes
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
        lines += [f"  {change}" for change in summary.changes[:NAMED_MAX]]
        if end.changes > NAMED_MAX:
            lines.append(f"  and {end.changes - NAMED_MAX} more")
    print_answer(options, facts, *lines)
    return FAILED if summary.not_restorable else DONE


def _diff(options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_backup import check_archive, differences
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

    from fastbk.admin.metadata_backup import check_archive, restore
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


"""Ledgers that the report names, of each kind; --json has all."""


def add_rebuild_verbs(verbs: Verbs) -> None:
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
    from fastbk.safe_files import replaced

    found = collect(options.data)
    with replaced(options.to) as draft:
        draft.chmod(0o600)  # metadata holds passwords
        draft.write_bytes(encode(found))
    facts = {
        "bookie_id": found.bookie_id,
        "instance_id": found.instance_id,
        "ledgers": sum(ledger.is_here for ledger in found.ledgers),
        "seen": sum(bool(ledger.seen) for ledger in found.ledgers),
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
    from fastbk.admin.metadata_backup import check_archive, restore
    from fastbk.admin.metadata_rebuild import instance_of, read_collection, rebuild, remade_store

    collections = [read_collection(file) for file in options.files]
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
    lines = _rebuilt_lines(done) + ([] if restored is None else not_restored(restored))
    print_answer(options, {**asdict(done), "not_restored": left_out}, *lines)
    if not options.json:
        note("Start all bookies, check what you can, then run `fastbk metadata confirm`.")
    return FAILED if left_out else DONE


def _rebuilt_lines(done: Rebuilt) -> list[str]:
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
