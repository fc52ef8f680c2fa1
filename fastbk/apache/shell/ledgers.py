"""Verbs about ledgers: their metadata (listledgers, ledgermetadata, deleteledger), and their
entries (readledger, simpletest, bookiesanity).
"""

from __future__ import annotations

import asyncio
import base64
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.shell.context import CommandLine, Option, Verb, fail, flag
from fastbk.errors import (
    ConfigError,
    Error,
    MetadataConflict,
    NoSuchLedger,
    StorageError,
    os_errors_as,
)
from fastbk.safe_files import opener

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context
    from fastbk.client import Client
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import BookieId, LedgerId
    from fastbk.model.ledger import LedgerMetadata

UPDATES_TRIED_MAX = 100


def metadata_line(metadata: LedgerMetadata) -> str:
    """Return what Apache prints of a ledger's metadata, but for the password."""
    from fastbk.model.entry import DigestType

    facts = [
        f"ensembleSize={metadata.ensemble_size}",
        f"writeQuorumSize={metadata.write_quorum}",
        f"ackQuorumSize={metadata.ack_quorum}",
        f"state={metadata.state.name}",
    ]
    if metadata.is_closed:
        facts += [f"length={metadata.length}", f"lastEntryId={metadata.last_entry_id}"]
    digest = metadata.digest_type
    if digest is not None:
        name = {DigestType.HMAC: "MAC"}.get(digest, digest.name)
        facts += [f"digestType={name}", "password=OMITTED"]
    ensembles = ", ".join(
        f"{fragment.first_entry_id}=[{', '.join(fragment.ensemble)}]"
        for fragment in metadata.fragments
    )
    custom = ", ".join(
        f"{key}=base64:{base64.b64encode(value).decode()}"
        for key, value in sorted(metadata.custom.items())
    )
    facts += [f"ensembles={{{ensembles}}}", f"customMetadata={{{custom}}}"]
    return f"LedgerMetadata{{{', '.join(facts)}}}"


def _list(context: Context, words: CommandLine) -> int:
    from fastbk.meta.api import all_ids, all_ledgers
    from fastbk.meta.records import BadRecord
    from fastbk.model.ids import check_bookie_id
    from fastbk.replication.copy_check import holds_entries

    with_metadata, bookie_id = words.has("meta"), words.text("bookieid").strip()
    if bookie_id:
        check_bookie_id(bookie_id)
    with context.store() as store:
        if not with_metadata and not bookie_id:
            for ledger_id in all_ids(store):
                print(f"ledgerID: {context.shown(ledger_id)}")
            return 0
        for ledger_id, found in all_ledgers(store):
            if isinstance(found, BadRecord):
                continue
            if bookie_id and not holds_entries(found.metadata, bookie_id):
                continue
            print(f"ledgerID: {context.shown(ledger_id)}")
            if with_metadata:
                print(metadata_line(found.metadata))
    return 0


def _metadata(context: Context, words: CommandLine) -> int:
    if words.has("dumptofile") and words.has("restorefromfile"):
        fail("Only one of --dumptofile and --restorefromfile can be specified")
        return -2
    ledger_id = context.ledger_id(words.text("ledgerid"))
    with context.store() as store:
        if words.has("restorefromfile"):
            path = Path(words.text("restorefromfile"))
            return _restore(store, ledger_id, path, is_update=words.has("update"))
        metadata = store.read_ledger(ledger_id).metadata
    if words.has("dumptofile"):
        to = words.text("dumptofile")
        # It holds the ledger's password.
        with os_errors_as(ConfigError, to), open(to, "wb", opener=opener) as file:
            file.write(metadata.to_bytes())
        return 0
    print(f"ledgerID: {context.shown(ledger_id)}")
    print(metadata_line(metadata))
    return 0


def _restore(store: MetadataStore, ledger_id: LedgerId, path: Path, *, is_update: bool) -> int:
    """Store what the file says; over what is there only with -update."""
    from fastbk.model.ledger import LedgerMetadata

    with os_errors_as(ConfigError, path):
        metadata = LedgerMetadata.from_bytes(path.read_bytes())
    for _ in range(UPDATES_TRIED_MAX):
        (found,) = store.read_ledgers([ledger_id])
        if found is None:
            store.create_ledger(ledger_id, metadata)
            return 0
        if not is_update:
            raise MetadataConflict(f"ledger {ledger_id} exists: -update replaces its metadata")
        try:
            # also over one that nobody can read
            store.update_ledger(ledger_id, metadata, found.version)
        except (MetadataConflict, NoSuchLedger):
            continue
        print(f"successfully updated ledger metadata {ledger_id}")
        return 0
    raise MetadataConflict(f"others keep changing ledger {ledger_id}: stop its writer first")


