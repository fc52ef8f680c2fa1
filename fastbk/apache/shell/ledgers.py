"""Verbs about ledgers' metadata: listledgers, ledgermetadata, deleteledger."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.shell.arguments import CommandLine, Option, Verb, flag
from fastbk.apache.shell.context import fail
from fastbk.errors import ConfigError, MetadataConflict, NoSuchLedger, os_errors_as
from fastbk.private_files import opener

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import LedgerId
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
        f"{one.first_entry_id}=[{', '.join(one.ensemble)}]" for one in metadata.fragments
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
            store.update_ledger(
                ledger_id, metadata, found.version
            )  # also over one that nobody can read
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
)
