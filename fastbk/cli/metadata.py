"""`fastbk metadata init|format|show|hold|status|confirm`: the place where a cluster's metadata is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli import metadata_hold
from fastbk.cli.confirmation import add_confirmation, exit_without_consent
from fastbk.cli.options import add_json, add_metadata, metadata_uri, print_json
from fastbk.errors import ConfigError, MetadataConflict

if TYPE_CHECKING:
    import argparse

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
    for verb in (init, formatting, show, *metadata_hold.add_verbs(verbs)):
        add_metadata(verb)
        add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Do it. Raises Error."""
    own = {"init": _init, "format": _format, "show": _show}
    return (own | metadata_hold.VERBS)[options.verb](options)


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

    store = open_store(uri)
    try:
        return store.instance_id()
    finally:
        store.close()


def _facts_of_store(uri: str) -> dict[str, str | list[str]]:
    from fastbk.meta import open_store

    scheme, _, path = uri.partition(":")
    if scheme == "sqlite" and not Path(path).exists():
        raise ConfigError(f"{path} does not exist; `fastbk metadata init` makes it")
    store = open_store(uri)
    try:
        bookies = store.list_bookies()
        return {
            "uri": store.uri,
            "instance_id": store.instance_id(),
            "writable_bookies": [one.service.bookie_id for one in bookies if one.writable],
            "readonly_bookies": [one.service.bookie_id for one in bookies if not one.writable],
            "identities": [one.bookie_id for one in store.list_identities()],
        }
    finally:
        store.close()