def _delete(context: Context, words: CommandLine) -> int:
    ledger_id = context.ledger_id(words.text("ledgerid"))
    shown = context.shown(ledger_id)
    if words.has("force") or context.confirmed(f"Are your sure to delete Ledger : {shown}?"):
        try:
            asyncio.run(_deleted(context, ledger_id))
        except NoSuchLedger:
            # Done, as with Apache's: who deletes again after a lost answer need not tell the two apart.
            fail(f"there is no ledger {shown}")
    return 0


async def _deleted(context: Context, ledger_id: LedgerId) -> None:
    async with context.client() as client:
        await client.delete_ledger(ledger_id)  # its writer is fenced first


_LEDGER = Option(("l", "ledgerid"), "Ledger ID", "ID", is_required=True)


TEST_DATA = bytes(65 + number * 7 % 26 for number in range(100))
CHUNK_ENTRIES = 256
_ROW_BYTES = 16


# --- readledger --------------------------------------------------------------------------------------------------


def _read(context: Context, words: CommandLine) -> int:
    ledger_id = context.ledger_id(words.text("ledgerid"))
    first = words.integer("firstentryid", 0)
    last = words.integer("lastentryid", -1, least=-1)
    if 0 <= last < first:
        raise ConfigError(f"entries {first}..{last}: must ascend")
    return asyncio.run(_read_range(context, words, ledger_id, first, last))


async def _read_range(
    context: Context, words: CommandLine, ledger_id: LedgerId, first: int, last: int
) -> int:
    async with context.client() as client:
        if words.has("force-recovery"):
            end = await _close(client, ledger_id)
            last = end if last < 0 else min(last, end)
            if last < first:
                return 0
        if words.has("bookie"):
            return await _read_one_bookie(context, words, client, ledger_id, first, last)
        info = await client.ledger_info(ledger_id)
        reader = await client.open_ledger(
            ledger_id, recovery=False, password=info.metadata.password or b""
        )
        async with reader:
            end = await reader.last_add_confirmed()
            last = end if last < 0 else min(last, end)
            if last < first:
                return 0
            async for batch in reader.read_batches(first, last):
                for entry in batch:
                    size_bytes = len(entry.data)
                    print(
                        f"--------- Lid={context.shown(ledger_id)}, Eid={entry.entry_id},"
                        f" EntrySize={size_bytes} ---------"
                    )
                    if words.has("msg"):
                        print_data(context, bytes(entry.data))
    return 0


async def _close(client: Client, ledger_id: LedgerId) -> int:
    """Recover a ledger that is not closed; return its last entry."""
    info = await client.ledger_info(ledger_id)
    reader = await client.open_ledger(ledger_id, password=info.metadata.password or b"")
    await reader.close()
    return reader.metadata.last_entry_id


async def _read_one_bookie(
    context: Context, words: CommandLine, client: Client, ledger_id: LedgerId, first: int, last: int
) -> int:
    """Read from one bookie what it has; what it has not is told entry by entry, as Apache does."""
    from fastbk.client.bookie_requests import LedgerRequests
    from fastbk.model.entry import DigestType
    from fastbk.replication.procedure import ReadEntry, Reply
    from fastbk.wire.statuses import status_name

    bookie_id: BookieId = words.text("bookie")
    metadata = (await client.ledger_info(ledger_id)).metadata
    requests = LedgerRequests(
        ledger_id,
        metadata.digest_type or DigestType.CRC32,
        metadata.password or b"",
        creation_token=metadata.creation_token,
    )
    missed = await client.pool.reach([bookie_id], client.config.connect_timeout)
    if missed:
        raise StorageError(f"bookie {bookie_id}: {missed[bookie_id]}")

    async def asked(entry_id: int) -> Reply:
        request = ReadEntry(entry_id)
        answer = await client.pool.peer(bookie_id).request(
            lambda request_id: requests.frame(request, request_id), client.config.read_timeout
        )
        return requests.reply(request, answer)

    if last < 0:
        highest = (await asked(-1)).found
        last = highest[0].entry_id if highest else -1
    for entry_id in range(first, last + 1):
        reply = await asked(entry_id)
        if reply.damaged:
            fail(f"Failed to read entry {entry_id} -- its digest is wrong")
        elif not reply.found:
            fail(f"Failed to read entry {entry_id} -- {status_name(reply.status)}")
        else:
            print(f"--------- Lid={context.shown(ledger_id)}, Eid={entry_id} ---------")
            if words.has("msg"):
                print_data(context, bytes(reply.found[0].data))
    return 0


