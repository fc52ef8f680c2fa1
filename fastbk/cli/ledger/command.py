"""`fastbk ledger ...`: ledgers of a cluster from the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import warnings
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from fastbk.cli import export
from fastbk.cli.ledger import audit
from fastbk.cli.ledger.output import facts, lines_of, plain, print_entry
from fastbk.cli.options import (
    DIGESTS,
    add_confirmation,
    add_json,
    add_metadata,
    digest_name,
    exit_without_consent,
    metadata_uri,
    note,
    print_json,
)
from fastbk.cli.passwords import add_password, password_of
from fastbk.cli.progress import ByteProgress
from fastbk.errors import ConfigError
from fastbk.units import format_count, format_entries, format_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fastbk.client import Client, LedgerWriter

    Verbs: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
    Verb: TypeAlias = Callable[[Client, argparse.Namespace], Awaitable[int]]

ENSEMBLE_DEFAULT = 3
CHUNK_ENTRIES = 256
CHUNK_BYTES = 256 * 1024
"""Entries handed to the client at once; it pipelines them by its own window."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    create = verbs.add_parser(
        "create",
        help="make an empty open ledger and print its id",
        description="Make an empty ledger, leave it open, and print its id. Only the writer that made a ledger can"
        " append to it, and that one ends with this command: the ledger is there to try out `show`, `metadata`,"
        " `tail`, `recover` (which closes it) and `delete`. To fill a ledger from the shell: `fastbk ledger write`.",
    )
    _add_shape(create)

    write = verbs.add_parser(
        "write", help="write a file or stdin into a new ledger, a line an entry, and close it"
    )
    write.add_argument("file", nargs="?", default="-", metavar="FILE", help="default: - (stdin)")
    write.add_argument(
        "--chunk-bytes", type=int, metavar="N", help="entries of N bytes instead of lines"
    )
    _add_shape(write)

    read = verbs.add_parser("read", help="print a ledger's entries")
    _add_id(read)
    read.add_argument("--first", type=int, default=0, metavar="ENTRY", help="from here (0)")
    read.add_argument("--last", type=int, metavar="ENTRY", help="up to here (the last)")
    read.add_argument(
        "--raw", action="store_true", help="exactly the entries' bytes, nothing between them"
    )
    read.add_argument(
        "--recover",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="fence and close an open ledger first; otherwise it is read as far as it is acknowledged",
    )

    tail = verbs.add_parser("tail", help="print entries as they come, until the ledger is closed")
    _add_id(tail)
    tail.add_argument("--first", type=int, default=0, metavar="ENTRY", help="from here (0)")
    tail.add_argument("--raw", action="store_true", help="exactly the entries' bytes")

    for reading in (read, tail, export.add_ledger_verb(verbs)):
        _add_secret(reading)
    for one in (create, write, read, tail, *_add_verbs_about(verbs)):
        add_metadata(one)
        add_json(one)


def _add_verbs_about(verbs: Verbs) -> tuple[argparse.ArgumentParser, ...]:
    """Declare the verbs that neither write nor print entries."""
    listing = verbs.add_parser("list", help="print the ledgers' ids")
    show = verbs.add_parser("show", aliases=["info"], help="print a ledger's metadata")
    _add_id(show)
    recover = verbs.add_parser(
        "recover",
        aliases=["close"],
        help="fence and close ledgers whose writer is gone, behind everything acknowledged",
    )
    recover.add_argument("ledger_id", type=int, nargs="+", metavar="ID")
    _add_secret(recover)
    auditing = verbs.add_parser(
        "audit", help="read every copy of every entry from every bookie, and compare them"
    )
    audit.add_arguments(auditing)
    custom = verbs.add_parser("metadata", help="print or change a ledger's custom metadata")
    _add_id(custom)
    custom.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="may be given several times"
    )
    custom.add_argument(
        "--remove", action="append", default=[], metavar="KEY", help="may be given several times"
    )
    delete = verbs.add_parser("delete", help="delete ledgers for good")
    delete.add_argument("ledger_id", type=int, nargs="+", metavar="ID")
    add_confirmation(delete)

    return listing, show, recover, auditing, custom, delete


def run(options: argparse.Namespace) -> int:
    """Run one verb against the cluster."""
    if options.verb == "export":
        return export.run_ledger(options)
    verb = _VERBS[options.verb]
    uri = metadata_uri(options)
    return asyncio.run(_connected(uri, verb, options))


