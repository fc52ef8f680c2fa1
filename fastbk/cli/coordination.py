"""`fastbk coordination ...`: leases, counters and configurations of a namespace."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_common,
    add_confirmation,
    add_verbs,
    exit_without_consent,
    note,
    print_answer,
)
from fastbk.cli.stream_options import add_verb_of_one, run_endless
from fastbk.cli.terminal import add_watch
from fastbk.errors import ConfigError
from fastbk.printable_text import printable

if TYPE_CHECKING:
    from fastbk.coordination.store import NameInfo
    from fastbk.stream.client import Client

SHOWN_BYTES_MAX = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs, what = add_verbs(parser), "NAMESPACE"
    text = "print a namespace's leases, counters and configurations"
    add_watch(add_verb_of_one(verbs, "list", _list, text, what))
    show = add_verb_of_one(verbs, "show", _show, "print one of them", what)
    text = "take a lease away from its holder, who finds out at its next renewal"
    release = add_verb_of_one(verbs, "release", _release, text, what)
    text = "delete one of them; made anew, it goes on with a higher token or revision"
    delete = add_verb_of_one(verbs, "delete", _delete, text, what)
    for verb in (show, release, delete):
        verb.add_argument("name", metavar="NAME", help="as `fastbk coordination list` prints it")
    add_common(verbs)
    add_confirmation(release)
    add_confirmation(delete)


def run(options: argparse.Namespace) -> int:
    """Run one verb against the cluster."""
    options.namespace = options.namespace.strip("/")
    return run_endless(options)


def _facts(info: NameInfo) -> dict[str, object]:
    from fastbk.coordination.records import ConfigRecord, CounterRecord, LeaseRecord, kind_of

    facts: dict[str, object] = {"name": info.name, "fault": info.fault}
    record = info.record
    if record is None:
        return {**facts, "kind": ""}
    facts |= {"kind": kind_of(record), "number": record.number}
    if isinstance(record, LeaseRecord):
        facts |= {"holder": record.holder, "is_held": bool(record.key), "beat": record.beat}
        facts |= {"duration_ms": record.duration_ms}
    if isinstance(record, CounterRecord):
        facts["value"] = record.value
    if isinstance(record, ConfigRecord | LeaseRecord):
        facts["data"] = record.data.decode(errors="backslashreplace")
    return facts


def _line(facts: dict[str, object]) -> str:
    if facts["fault"]:
        text = f"cannot be read: {facts['fault']}"
    elif facts["kind"] == "lease":
        text = f"token {facts['number']}, {facts['holder'] if facts['is_held'] else 'free'}"
    elif facts["kind"] == "counter":
        text = f"{facts['value']}"
    else:
        text = f"revision {facts['number']}: {printable(str(facts['data']), SHOWN_BYTES_MAX)}"
    return f"{facts['kind'] or '?':<8} {facts['name']}  {text}"


async def _infos(client: Client, options: argparse.Namespace) -> list[dict[str, object]]:
    from fastbk.coordination.store import list_names

    return [_facts(info) for info in await list_names(client.namespace(options.namespace))]


async def _list(client: Client, options: argparse.Namespace) -> int:
    names = await _infos(client, options)
    if not names and not options.json:
        note(f"namespace {options.namespace} has no leases, counters or configurations")
        return 0
    return print_answer(
        options, {"namespace": options.namespace, "names": names}, *map(_line, names)
    )


async def _show(client: Client, options: argparse.Namespace) -> int:
    for facts in await _infos(client, options):
        if facts["name"] == options.name:
            shown = {key: printable(str(value), SHOWN_BYTES_MAX) for key, value in facts.items()}
            lines = [f"{key:<12} {text}" for key, text in shown.items() if text]
            return print_answer(options, facts, *lines)
    raise _missing(options)


async def _release(client: Client, options: argparse.Namespace) -> int:
    from fastbk.coordination.lease import release_lease

    action = f"take lease {options.namespace}/{options.name} away from its holder"
    if (code := exit_without_consent(options, action)) is not None:
        return code
    holder = await release_lease(client.namespace(options.namespace), options.name)
    text = f"released: {holder} had it" if holder else "nobody held it"
    return print_answer(options, {"name": options.name, "holder": holder}, text)


async def _delete(client: Client, options: argparse.Namespace) -> int:
    from fastbk.coordination.store import delete_name

    action = f"delete {options.namespace}/{options.name}"
    if (code := exit_without_consent(options, action)) is not None:
        return code
    if not await delete_name(client.namespace(options.namespace), options.name):
        raise _missing(options)
    return print_answer(options, {"deleted": options.name})


def _missing(options: argparse.Namespace) -> ConfigError:
    return ConfigError(
        f"namespace {options.namespace} has no {options.name}: `fastbk coordination list` prints what it has"
    )