def print_data(context: Context, data: bytes) -> None:
    """Print an entry's data as text, or as a table of bytes."""
    if context.entry_format == "string":
        print(data.decode("utf-8", "replace"))
        return
    for start in range(0, len(data), _ROW_BYTES):
        row = data[start : start + _ROW_BYTES]
        text = "".join(chr(code) if 32 <= code < 127 else "." for code in row)
        print(f"{start:08X} {row.hex(' ').upper():<{3 * _ROW_BYTES - 1}} {text}")


# --- simpletest and bookiesanity ---------------------------------------------------------------------------------


def _simple_test(context: Context, words: CommandLine) -> int:
    return asyncio.run(_write_and_read(context, words))


async def _write_and_read(context: Context, words: CommandLine) -> int:
    from fastbk.admin.http_tool import compare

    count = words.integer("numEntries", 1000, least=1)
    async with context.client() as client:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the caller chose the quorums
            writer = await client.create_ledger(
                ensemble=words.integer("ensemble", 3, least=1),
                write_quorum=words.integer("writeQuorum", 2, least=1),
                ack_quorum=words.integer("ackQuorum", 2, least=1),
                metadata={"Bookie": b"simpletest"},
            )
        ledger_id = writer.ledger_id
        print(f"Ledger ID: {ledger_id}")
        try:
            async with writer:
                for start in range(0, count, CHUNK_ENTRIES):
                    await writer.append_many([TEST_DATA] * min(CHUNK_ENTRIES, count - start))
                last = count - 1
                print(f"{count} entries written to ledger {ledger_id}. Last entry Id {last}")
            await compare(client, ledger_id, [TEST_DATA] * count)
        finally:
            await client.delete_ledger(ledger_id)
    return 0


def _sanity(context: Context, words: CommandLine) -> int:
    from fastbk.admin.http_tool import check_one_bookie

    bookie_id = context.bookie_id()
    count = words.integer("entries", 10, least=1)
    timeout_s = words.integer("timeout", 1, least=1)
    try:
        with context.store() as store:
            ledger_id = asyncio.run(check_one_bookie(store, bookie_id, count, float(timeout_s)))
    except Error as error:
        fail(f"Error in bookie sanity test of {bookie_id}: {error}")
        return -1
    print(f"Read {count} entries from ledger {ledger_id}")
    print("Bookie sanity test succeeded")
    return 0


VERBS = (
    Verb(
        "listledgers",
        "List all ledgers of the cluster.",
        _list,
        (
            flag("m", "meta", text="with their metadata"),
            Option(("bookieid",), "only those with entries on this bookie", "ID"),
        ),
    ),
    Verb(
        "ledgermetadata",
        "Print the metadata of a ledger, or write it to a file, or restore it from one.",
        _metadata,
        (
            _LEDGER,
            Option(("dumptofile",), "write its bytes there", "FILE"),
            Option(("restorefromfile",), "make the ledger anew from such a file", "FILE"),
            flag("update", text="restore also over a ledger that exists"),
        ),
    ),
    Verb(
        "deleteledger",
        "Delete a ledger.",
        _delete,
        (_LEDGER, flag("f", "force", text="do not ask")),
    ),
    Verb(
        "readledger",
        "Read a range of entries from a ledger, or from one bookie of it.",
        _read,
        (
            Option(("l", "ledgerid"), "Ledger ID", "ID", is_required=True),
            flag("m", "msg", text="with the entries' data"),
            Option(("fe", "firstentryid"), "the first one (0)", "ENTRY"),
            Option(("le", "lastentryid"), "the last one (of the ledger)", "ENTRY"),
            flag("r", "force-recovery", text="fence and close the ledger first"),
            Option(("b", "bookie"), "only from this bookie", "ID"),
        ),
    ),
    Verb(
        "simpletest",
        "Create a ledger, write entries, read them, and delete it.",
        _simple_test,
        (
            Option(("e", "ensemble"), "Ensemble size (3)", "N"),
            Option(("w", "writeQuorum"), "Write quorum size (2)", "N"),
            Option(("a", "ackQuorum"), "Ack quorum size (2)", "N"),
            Option(("n", "numEntries"), "Entries to write (1000)", "N"),
        ),
    ),
    Verb(
        "bookiesanity",
        "The same on the one bookie of the file only.",
        _sanity,
        (
            Option(("e", "entries"), "Entries to write (10)", "N"),
            Option(("t", "timeout"), "seconds for writing and for reading (1)", "SECONDS"),
        ),
    ),
)