async def _connected(uri: str, verb: Verb, options: argparse.Namespace) -> int:
    import fastbk

    async with fastbk.connect(uri) as client:
        return await verb(client, options)


async def _create(client: Client, options: argparse.Namespace) -> int:
    """Leave the ledger open: its writer is not closed, it ends with the client."""
    ledger_id = (await _new(client, options)).ledger_id
    if options.json:
        print_json({"ledger_id": ledger_id, "state": "OPEN"})
    else:
        print(ledger_id)
        note(
            f"ledger {ledger_id} is open and empty, and has no writer any more; `fastbk ledger recover"
            f" {ledger_id}` closes it"
        )
    return 0


async def _write(client: Client, options: argparse.Namespace) -> int:
    if options.chunk_bytes is not None and options.chunk_bytes < 1:
        raise ConfigError("--chunk-bytes must be 1 or more")
    with _opened(options.file) as source:
        writer = await _new(client, options)
        progress = ByteProgress(f"ledger {writer.ledger_id}")
        entries = size_bytes = 0
        try:
            async with writer:
                pieces = _pieces(source, options.chunk_bytes)
                while chunk := await asyncio.to_thread(_chunk, pieces):
                    await writer.append_many(chunk)
                    entries += len(chunk)
                    size_bytes += sum(map(len, chunk))
                    progress.moved(entries, size_bytes)
        finally:
            progress.end()
    if options.json:
        print_json({"ledger_id": writer.ledger_id, "entries": entries, "bytes": size_bytes})
    else:
        print(writer.ledger_id)
        note(f"ledger {writer.ledger_id}: {format_entries(entries)}, {format_size(size_bytes)}")
    return 0


async def _read(client: Client, options: argparse.Namespace) -> int:
    if options.first < 0 or (options.last is not None and options.last < options.first):
        raise ConfigError("--first must be 0 or above, --last not below it")
    reader = await client.open_ledger(
        options.ledger_id,
        recovery=options.recover,
        digest=options.digest,
        password=password_of(options),
    )
    async with reader:
        last = await reader.last_add_confirmed()
        if options.last is not None:
            last = min(last, options.last)
        if options.first <= last:
            async for batch in reader.read_batches(options.first, last):
                if options.raw:
                    sys.stdout.buffer.writelines(batch.datas)
                    continue
                for entry in batch:
                    print_entry(entry.entry_id, entry.data, options)
    return 0


async def _tail(client: Client, options: argparse.Namespace) -> int:
    reader = await client.open_ledger(
        options.ledger_id, recovery=False, digest=options.digest, password=password_of(options)
    )
    async with reader:
        async for entry in reader.tail(options.first):
            print_entry(entry.entry_id, entry.data, options)
            sys.stdout.flush()
    return 0


async def _list(client: Client, options: argparse.Namespace) -> int:
    ids = [info.ledger_id async for info in client.list_ledgers()]
    if options.json:
        print_json({"ledgers": ids})
    else:
        sys.stdout.writelines(f"{ledger_id}\n" for ledger_id in ids)
    return 0


async def _show(client: Client, options: argparse.Namespace) -> int:
    info = await client.ledger_info(options.ledger_id)
    found = facts(info)
    if options.json:
        print_json(found)
    else:
        width = max(map(len, found))
        for name, value in found.items():
            for number, line in enumerate(lines_of(value)):
                print(f"{'' if number else name:<{width}}  {line}")
    return 0


async def _recover(client: Client, options: argparse.Namespace) -> int:
    done = []
    for ledger_id in options.ledger_id:
        reader = await client.open_ledger(
            ledger_id, digest=options.digest, password=password_of(options)
        )
        metadata = reader.metadata
        await reader.close()
        done.append(
            {
                "ledger_id": ledger_id,
                "entries": metadata.last_entry_id + 1,
                "bytes": metadata.length,
            }
        )
        if not options.json:
            entries = format_entries(metadata.last_entry_id + 1)
            size = format_size(metadata.length)
            print(f"ledger {ledger_id} is closed: {entries}, {size}", flush=True)
    if options.json:
        print_json({"recovered": done})
    return 0


