"""`fastbk ledger ...`: ledgers of a cluster from the command line, and how they are printed: for
people, as bytes, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli import data_files
from fastbk.cli.data_files import add_password, opened_input, password_of, read_chunks, read_lines
from fastbk.cli.options import (
    DIGESTS,
    add_common,
    add_confirmation,
    add_verb,
    add_verbs,
    digest_name,
    exit_without_consent,
    metadata_uri,
    note,
    opened_store,
    print_answer,
    print_json,
    run_client_verb,
    run_verb,
    table,
    text_or_base64,
)
from fastbk.cli.progress import ByteProgress, ProgressLine, rate_of
from fastbk.cli.terminal import add_watch, write_payload
from fastbk.errors import (
    BufferFull,
    ConfigError,
    DigestMismatch,
    Error,
    NotEnoughBookies,
    RecordTooLarge,
)
from fastbk.model.ledger import NAMESPACE_KEY
from fastbk.units import format_count, format_entries, format_size, format_utc_ms

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from fastbk.admin.copy_audit import Audited
    from fastbk.cli.options import ClientVerb, Verbs
    from fastbk.client import Client, LedgerInfo, LedgerReader, LedgerWriter
    from fastbk.placement.rules import ClusterRules
    from fastbk.replication.accepted_loss import AcceptedLoss
    from fastbk.stream.client import Client as StreamClient
    from fastbk.stream.namespace.namespace import Namespace

ENSEMBLE_DEFAULT = 3
IDLE_S_MAX = 3600.0
ASKED_AT_ONCE = 32
GONE = (-1, -1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = add_verbs(parser)
    create = add_verb(verbs, "create", _create, "make an empty open ledger and print its id")
    create.description = (
        "Make an empty ledger, leave it open, and print its id. Only the writer that made a ledger can"
        " append to it, and that one ends with this command: the ledger is there to try out `show`, `metadata`,"
        " `tail`, `recover` (which closes it) and `delete`. To fill a ledger from the shell: `fastbk ledger write`."
    )
    _add_shape(create)

    text = "write a file or stdin into a new ledger, a line an entry, and close it"
    write = add_verb(verbs, "write", _write, text)
    write.add_argument("file", nargs="?", default="-", metavar="FILE", help="default: - (stdin)")
    write.add_argument(
        "--chunk-bytes", type=int, metavar="N", help="entries of N bytes instead of lines"
    )
    _add_shape(write)

    read = _add_verb_of_one(verbs, "read", _read, "print a ledger's entries")
    read.add_argument("--first", type=int, default=0, metavar="ENTRY", help="from here (0)")
    read.add_argument("--last", type=int, metavar="ENTRY", help="up to here (the last)")
    read.add_argument(
        "--raw",
        action="store_true",
        help="exactly the entries' bytes, nothing between them; a terminal gets control characters escaped",
    )
    read.add_argument(
        "--recover",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="fence and close an open ledger first; otherwise it is read as far as it is acknowledged",
    )

    text = "print entries as they come, until the ledger is closed"
    tail = _add_verb_of_one(verbs, "tail", _tail, text)
    tail.add_argument("--first", type=int, default=0, metavar="ENTRY", help="from here (0)")
    tail.add_argument("--raw", action="store_true", help="as `read` has it")
    for reading in (read, tail, data_files.add_ledger_verb(verbs)):
        _add_secret(reading)
    _add_verbs_about(verbs)
    add_common(verbs)


def _add_verbs_about(verbs: Verbs) -> None:
    """Declare the verbs that neither write nor print entries."""
    text = "print the ledgers' ids; or those that are open, or whose writers seem to be gone"
    listing = add_verb(verbs, "list", _list, text)
    listing.add_argument(
        "--open", action="store_true", help="only ledgers that are not closed, with their state"
    )
    listing.add_argument(
        "--abandoned",
        action="store_true",
        help="only ledgers that are not closed and that nobody appends to: a recovery was begun and not ended, or"
        " nothing was acknowledged during --idle-for",
    )
    listing.add_argument(
        "--idle-for",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long open ledgers are watched (10)",
    )
    listing.add_argument(
        "--namespace", metavar="NAME", help="only ledgers of this namespace; reads all metadata"
    )
    add_watch(listing)
    add_watch(_add_verb_of_one(verbs, "show", _show, "print a ledger's metadata", "info"))
    text = "fence and close ledgers whose writer is gone, behind everything acknowledged"
    recover = add_verb(verbs, "recover", _recover, text, "close")
    recover.add_argument("ledger_id", type=int, nargs="+", metavar="ID")
    recover.add_argument(
        "--accept-loss",
        action="store_true",
        help="where lost bookies keep it from being closed: close behind the last entry that is found, and name what"
        " may have been acknowledged and is given up",
    )
    add_confirmation(recover)
    _add_secret(recover)
    text = "read every copy of every entry from every bookie, and compare them"
    add_audit_arguments(add_verb(verbs, "audit", audit, text))
    text = "print or change a ledger's custom metadata"
    custom = _add_verb_of_one(verbs, "metadata", _metadata, text)
    for option, value in (("--set", "KEY=VALUE"), ("--remove", "KEY")):
        custom.add_argument(
            option, action="append", default=[], metavar=value, help="may be given several times"
        )
    delete = add_verb(verbs, "delete", _delete, "delete ledgers for good")
    delete.add_argument("ledger_id", type=int, nargs="+", metavar="ID")
    add_confirmation(delete)


def run(options: argparse.Namespace) -> int:
    """Run one verb against the cluster."""
    if options.verb == "list" and not (options.open or options.abandoned or options.namespace):
        return _list_ids(options)
    return run_verb(options) if options.verb == "export" else run_client_verb(options)


async def _create(client: StreamClient, options: argparse.Namespace) -> int:
    """Leave the ledger open: its writer is not closed, it ends with the client."""
    ledger_id = (await _new(client, options)).ledger_id
    if not options.json:
        note(
            f"ledger {ledger_id} is open and empty, and has no writer any more; `fastbk ledger recover"
            f" {ledger_id}` closes it"
        )
    return print_answer(options, {"ledger_id": ledger_id, "state": "OPEN"}, str(ledger_id))


async def _write(client: StreamClient, options: argparse.Namespace) -> int:
    if options.chunk_bytes is not None and options.chunk_bytes < 1:
        raise ConfigError("--chunk-bytes must be 1 or more")
    entries = size_bytes = 0
    with opened_input(options.file) as descriptor:
        writer = await _new(client, options)
        progress = ByteProgress(f"ledger {writer.ledger_id}")
        size = options.chunk_bytes
        # A line keeps its end, so that the entries one behind the other are the file.
        source = (
            read_lines(descriptor, keep_ends=True)
            if size is None
            else read_chunks(descriptor, size)
        )
        try:
            async with writer, contextlib.aclosing(source) as pieces:
                async for some in pieces:
                    for entry in some:
                        await _send(writer, entry, entries)
                        entries += 1
                        size_bytes += len(entry)
                    progress.moved(entries, size_bytes)
        finally:
            progress.end()
    if not options.json:
        note(f"ledger {writer.ledger_id}: {format_entries(entries)}, {format_size(size_bytes)}")
    found = {"ledger_id": writer.ledger_id, "entries": entries, "bytes": size_bytes}
    return print_answer(options, found, str(writer.ledger_id))


async def _send(writer: LedgerWriter, entry: bytes, entries: int) -> None:
    """Append behind all before, without waiting for any; `entries` were before it."""
    try:
        try:
            writer.append_nowait(entry)
        except BufferFull:
            await writer.ready()
            try:
                writer.append_nowait(entry)
            except BufferFull:
                await writer.append(entry)  # so large that it has to go alone
    except RecordTooLarge as error:
        await writer.flush()
        raise RecordTooLarge(
            f"line or chunk {entries + 1}: {error}; those before it are in the ledger"
        ) from error


async def _read(client: Client, options: argparse.Namespace) -> int:
    if options.first < 0 or (options.last is not None and options.last < options.first):
        raise ConfigError("--first must be 0 or above, --last not below it")
    _check_form(options)
    async with await _opened(client, options, options.ledger_id, options.recover) as reader:
        try:
            last = await reader.last_add_confirmed()
        except (NotEnoughBookies, DigestMismatch) as error:
            # What is there can be read: some bookie's word on how far it was acknowledged is enough.
            last = await reader.try_last_add_confirmed()
            note(
                f"{error}\nread up to entry {last}, by what the bookies say that answer; later entries may have been"
                f" acknowledged: `fastbk ledger close {options.ledger_id} --accept-loss --dry-run` looks for them"
            )
        if max(options.first, options.last or 0) > last:
            note(
                f"ledger {options.ledger_id} ends with entry {last} now"
                if last >= 0
                else f"ledger {options.ledger_id} has no entries now"
            )
        if options.last is not None:
            last = min(last, options.last)
        if options.first <= last:
            async for batch in reader.read_batches(options.first, last):
                if options.raw:
                    write_payload(batch.datas)
                    continue
                for entry in batch:
                    print_entry(entry.entry_id, entry.data, options)
    return 0


def _check_form(options: argparse.Namespace) -> None:
    if options.raw and options.json:
        raise ConfigError("--raw prints entries as they are, --json as JSON: give one of them")


async def _tail(client: Client, options: argparse.Namespace) -> int:
    _check_form(options)
    async with await _opened(client, options, options.ledger_id, recovery=False) as reader:
        async for entry in reader.tail(options.first):
            print_entry(entry.entry_id, entry.data, options)
            sys.stdout.flush()
    return 0


async def _opened(
    client: Client, options: argparse.Namespace, ledger_id: int, recovery: bool
) -> LedgerReader:
    return await client.open_ledger(
        ledger_id, recovery=recovery, digest=options.digest, password=password_of(options)
    )


def _list_ids(options: argparse.Namespace) -> int:
    """List ids, which needs neither a ledger's metadata nor a client: to import one takes longer than to list."""
    from fastbk.meta.api import LedgerIdPages
    from fastbk.meta.uri import is_gateway

    uri = metadata_uri(options)
    if is_gateway(uri):  # it wants the client's credentials
        return run_client_verb(options)
    with opened_store(uri) as store:
        return _print_ids(options, LedgerIdPages().all_of(store))


