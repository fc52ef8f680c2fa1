"""`fastbk metadata init|format|show|hold|confirm|backup|restore|rebuild|…`: the place where a cluster's metadata is.

A hold keeps bookies from deleting what restored metadata does not list. These verbs need the metadata store only, so
they work before the first bookie starts.
"""

from __future__ import annotations

import base64
import hashlib
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli import metadata_backup, metadata_rebuild
from fastbk.cli.options import (
    add_common,
    add_confirmation,
    add_verb,
    add_verbs,
    exit_without_consent,
    metadata_uri,
    opened_store,
    print_answer,
    run_verb,
)
from fastbk.cli.running import add_watch
from fastbk.errors import ConfigError, MetadataConflict
from fastbk.exit_codes import DONE, FAILED
from fastbk.meta.zookeeper.security import VARIABLE

if TYPE_CHECKING:
    import argparse

    from fastbk.meta.hold import Hold
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
    metadata_backup.add_verbs(verbs)
    metadata_rebuild.add_verbs(verbs)
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
    from fastbk.private_files import read_password

    password = read_password(options.password_file)
    digest = hashlib.sha1(f"{options.user}:{password}".encode(), usedforsecurity=False).digest()
    return _acl(options, f"digest:{options.user}:{base64.b64encode(digest).decode()}")


def _acl(options: argparse.Namespace, acl_id: str) -> int:
    return print_answer(options, {"acl_id": acl_id}, acl_id)


def _made(options: argparse.Namespace, uri: str, instance_id: str) -> int:
    found = {"uri": uri, "instance_id": instance_id}
    return print_answer(options, found, f"{uri}: cluster {instance_id}")


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
            "writable_bookies": [one.service.bookie_id for one in bookies if one.writable],
            "readonly_bookies": [one.service.bookie_id for one in bookies if not one.writable],
            "identities": [one.bookie_id for one in store.list_identities()],
        }


def _hold(options: argparse.Namespace) -> int:
    from fastbk.meta.hold import new_hold, place_hold

    reason = f"{BY_HAND}: {options.reason}" if options.reason else BY_HAND
    with opened_store(metadata_uri(options)) as store:
        return _print(options, place_hold(store, new_hold(reason)), code=DONE)


def _status(options: argparse.Namespace) -> int:
    from fastbk.meta.hold import read_hold

    with opened_store(metadata_uri(options)) as store:
        hold = read_hold(store)
    return _print(options, hold, code=DONE if hold is None else FAILED)


def _confirm(options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_restore import raise_if_half_restored
    from fastbk.meta.hold import confirm_hold, read_hold

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
        found = find_bad_records(store)
    facts = {"bad_records": [{"record": one.path, "reason": one.reason} for one in found]}
    print_answer(options, facts, *(map(str, found) if found else ["all of metadata can be read"]))
    return FAILED if found else DONE


def _print(options: argparse.Namespace, hold: Hold | None, *, code: int) -> int:
    from fastbk.meta.hold import NEXT_STEP, when

    if hold is None:
        print_answer(options, {"hold": None}, "metadata is not on hold")
        return code
    facts = {"id": hold.hold_id, "since_ms": hold.since_ms, "reasons": list(hold.reasons)}
    lines = [f"metadata is on hold since {when(hold)}:", *(f"  {one}" for one in hold.reasons)]
    print_answer(options, {"hold": facts}, *lines, f"{NEXT_STEP}.")
    return code