async def _metadata(client: Client, options: argparse.Namespace) -> int:
    changes: dict[str, bytes | None] = {}
    for pair in options.set:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {pair}: must be KEY=VALUE")
        changes[key] = value.encode()
    for key in options.remove:
        if changes.get(key) is not None:
            raise ConfigError(f"--set and --remove both name {key}")
        changes[key] = None
    if changes:
        info = await client.edit_metadata(options.ledger_id, changes)
    else:
        info = await client.ledger_info(options.ledger_id)
    custom = {key: plain(value) for key, value in sorted(info.metadata.custom.items())}
    if options.json:
        print_json({"ledger_id": info.ledger_id, "metadata": custom})
    else:
        sys.stdout.writelines(f"{key}={value}\n" for key, value in custom.items())
    return 0


async def _delete(client: Client, options: argparse.Namespace) -> int:
    # All are read first: an id that is wrong deletes nothing.
    infos = [await client.ledger_info(ledger_id) for ledger_id in options.ledger_id]
    size_bytes = sum(info.metadata.length for info in infos if info.metadata.length > 0)
    named = ", ".join(str(info.ledger_id) for info in infos)
    action = (
        f"delete {format_count(len(infos), 'ledger')} ({named}), {format_size(size_bytes)} in all"
    )
    facts_of = {"ledgers": options.ledger_id, "bytes": size_bytes}
    if (code := exit_without_consent(options, action, facts_of)) is not None:
        return code
    for ledger_id in options.ledger_id:
        await client.delete_ledger(ledger_id)
    if options.json:
        print_json({"deleted": options.ledger_id})
    return 0


_VERBS: dict[str, Verb] = {
    "create": _create,
    "write": _write,
    "read": _read,
    "tail": _tail,
    "list": _list,
    "show": _show,
    "info": _show,
    "recover": _recover,
    "close": _recover,
    "audit": audit.run,
    "metadata": _metadata,
    "delete": _delete,
}


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ledger_id", type=int, metavar="ID")


def _add_secret(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--digest", type=digest_name, choices=DIGESTS,
        help="of new entries (crc32c); for reading: as the ledger says",
    )  # fmt: skip
    add_password(parser)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ensemble", "-E", type=int, metavar="N",
        help="bookies it is spread over (3, or as many as there are)",
    )  # fmt: skip
    parser.add_argument(
        "--write-quorum", "-w", type=int, metavar="N", help="copies of each entry (the ensemble)"
    )
    parser.add_argument(
        "--ack-quorum", "-a", type=int, metavar="N", help="copies to wait for (a majority)"
    )
    parser.add_argument(
        "--allow-missing-bookies",
        action="store_true",
        help="begin while bookies are away or read-only, if the ack quorum answers; copies are owed",
    )
    _add_secret(parser)


async def _new(client: Client, options: argparse.Namespace) -> LedgerWriter:
    """Create a ledger of the wanted shape; in a cluster of fewer than three bookies, of what is there."""
    ensemble = options.ensemble
    if ensemble is None:
        writable = sum(bookie.writable for bookie in await client.list_bookies())
        ensemble = max(options.write_quorum or 1, min(ENSEMBLE_DEFAULT, writable))
        if ensemble < ENSEMBLE_DEFAULT:
            copies = format_count(options.write_quorum or ensemble, "copy", "copies")
            note(f"{format_count(writable, 'bookie')} can be written to: {copies} of each entry")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        writer = await client.create_ledger(
            ensemble=ensemble,
            write_quorum=options.write_quorum or ensemble,
            ack_quorum=options.ack_quorum,
            digest=options.digest or "crc32c",
            password=password_of(options),
            allow_missing_bookies=options.allow_missing_bookies,
        )
    for one in told:
        note(str(one.message))
    return writer


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return open(name, "rb")
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from error


def _pieces(source: BinaryIO, chunk_bytes: int | None) -> Iterator[bytes]:
    """Yield the entries; a line keeps its end, so that the entries one behind the other are the file."""
    if chunk_bytes is None:
        yield from source
    else:
        while piece := source.read(chunk_bytes):
            yield piece


def _chunk(pieces: Iterator[bytes]) -> list[bytes]:
    """Return some entries, none at the end. Runs in a thread: reading a pipe or a disk may wait."""
    chunk: list[bytes] = []
    size_bytes = 0
    for piece in pieces:
        chunk.append(piece)
        size_bytes += len(piece)
        if len(chunk) >= CHUNK_ENTRIES or size_bytes >= CHUNK_BYTES:
            break
    return chunk