async def _list(client: Client, options: argparse.Namespace) -> int:
    if options.open or options.abandoned:
        return await _list_open(client, options)
    if options.namespace:
        found = [one.ledger_id async for one in client.list_ledgers() if _is_wanted(one, options)]
        return _print_ids(options, [found])
    return _print_ids(options, [page async for page in client.list_ledger_ids()])


def _is_wanted(ledger: LedgerInfo, options: argparse.Namespace) -> bool:
    return options.namespace in (None, "", ledger.metadata.namespace)


def _print_ids(options: argparse.Namespace, pages: Iterable[list[int]]) -> int:
    """Print pages of ids, each while the next one is not read yet."""
    found: list[int] = []
    for page in pages:
        if options.json:
            found += page
        elif page:
            print("\n".join(map(str, page)))
    return print_answer(options, {"ledgers": found}) if options.json else 0


async def _list_open(client: Client, options: argparse.Namespace) -> int:
    """List what is not closed. Nobody can know that an idle writer is gone: a recovery that was begun shows it."""
    from fastbk.model.ledger import LedgerState

    if not 0 < options.idle_for <= IDLE_S_MAX:
        raise ConfigError(f"--idle-for must be above 0 and at most {IDLE_S_MAX:g} seconds")
    found = [
        ledger
        async for ledger in client.list_ledgers()
        if not ledger.metadata.is_closed and _is_wanted(ledger, options)
    ]
    reasons = {one.ledger_id: one.metadata.state.name for one in found}
    if options.abandoned:
        is_open = [one for one in found if one.metadata.state is LedgerState.OPEN]
        before = await _confirmed(client, is_open)
        if is_open:
            await asyncio.sleep(options.idle_for)
        after = await _confirmed(client, is_open)
        text = f"open, and nothing was acknowledged for {options.idle_for:g} s"
        for one in is_open:
            known = after.get(one.ledger_id)
            if known is None:
                reasons[one.ledger_id] = "open, and no bookie told its last add confirmed"
            elif known == before.get(one.ledger_id) != GONE:
                reasons[one.ledger_id] = text
            else:
                del reasons[one.ledger_id]
    rows = [{"ledger_id": ledger_id, "why": why} for ledger_id, why in sorted(reasons.items())]
    return print_answer(
        options, {"ledgers": rows}, *(f"{row['ledger_id']}  {row['why']}" for row in rows)
    )


