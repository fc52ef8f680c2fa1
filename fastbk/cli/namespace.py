"""`fastbk namespace ...`: namespaces of streams, and what is inherited from them."""

from __future__ import annotations

import argparse
import sys
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_confirmation,
    add_json,
    add_metadata,
    exit_without_consent,
    note,
    print_json,
)
from fastbk.cli.stream.options import (
    add_inherit,
    add_policy,
    add_verb,
    add_verb_of_one,
    policy_facts,
    policy_lines,
    policy_of,
    run_verb,
)
from fastbk.errors import ConfigError
from fastbk.units import format_count

if TYPE_CHECKING:
    from fastbk.cli.stream.options import Verb
    from fastbk.stream.client import Client
    from fastbk.stream.namespace.namespace import Namespace

def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = add_verb_of_one(
        verbs, "create", "make a namespace, and those above it that are missing", "NAMESPACE"
    )
    create.add_argument("--exist-ok", action="store_true", help="leave one that is there alone")
    add_policy(create)
    listing = add_verb(verbs, "list", "print the namespaces below one")
    listing.add_argument("namespace", nargs="?", default="", metavar="NAMESPACE", help="the root")
    listing.add_argument("--recursive", "-r", action="store_true", help="and those below them")
    info = add_verb(verbs, "info", "print a namespace's policy, its own and what holds")
    info.add_argument("namespace", nargs="?", default="", metavar="NAMESPACE", help="the root")
    change = add_verb(
        verbs, "set", "change a namespace's policy; its streams follow at their next segment"
    )
    change.add_argument("namespace", metavar="NAMESPACE", help='such as shop/eu; "": the root')
    add_policy(change)
    add_inherit(change)
    rename = add_verb_of_one(
        verbs, "rename", "give a namespace another name; its streams go on", "NAMESPACE"
    )
    rename.add_argument("name", metavar="NAME", help="without slashes: it stays where it is")
    delete = add_verb_of_one(verbs, "delete", "delete a namespace that is empty", "NAMESPACE")
    delete.add_argument(
        "--recursive", "-r", action="store_true", help="and first all in it, for good"
    )
    watch = add_verb(verbs, "watch", "print what is in a namespace, and what happens there")
    watch.add_argument("namespace", nargs="?", default="", metavar="NAMESPACE", help="the root")
    for one in (create, listing, info, change, rename, delete, watch):
        add_metadata(one)
        add_json(one)
    add_confirmation(delete)


def run(options: argparse.Namespace) -> int:
    """Run one verb against the cluster."""
    options.namespace = options.namespace.strip("/")
    return run_verb(options, _VERBS)


async def _create(client: Client, options: argparse.Namespace) -> int:
    namespace = client.namespace(options.namespace)
    await namespace.create(policy_of(options.set), exist_ok=options.exist_ok)
    if options.json:
        print_json(
            {"namespace": options.namespace, "policy": policy_facts(await namespace.policy())}
        )
    return 0


async def _list(client: Client, options: argparse.Namespace) -> int:
    found: list[str] = []

    async def collect(namespace: Namespace) -> None:
        async for one in namespace.namespaces():
            found.append(one.path)
            if options.recursive:
                await collect(one)

    await collect(client.namespace(options.namespace))
    if options.json:
        print_json({"namespaces": found})
        return 0
    sys.stdout.writelines(f"{path}\n" for path in found)
    if not found:
        note("no namespaces here; `fastbk namespace create NAME` makes one")
    return 0


async def _info(client: Client, options: argparse.Namespace) -> int:
    namespace = client.namespace(options.namespace)
    own = policy_facts(await namespace.policy())
    effective = policy_facts(await namespace.effective_policy())
    streams, size_bytes = await namespace.stream_count(), await namespace.stored_bytes()
    if options.json:
        print_json({"namespace": options.namespace, "streams": streams, "bytes": size_bytes,
                    "policy": own, "effective": effective})  # fmt: skip
        return 0
    print(f"namespace  {options.namespace or '(the root)'}\nstreams    {streams:,}")
    if size_bytes is not None:
        print(f"bytes      {size_bytes:,} of {own['bytes_max']:,}, as the janitor counted last")
    print("\n".join(policy_lines(effective, own)))
    return 0


async def _set(client: Client, options: argparse.Namespace) -> int:
    if not options.set and not options.inherit:
        raise ConfigError("nothing to change: give --set FIELD=VALUE or --inherit FIELD")
    namespace = client.namespace(options.namespace)
    await namespace.set_policy(policy_of(options.set), inherit=options.inherit)
    if options.json:
        print_json(
            {"namespace": options.namespace, "policy": policy_facts(await namespace.policy())}
        )
    return 0


async def _rename(client: Client, options: argparse.Namespace) -> int:
    renamed = await client.namespace(options.namespace).rename(options.name)
    if options.json:
        print_json({"namespace": renamed.path})
    else:
        print(renamed.path)
    return 0


async def _delete(client: Client, options: argparse.Namespace) -> int:
    namespace = client.namespace(options.namespace)
    streams = await namespace.stream_count()
    all_in_it = (
        f" with the {format_count(streams, 'stream')} below it"
        if options.recursive and streams
        else ""
    )
    action = f"delete namespace {options.namespace}{all_in_it}"
    if (code := exit_without_consent(options, action, {"streams": streams})) is not None:
        return code
    await namespace.delete(recursive=options.recursive)
    if options.json:
        print_json({"deleted": options.namespace})
    return 0


async def _watch(client: Client, options: argparse.Namespace) -> int:
    async with aclosing(client.namespace(options.namespace).watch()) as events:
        async for event in events:
            if options.json:
                print_json(asdict(event))
            else:
                former = f" (was {event.former})" if event.former else ""
                print(f"{event.kind:<8} {event.what:<9} {event.name}{former}")
            sys.stdout.flush()
    return 0


_VERBS: dict[str, Verb] = {
    "create": _create,
    "list": _list,
    "info": _info,
    "set": _set,
    "rename": _rename,
    "delete": _delete,
    "watch": _watch,
}
