"""`fastbk object ...`: write-once objects with names in a namespace."""

from __future__ import annotations

import argparse
import sys
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_common,
    add_confirmation,
    add_verb,
    add_verbs,
    exit_without_consent,
    note,
    print_answer,
    run_client_verb,
)
from fastbk.cli.progress import ByteProgress
from fastbk.cli.terminal import write_payload
from fastbk.errors import ConfigError, ObjectDamaged, os_errors_as
from fastbk.exit_codes import DONE, FAILED
from fastbk.units import format_count, format_size, format_utc_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastbk.cli.options import ClientVerb, Verbs
    from fastbk.objects.objects import ObjectInfo, Objects
    from fastbk.stream.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = add_verbs(parser)
    put = _add_verb(verbs, "put", _put, "store a file as an object: all of it, or nothing")
    put.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="or -: stdin, the default"
    )
    put.add_argument("--replace", action="store_true", help="take the name of one that is there")
    put.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="metadata of the object"
    )
    get = _add_verb(verbs, "get", _get, "write an object's bytes, each checked, to a file")
    get.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="or -: stdout, the default"
    )
    get.add_argument("--start", type=int, default=0, metavar="BYTE", help="from this one on")
    get.add_argument("--end", type=int, default=None, metavar="BYTE", help="up to before this one")
    listing = add_verb(verbs, "list", _list, "print the objects of a namespace, by name", "ls")
    listing.add_argument("namespace", nargs="?", default="", metavar="NAMESPACE", help="the root")
    listing.add_argument("prefix", nargs="?", default="", help="only names that begin with it")
    _add_verb(verbs, "info", _info, "print what is known of an object; no bookie is asked")
    _add_verb(verbs, "verify", _verify, "read an object and compare all its checksums")
    add_confirmation(_add_verb(verbs, "delete", _delete, "delete an object", "rm"))
    add_common(verbs)


def _add_verb(
    verbs: Verbs, name: str, act: ClientVerb, text: str, *aliases: str
) -> argparse.ArgumentParser:
    """Declare a verb of one object."""
    parser = add_verb(verbs, name, act, text, *aliases)
    parser.add_argument("namespace", metavar="NAMESPACE", help='such as tenant/app; "": the root')
    parser.add_argument("name", metavar="NAME", help="the object's, such as checkpoints/17")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run one verb against the cluster."""
    return run_client_verb(options)


def _objects(client: Client, options: argparse.Namespace) -> Objects:
    from fastbk.objects import Objects

    return Objects(client.namespace(options.namespace.strip("/")))


def facts_of(info: ObjectInfo) -> dict[str, object]:
    """Return what --json prints of an object."""
    return {
        "name": info.name,
        "bytes": info.size_bytes,
        "sha256": info.sha256,
        "created": info.created.isoformat(),
        "ledger": info.ledger_id,
        "metadata": info.metadata,
    }


def _metadata(items: list[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in items]
    for item, (key, sign, _) in zip(items, pairs, strict=True):
        if not (key and sign):
            raise ConfigError(f"--set {item}: write KEY=VALUE")
    return {key: value for key, _, value in pairs}


async def _put(client: Client, options: argparse.Namespace) -> int:
    metadata, progress, taken = _metadata(options.set), ByteProgress(options.name), 0

    def on_bytes(more: int) -> None:
        nonlocal taken
        taken += more
        progress.moved(1, taken)

    with os_errors_as(ConfigError, options.file):
        file = sys.stdin.buffer if options.file == "-" else Path(options.file).open("rb")  # noqa: ASYNC230, SIM115
    try:
        info = await _objects(client, options).put(
            options.name,
            file,
            metadata=metadata,
            if_absent=not options.replace,
            on_bytes=on_bytes,
        )
    finally:
        progress.end()
        if options.file != "-":
            file.close()
    return print_answer(options, facts_of(info), *_lines(info))


async def _get(client: Client, options: argparse.Namespace) -> int:
    if options.json and options.file == "-":
        raise ConfigError("--json prints to stdout, where the object's bytes would go: name a FILE")
    progress, given = ByteProgress(options.name), 0
    try:
        async with _objects(client, options).open(options.name) as reader:
            with _output(options.file) as write:
                async with aclosing(reader.chunks(options.start, options.end)) as pieces:
                    async for piece in pieces:
                        write(piece)
                        given += len(piece)
                        progress.moved(1, given)
    finally:
        progress.end()
    if options.file == "-":
        return DONE
    return print_answer(options, {"name": options.name, "bytes": given, "file": options.file})


@contextmanager
def _output(name: str) -> Iterator[Callable[[memoryview], object]]:
    """Give what writes to a file, or to stdout for `-`. A file has its name only when all of it is there."""
    if name == "-":
        yield lambda piece: write_payload([piece])
        return
    partial = Path(f"{name}.part")
    with os_errors_as(ConfigError, name):
        output = partial.open("wb")
    try:
        with output:
            yield output.write
        with os_errors_as(ConfigError, name):
            partial.replace(name)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


async def _list(client: Client, options: argparse.Namespace) -> int:
    options.namespace = options.namespace.strip("/")
    infos: list[ObjectInfo] = []
    async with aclosing(_objects(client, options).list(options.prefix)) as listed:
        async for info in listed:
            infos.append(info)
    if not infos and not options.json:
        note("no objects here; `fastbk object put NAMESPACE NAME FILE` stores one")
    width = max((len(format_size(info.size_bytes)) for info in infos), default=0)
    lines = [
        f"{format_size(info.size_bytes):>{width}}  {format_utc_ms(int(info.created.timestamp() * 1000))}  {info.name}"
        for info in infos
    ]
    facts = {"namespace": options.namespace, "objects": [facts_of(info) for info in infos]}
    return print_answer(options, facts, *lines)


async def _info(client: Client, options: argparse.Namespace) -> int:
    info = await _objects(client, options).info(options.name)
    return print_answer(options, facts_of(info), *_lines(info))


def _lines(info: ObjectInfo) -> list[str]:
    return [
        f"name     {info.name}",
        f"bytes    {info.size_bytes:,}",
        f"sha256   {info.sha256}",
        f"created  {info.created.isoformat()}",
        f"ledger   {info.ledger_id}",
        *(f"{key}={value}" for key, value in sorted(info.metadata.items())),
    ]


async def _verify(client: Client, options: argparse.Namespace) -> int:
    try:
        damages = [*await _objects(client, options).verify(options.name)]
    except ObjectDamaged as damage:
        damages = [str(damage)]
    facts = {"name": options.name, "damages": damages}
    lines = damages or [f"{options.name}: all chunks and the SHA-256 are as they were written"]
    print_answer(options, facts, *lines)
    return FAILED if damages else DONE


async def _delete(client: Client, options: argparse.Namespace) -> int:
    objects = _objects(client, options)
    info = await objects.info(options.name)
    action = f"delete object {options.name} ({format_count(info.size_bytes, 'byte')})"
    if (code := exit_without_consent(options, action, facts_of(info))) is not None:
        return code
    await objects.delete(options.name)
    return print_answer(options, {"deleted": options.name})