async def _confirmed(client: Client, infos: list[LedgerInfo]) -> dict[int, tuple[int, int]]:
    """Return (version, last add confirmed) of ledgers now, as far as bookies tell; GONE: closed or deleted."""
    from fastbk.errors import NoSuchLedger
    from fastbk.replication.lac_procedures import TryReadLastConfirmed
    from fastbk.replication.replicas import Pacing

    places = asyncio.Semaphore(ASKED_AT_ONCE)
    found: dict[int, tuple[int, int]] = {}

    async def ask(ledger_id: int) -> None:
        async with places:
            try:
                info = await client.ledger_info(ledger_id)
                if info.metadata.is_closed:
                    found[ledger_id] = GONE
                    return
                procedure = TryReadLastConfirmed(
                    ledger_id, info.metadata, Pacing(request_timeout_s=3.0)
                )
                found[ledger_id] = (
                    info.version,
                    await client.run_procedure(ledger_id, info.metadata, procedure),
                )
            except NoSuchLedger:
                found[ledger_id] = GONE
            except (NotEnoughBookies, DigestMismatch):
                return

    await asyncio.gather(*(ask(one.ledger_id) for one in infos))
    return found


async def _show(client: Client, options: argparse.Namespace) -> int:
    from fastbk.admin.placement_check import rule_origin
    from fastbk.autorecovery.state import ClusterState
    from fastbk.placement.rules import rule_of, rule_text

    info = await client.ledger_info(options.ledger_id)
    mark = await client.marks.read(info.ledger_id)
    audit = await ClusterState(client.records).audit.read()
    # Apache's clients may leave out when they made it: then it was before, as far as anybody knows.
    known_ms = audit.known_whole_ms(info.ledger_id, info.metadata.created_ms or 0)
    rules = await _cluster_rules(client)
    rule = rule_of(info.metadata.custom, rules.rule)
    found = facts(info) | {
        "namespace": info.metadata.namespace,
        "placement": f"{rule_text(rule)}; it is {rule_origin(info.metadata.custom)}",
        "mark_fault": mark.fault,
        "missing_copies_on": sorted({str(one.bookie_id) for one in mark.missing}),
        # Of a ledger that is not closed nobody has checked what its last bookies hold.
        "known_whole_ms": (known_ms or None) if info.metadata.is_closed else None,
    }
    return print_answer(options, found, *lines_of(found))


