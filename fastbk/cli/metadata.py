"""`fastbk metadata init|format|show|hold|status|confirm`: the place where a cluster's metadata is.

A hold keeps bookies from deleting what restored metadata does not list. These verbs need the metadata store only, so
they work before the first bookie starts.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbk.cli.options import (
    add_confirmation,
    add_json,
    add_metadata,
    exit_without_consent,
    metadata_uri,
    print_json,
)
from fastbk.errors import ConfigError, MetadataConflict
from fastbk.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    import argparse

    from fastbk.meta import MetadataStore
    from fastbk.meta.hold import Hold
    from fastbk.meta.uri import ZooKeeperLocation

def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    init = verbs.add_parser("init", help="make a new cluster; refuses where there is something")
    formatting = verbs.add_parser(
        "format", help="forget all ledgers and bookies in ZooKeeper and make a new cluster"
    )
    add_confirmation(formatting)
    formatting.add_argument(
        "--force", dest="yes", action="store_true", help="the same as --yes (deprecated)"
    )
    show = verbs.add_parser("show", help="print which cluster it is and which bookies are up")
    for verb in (init, formatting, show, *_add_hold_verbs(verbs)):
        add_metadata(verb)
        add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Do it. Raises Error."""
    verbs = {
        "init": _init,
        "format": _format,
        "show": _show,
        "hold": _hold,
        "status": _status,
        "confirm": _confirm,
    }
    return verbs[options.verb](options)


def _init(options: argparse.Namespace) -> int:
    uri = metadata_uri(options)
    location = _zookeeper(uri)
    if location is None:
        _refuse_existing_file(uri)
        instance_id = _instance_id(uri)
    else:
        from fastbk.meta import zookeeper_admin

        instance_id = zookeeper_admin.init(location)
    return _made(options, uri, instance_id)


def _format(options: argparse.Namespace) -> int:
    uri = metadata_uri(options)
    location = _zookeeper(uri)
    if location is None:
        raise ConfigError(
            f"{uri}: format is for ZooKeeper; remove the file, then `fastbk metadata init`"
        )
    from fastbk.meta import zookeeper_admin

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
        from dataclasses import asdict

        from fastbk.meta import zookeeper_admin

        facts = dict(asdict(zookeeper_admin.show(location)))
    if options.json:
        print_json(facts)
        return 0
    for name, value in facts.items():
        text = value if isinstance(value, str) else ", ".join(value) or "none"
        print(f"{name.replace('_', ' '):<17} {text}")
    return 0


def _made(options: argparse.Namespace, uri: str, instance_id: str) -> int:
    if options.json:
        print_json({"uri": uri, "instance_id": instance_id})
    else:
        print(f"{uri}: cluster {instance_id}")
    return 0


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


BY_HAND = "an operator ran `fastbk metadata hold`"


def _add_hold_verbs(verbs: argparse._SubParsersAction[Any]) -> list[argparse.ArgumentParser]:
    """Declare the subcommands and return their parsers."""
    hold = verbs.add_parser(
        "hold", help="put metadata on hold: nothing is deleted by its word until `confirm`"
    )
    hold.add_argument("--reason", default="", help="what other operators read")
    status = verbs.add_parser(
        "status", help="say whether metadata is on hold (exit code 1) and why"
    )
    confirm = verbs.add_parser(
        "confirm", help="end the hold: what metadata does not list now may be deleted"
    )
    add_confirmation(confirm)
    return [hold, status, confirm]


def _hold(options: argparse.Namespace) -> int:
    from fastbk.meta.hold import new_hold, place_hold

    reason = f"{BY_HAND}: {options.reason}" if options.reason else BY_HAND
    with _store(options) as store:
        return _print(options, place_hold(store, new_hold(reason)), code=DONE)


def _status(options: argparse.Namespace) -> int:
    from fastbk.meta.hold import read_hold

    with _store(options) as store:
        hold = read_hold(store)
    return _print(options, hold, code=DONE if hold is None else FAILED)


def _confirm(options: argparse.Namespace) -> int:
    from fastbk.meta.hold import confirm_hold, read_hold

    with _store(options) as store:
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


def _store(options: argparse.Namespace) -> closing[MetadataStore]:
    from fastbk.meta import open_store

    return closing(open_store(metadata_uri(options), 10.0, may_make=False))


def _print(options: argparse.Namespace, hold: Hold | None, *, code: int) -> int:
    from fastbk.meta.hold import NEXT_STEP, when

    if options.json:
        facts = None
        if hold is not None:
            facts = {"id": hold.hold_id, "since_ms": hold.since_ms, "reasons": list(hold.reasons)}
        print_json({"hold": facts})
    elif hold is None:
        print("metadata is not on hold")
    else:
        print(f"metadata is on hold since {when(hold)}:")
        for reason in hold.reasons:
            print(f"  {reason}")
        print(f"{NEXT_STEP}.")
    return code
