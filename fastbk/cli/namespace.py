"""`fastbk namespace ...`: namespaces of streams, and what is inherited from them."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_common,
    add_confirmation,
    add_verb,
    add_verbs,
    exit_without_consent,
    note,
    print_answer,
)
from fastbk.cli.stream_options import (
    add_inherit,
    add_policy,
    add_verb_of_one,
    origins_of,
    pattern_cursor_facts,
    pattern_cursor_lines,
    policy_facts,
    policy_lines,
    policy_of,
    run_endless,
    set_policy,
)
from fastbk.cli.terminal import add_watch
from fastbk.errors import ConfigError, StreamNotFound
from fastbk.units import format_count

if TYPE_CHECKING:
    from fastbk.cli.options import ClientVerb, Verbs
    from fastbk.stream.client import Client
    from fastbk.stream.namespace.namespace import Namespace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs, one = add_verbs(parser), "NAMESPACE"
    text = "make a namespace, and those above it that are missing"
    create = add_verb_of_one(verbs, "create", _create, text, one)
    create.add_argument("--exist-ok", action="store_true", help="leave one that is there alone")
    add_policy(create)
    listing = _add_verb(verbs, "list", _list, "print the namespaces below one")
    listing.add_argument("--recursive", "-r", action="store_true", help="and those below them")
    add_watch(listing)
    add_watch(_add_verb(verbs, "info", _info, "print a namespace's policy, its own and what holds"))
    text = "change a namespace's policy; its streams follow at their next segment"
    change = add_verb(verbs, "set", _set, text)
    change.add_argument("namespace", metavar="NAMESPACE", help='such as shop/eu; "": the root')
    add_policy(change)
    add_inherit(change)
    text = "give a namespace another name; its streams go on"
    rename = add_verb_of_one(verbs, "rename", _rename, text, one)
    rename.add_argument("name", metavar="NAME", help="without slashes: it stays where it is")
    delete = add_verb_of_one(verbs, "delete", _delete, "delete a namespace that is empty", one)
    delete.add_argument(
        "--recursive", "-r", action="store_true", help="and first all in it, for good"
    )
    text = "print the cursors of patterns of a namespace's streams"
    cursors = _add_verb(verbs, "cursors", _cursors, text)
    cursors.add_argument(
        "--delete", metavar="CURSOR", help="delete this one; whoever holds it is told"
    )
    add_watch(cursors)
    _add_verb(verbs, "watch", _watch, "print what is in a namespace, and what happens there")
    add_common(verbs)
    add_confirmation(delete)
    add_confirmation(cursors)


def _add_verb(verbs: Verbs, name: str, act: ClientVerb, text: str) -> argparse.ArgumentParser:
    """Declare a verb that is about the root when no namespace is given."""
    parser = add_verb(verbs, name, act, text)
    parser.add_argument("namespace", nargs="?", default="", metavar="NAMESPACE", help="the root")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run one verb against the cluster."""
    options.namespace = options.namespace.strip("/")
    return run_endless(options)


async def _create(client: Client, options: argparse.Namespace) -> int:
    namespace = client.namespace(options.namespace)
    await namespace.create(policy_of(options.set), exist_ok=options.exist_ok)
    facts = {"namespace": options.namespace, "policy": policy_facts(await namespace.policy())}
    return print_answer(options, facts)


async def _list(client: Client, options: argparse.Namespace) -> int:
    found: list[str] = []

    async def collect(namespace: Namespace) -> None:
        async for one in namespace.namespaces():
            found.append(one.path)
            if options.recursive:
                await collect(one)

    await collect(client.namespace(options.namespace))
    if not found and not options.json:
        note("no namespaces here; `fastbk namespace create NAME` makes one")
    return print_answer(options, {"namespaces": found}, *found)


async def _info(client: Client, options: argparse.Namespace) -> int:
    namespace = client.namespace(options.namespace)
    own = policy_facts(await namespace.policy())
    effective = policy_facts(await namespace.effective_policy())
    streams, size_bytes = await namespace.stream_count(), await namespace.stored_bytes()
    lines = [f"namespace  {options.namespace or '(the root)'}", f"streams    {streams:,}"]
    if size_bytes is not None:
        lines.append(
            f"bytes      {size_bytes:,} of {own['bytes_max']:,}, as the janitor counted last"
        )
    facts = {"namespace": options.namespace, "streams": streams, "bytes": size_bytes}
    facts |= {"policy": own, "effective": effective}
    origins = await origins_of(client, options.namespace.strip("/"))
    return print_answer(options, facts, *lines, *policy_lines(effective, own, origins))


async def _set(client: Client, options: argparse.Namespace) -> int:
    policy = await set_policy(client.namespace(options.namespace), options)
    return print_answer(options, {"namespace": options.namespace, "policy": policy})


async def _rename(client: Client, options: argparse.Namespace) -> int:
    renamed = await client.namespace(options.namespace).rename(options.name)
    return print_answer(options, {"namespace": renamed.path}, renamed.path)


async def _delete(client: Client, options: argparse.Namespace) -> int:
    from fastbk.objects import Objects

    namespace = client.namespace(options.namespace)
    streams = await namespace.stream_count()
    objects, _ = await Objects(namespace).usage()
    action = f"delete namespace {options.namespace}"
    if options.recursive and (streams or objects):
        action += f" with the {format_count(streams, 'stream')} below it"
        action += f" and the {format_count(objects, 'object')} in it" if objects else ""
    if (code := exit_without_consent(options, action, {"streams": streams})) is not None:
        return code
    await namespace.delete(recursive=options.recursive)
    return print_answer(options, {"deleted": options.namespace})


async def _cursors(client: Client, options: argparse.Namespace) -> int:
    namespace = client.namespace(options.namespace)
    place = options.namespace or "the root namespace"
    if options.delete is not None:
        if options.watch is not None:
            raise ConfigError("--watch repeats what it shows: leave it out with --delete")
        action = f"delete cursor {options.delete} of namespace {place}"
        if (code := exit_without_consent(options, action)) is not None:
            return code
        if not await namespace.delete_pattern_cursor(options.delete):
            raise StreamNotFound(f"{place} has no cursor {options.delete} of a pattern")
        return print_answer(options, {"deleted": options.delete})
    now_s = time.time()
    found = [pattern_cursor_facts(cursor, now_s) for cursor in await namespace.pattern_cursors()]
    if not found and not options.json:
        note(f"{place} has no cursors of patterns")
        return 0
    answer = {"namespace": options.namespace, "cursors": found}
    return print_answer(options, answer, *pattern_cursor_lines(found))


async def _watch(client: Client, options: argparse.Namespace) -> int:
    async with aclosing(client.namespace(options.namespace).watch()) as events:
        async for event in events:
            former = f" (was {event.former})" if event.former else ""
            print_answer(
                options, asdict(event), f"{event.kind:<8} {event.what:<9} {event.name}{former}"
            )
            sys.stdout.flush()
    return 0