async def _cluster_rules(client: Client) -> ClusterRules:
    from fastbk.errors import Unauthorized
    from fastbk.meta.placement_record import read_rules
    from fastbk.placement.rules import ClusterRules

    try:
        return await client.call_store(read_rules)
    except Unauthorized:  # a gateway of a version before 0.4
        return ClusterRules()


async def _recover(client: Client, options: argparse.Namespace) -> int:
    if (options.dry_run or options.yes) and not options.accept_loss:
        raise ConfigError("--dry-run and --yes go with --accept-loss")
    done: list[dict[str, object]] = []
    for ledger_id in options.ledger_id:
        found: dict[str, object] = {"ledger_id": ledger_id}
        try:
            if options.dry_run:
                raise NotEnoughBookies("a dry run recovers nothing")
            async with await _opened(client, options, ledger_id, recovery=True) as reader:
                metadata = reader.metadata
        except (NotEnoughBookies, DigestMismatch) as error:
            if not options.accept_loss:
                note(
                    f"if those bookies do not come back: `fastbk ledger close {ledger_id} --accept-loss --dry-run`"
                    " says what can be kept"
                )
                raise
            loss = await _close_accepting_loss(client, options, ledger_id, error)
            if isinstance(loss, int):
                return loss
            found |= {"given_up": loss.given_up, "unanswered": loss.unanswered}
            metadata = (await client.ledger_info(ledger_id)).metadata
        found |= {"entries": metadata.last_entry_id + 1, "bytes": metadata.length}
        done.append(found)
        if not options.json:
            text = f"{format_entries(metadata.last_entry_id + 1)}, {format_size(metadata.length)}"
            print(f"ledger {ledger_id} is closed: {text}", flush=True)
    if options.json:
        print_json({"recovered": done})
    return 0


async def _close_accepting_loss(
    client: Client, options: argparse.Namespace, ledger_id: int, why: Error
) -> AcceptedLoss | int:
    """Say what would be given up, and after a yes give it up; else return the exit code."""
    password = password_of(options)
    loss = await client.close_accepting_loss(ledger_id, password=password, dry_run=True)
    given_up = [_range_text(first, last) for first, last in loss.given_up]
    if not options.dry_run:
        note(str(why))
    for bookie_id, reason in sorted(loss.unanswered.items()):
        note(f"bookie {bookie_id} cannot answer: {reason}")
    if loss.may_still_acknowledge:
        note(
            "those bookies cannot be fenced, and are enough to acknowledge an append: make sure that the ledger's"
            " writer and these bookies are stopped, else what it appends now is lost"
        )
    said = (
        f"giving up {', '.join(given_up)}, as far as it was acknowledged"
        if given_up
        else "nothing is given up"
    )
    action = f"close ledger {ledger_id} behind entry {loss.last_entry_id}, {said}"
    facts_of = {
        "ledger_id": ledger_id,
        "last_entry_id": loss.last_entry_id,
        "given_up": loss.given_up,
        "unanswered": loss.unanswered,
        "may_still_acknowledge": loss.may_still_acknowledge,
    }
    code = exit_without_consent(options, action, facts_of)
    if code is not None:
        return code
    return await client.close_accepting_loss(ledger_id, password=password)


def _range_text(first: int, last: int | None) -> str:
    if last is None:
        return f"every entry from {first} on"
    return f"entry {first}" if first == last else f"entries {first} to {last}"


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
    lines = (f"{key}={value}" for key, value in custom.items())
    return print_answer(options, {"ledger_id": info.ledger_id, "metadata": custom}, *lines)


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
    return print_answer(options, {"deleted": options.ledger_id})


def _add_verb_of_one(
    verbs: Verbs, name: str, act: ClientVerb, text: str, *aliases: str
) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, act, text, *aliases)
    parser.add_argument("ledger_id", type=int, metavar="ID")
    return parser


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
    parser.add_argument(
        "--namespace",
        default="",
        metavar="NAME",
        help="that it belongs to: its policy says where the copies lie, and which quorums and digest are taken that are"
        " not given; for tokens that are limited to some, too",
    )
    _add_secret(parser)


def _namespace(client: StreamClient, path: str) -> Namespace | None:
    """Return the namespace of a path; None: a ledger may name any, as a token's patterns do, but none is there."""
    try:
        return client.namespace(path)
    except ConfigError:
        return None


async def _new(client: StreamClient, options: argparse.Namespace) -> LedgerWriter:
    """Create a ledger of the wanted shape; in a cluster of fewer than three bookies, of what is there."""
    ensemble, namespace = options.ensemble, None
    if options.namespace and (here := _namespace(client, options.namespace)) is not None:
        namespace = here if await here.exists() else None
        if namespace is None:
            note(
                f"there is no namespace {options.namespace}: the ledger has the name, and no rule of it"
            )
    if ensemble is None and namespace is None:
        writable = sum(bookie.writable for bookie in await client.list_bookies())
        ensemble = max(options.write_quorum or 1, min(ENSEMBLE_DEFAULT, writable))
        if ensemble < ENSEMBLE_DEFAULT:
            copies = format_count(options.write_quorum or ensemble, "copy", "copies")
            note(f"{format_count(writable, 'bookie')} can be written to: {copies} of each entry")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if namespace is not None:
            writer = await namespace.create_ledger(
                ensemble,
                options.write_quorum,
                options.ack_quorum,
                options.digest,
                password_of(options),
                allow_missing_bookies=options.allow_missing_bookies or None,
            )
        else:
            writer = await client.create_ledger(
                ensemble=ensemble,
                write_quorum=options.write_quorum or ensemble,
                ack_quorum=options.ack_quorum,
                digest=options.digest or "crc32c",
                password=password_of(options),
                metadata={NAMESPACE_KEY: options.namespace.encode()} if options.namespace else None,
                allow_missing_bookies=options.allow_missing_bookies,
            )
    for one in told:
        note(str(one.message))
    return writer


def print_entry(entry_id: int, data: memoryview, options: argparse.Namespace) -> None:
    """Print one entry as the options want it."""
    if options.raw:
        write_payload([data])
    elif options.json:
        sys.stdout.flush()
        print_json({"entry_id": entry_id, **text_or_base64("data", bytes(data))})
    else:
        text = bytes(data).decode("utf-8", "backslashreplace")
        write_payload([f"{entry_id}\t{text.rstrip(chr(10))}\n".encode()])


def facts(info: LedgerInfo) -> dict[str, object]:
    """Return what `show` prints of a ledger."""
    from fastbk.model.ledger import LedgerState

    metadata = info.metadata
    digest = metadata.digest_type
    found: dict[str, object] = {
        "ledger_id": info.ledger_id,
        "state": metadata.state.name,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": digest.name.lower() if digest is not None else None,
        "fragments": [
            {"first_entry_id": fragment.first_entry_id, "bookies": list(fragment.ensemble)}
            for fragment in metadata.fragments
        ],
        "metadata": {key: plain(value) for key, value in metadata.custom.items()},
        "created_ms": metadata.created_ms,
        "version": info.version,
    }
    if metadata.state is LedgerState.CLOSED:
        found["entries"] = metadata.last_entry_id + 1
        found["last_entry_id"] = metadata.last_entry_id
        found["bytes"] = metadata.length
    return found


def lines_of(found: dict[str, object]) -> list[str]:
    """Return facts for people: a fragment or a pair a line."""
    rows = []
    for name, value in found.items():
        lines = [str(value)]
        if name == "missing_copies_on":
            lines = [
                ", ".join(value)
                if isinstance(value, list) and value
                else "none, as far as marks say"
            ]
        elif name == "known_whole_ms":
            lines = ["never checked, or not found whole" if value is None else _time_of(value)]
        elif isinstance(value, list):
            lines = [f"from {one['first_entry_id']}: {', '.join(one['bookies'])}" for one in value]
        elif isinstance(value, dict):
            lines = [f"{key} = {text}" for key, text in value.items()] or ["-"]
        rows += [("" if at else name, line) for at, line in enumerate(lines)]
    return table(rows, "<<")


def _time_of(value_ms: object) -> str:
    assert isinstance(value_ms, int)
    return f"all copies were there at {format_utc_ms(value_ms)}"


def plain(value: bytes) -> str:
    """Return bytes as text, those that are none escaped."""
    return value.decode("utf-8", "backslashreplace")


# `fastbk ledger audit`: every copy of every entry, read and compared.

UNITS_AT_ONCE_MAX = 64
LISTED_MAX = 20


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("ledger_id", type=int, nargs="*", metavar="ID", help="default: all ledgers")
    parser.add_argument(
        "--rate",
        metavar="SIZE",
        default="0",
        help='bytes a second that are read from each bookie at most, as in "50MiB" (no limit)',
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=4,
        metavar="N",
        help=f"1..{UNITS_AT_ONCE_MAX} (4) parts of up to 64 MiB that are read at once",
    )


async def audit(client: Client, options: argparse.Namespace) -> int:
    """Audit; 0 only if every copy that was looked for is there, good, and like the others."""
    from fastbk.admin.copy_audit import audit_all
    from fastbk.replication.repair_options import RepairOptions

    if not 1 <= options.at_once <= UNITS_AT_ONCE_MAX:
        raise ConfigError(f"--at-once {options.at_once}: must be 1..{UNITS_AT_ONCE_MAX}")
    began_s = time.monotonic()
    line = ProgressLine()
    try:
        audited = await audit_all(
            client,
            options.ledger_id or None,
            RepairOptions().limited(rate_of(options.rate) / options.at_once),
            units_at_once=options.at_once,
            on_progress=lambda so_far: line.at(lambda: progress_of(so_far)),
        )
    finally:
        line.end()
    print_audited(audited, time.monotonic() - began_s, as_json=options.json)
    return 0 if audited.is_whole else 1


def progress_of(audited: Audited) -> str:
    """Return a line that says how far it is."""
    size_bytes = sum(bookie.size_bytes for bookie in audited.bookies.values())
    return (
        f"auditing: {format_count(audited.ledgers, 'ledger')}, {audited.entries:,} entries,"
        f" {format_size(size_bytes)} read, {format_count(audited.finding_count, 'finding')}"
    )


def print_audited(audited: Audited, took_s: float, *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        print_json({**asdict(audited), "is_whole": audited.is_whole})
        return
    for finding in audited.findings[:LISTED_MAX]:
        print(finding)
    if audited.finding_count > LISTED_MAX:
        print(f"... and {audited.finding_count - LISTED_MAX:,} more (--json lists 1,000)")
    if audited.bookies:
        width = max(len("BOOKIE"), *map(len, audited.bookies))
        print(
            f"{'BOOKIE':<{width}}  {'COPIES':>12}  {'GOOD':>12}  {'BAD':>8}  {'UNASKED':>8}  SIZE"
        )
        for bookie_id, one in sorted(audited.bookies.items()):
            size = format_size(one.size_bytes)
            print(
                f"{bookie_id:<{width}}  {one.due:>12,}  {one.good:>12,}  {one.bad:>8,}  {one.unasked:>8,}  {size}"
            )
    of_these = [
        f"{count:,} {what}"
        for what, count in (
            ("still open: what is being written was not looked at", audited.open),
            ("deleted meanwhile", audited.deleted),
        )
        if count
    ]
    print(
        f"{format_count(audited.ledgers, 'ledger')}{' (' + '; '.join(of_these) + ')' if of_these else ''},"
        f" {audited.entries:,} entries, {audited.lost:,} lost, {audited.differing:,} with copies that differ;"
        f" {took_s:,.1f} s"
    )
