"""Closed ledgers become a stream's next segments: drafts of them, and attaching.

Drafts are ledgers that are written to be attached later, named below their stream before they exist (INV-S8).

A draft belongs to the key and number under which its ledgers are to be attached; several attempts at the same number
make a draft each, and one of them is attached. The draft's record decides which (INV-S13): see README.md.

Decision 142.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from fastbk.client.client import Client
from fastbk.client.ledger_reader import LedgerReader
from fastbk.errors import ConfigError, DraftGone, Error, MetadataConflict, StorageError, StreamBusy
from fastbk.meta.records import BadRecord, Change, VersionedRecord, decoded
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import CURSOR_KEY, SEGMENT_KEY, STREAM_KEY, custom_of_stream
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.chain import (
    KEY_CHARACTERS_MAX,
    Chain,
    Contents,
    StreamKind,
    check_epoch,
    check_kind,
    open_for_append,
)
from fastbk.stream.chain import attach as attached
from fastbk.stream.chain_store import VersionedChain
from fastbk.stream.context import StreamContext, clock_us, gathered
from fastbk.stream.opening import new_owner, open_stream, slots_of
from fastbk.stream.paths import drafts_path
from fastbk.stream.positions import DLSN, NUMBER_MAX, TXID_MAX, TimeUs
from fastbk.stream.segment_contents import contents_of

_log = LibraryLog("fastbk.stream")

KEPT_S = 7 * 24 * 3600.0
"""The janitor gives up what is older: whoever began it did not come back."""
DRAFT_KEY_CHARACTERS_MAX = 150
"""Maximum length of a draft's key as it stands in the record's name, in which a letter that is not plain takes three
or more.
"""
LEDGERS_MAX = 1000
"""Maximum ledgers of one draft: its record names them all."""
TOGETHER = 16
_OF_DRAFTS = {SEGMENT_KEY: None, CURSOR_KEY: None}
FENCE_S = 5.0
"""How long fencing a ledger that is given up may take; it is deleted in any case."""
TRIES_MAX = 20


class _State(msgspec.Struct, frozen=True):
    """A draft's record."""

    made_us: TimeUs
    ledgers: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)], ...],
        msgspec.Meta(max_length=LEDGERS_MAX),
    ] = ()
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """One attempt's ledgers, as their record said when it was read."""

    stream_id: str
    name: str
    """Name of its record: number, label, a token that was drawn, key."""
    key: str
    number: int
    label: str
    """Who made it, for people."""
    made_us: int
    ledgers: tuple[LedgerId, ...]
    """Ledgers in the order in which they are to be attached; the last ones may not exist."""
    is_given_up: bool
    """Its ledgers are being deleted."""
    version: int
    """Version of its record."""

    @property
    def path(self) -> str:
        """Where its record is."""
        return f"{drafts_path(self.stream_id)}/{self.name}"

    def event(self) -> dict[str, object]:
        """Return what the audit log says when it is given up."""
        return {"stream": self.stream_id, "draft": self.name, "ledgers": list(self.ledgers)}


async def begin(context: StreamContext, key: str, number: int, label: str = "") -> Draft | None:
    """Note a new draft, without ledgers; None: this number, or one above it, was attached already.

    Raises ConfigError, WrongStreamKind, QuotaExceeded, StreamNotFound, MetadataUnavailable (then there may be one that
    nobody fills).
    """
    await context.policy()
    context.check_room()
    chain = (await context.store.read()).chain
    if number <= chain.attached_number(key):
        return None
    check_kind(chain, StreamKind.WRITER, context.name)
    name = f"{number}~{quote(label, safe='')}~{secrets.token_hex(6)}~{check_key(key)}"
    state = _State(clock_us())
    draft = _draft(context.stream_id, name, state, 0)
    (version,) = await context.client.records.change(Change(draft.path, _encode(state)))
    return _draft(context.stream_id, name, state, version)


async def draw_ledger(client: Client, draft: Draft) -> tuple[LedgerId, Draft]:
    """Name another ledger, the draft's last one, which the caller may create now; return its id and the draft.

    Raises MetadataConflict when the draft was given up, MetadataUnavailable; it is of no use any more then.
    """
    if len(draft.ledgers) >= LEDGERS_MAX:
        raise ConfigError(f"a draft has {LEDGERS_MAX} ledgers at most: make them larger")
    ledger_id = await client.records.draw_ledger_id()
    state = _State(draft.made_us, (*draft.ledgers, ledger_id))
    (version,) = await client.records.change(Change(draft.path, _encode(state), draft.version))
    return ledger_id, _draft(draft.stream_id, draft.name, state, version)


async def drafts_of(client: Client, stream_id: str) -> list[Draft]:
    """Return the drafts of a stream, of all keys; one whose record cannot be read is logged and passed over."""
    folder, drafts = drafts_path(stream_id), list[Draft]()
    (names,) = await client.records.children_of([folder])
    read = client.records.each([f"{folder}/{name}" for name in names])
    for name in names:
        one = await anext(read)
        if one is not None:
            draft = decoded(f"{folder}/{name}", lambda: _read(stream_id, name, one))  # noqa: B023
            if isinstance(draft, BadRecord):
                _log.warning("stream.bad_record", path=draft.path, reason=draft.reason)
            else:
                drafts.append(draft)
    return drafts


async def give_up(client: Client, drafts: Sequence[Draft]) -> None:
    """Fence and delete the ledgers of drafts that nobody attaches, and the drafts. What was attached stays.

    May be called again by anybody after a failure. Raises MetadataUnavailable and what deleting raises.
    """
    turns = asyncio.Semaphore(TOGETHER)

    async def one(draft: Draft) -> None:
        async with turns:
            await _give_up(client, draft)

    ends = await asyncio.gather(*map(one, drafts), return_exceptions=True)
    for end in ends:
        if end is not None:
            raise end


async def _give_up(client: Client, draft: Draft) -> None:
    marked = await _marked(client, draft)
    if marked is None:
        return
    for ledger_id in marked.ledgers:
        await _fence(client, ledger_id)
        await client.records.retire_ledger_id(ledger_id, draft.stream_id, _OF_DRAFTS)
    if marked.ledgers:
        _log.info("stream.draft_given_up", stream=draft.stream_id, draft=draft.name)
    with suppress(MetadataConflict):  # somebody else has deleted it
        await client.records.change(Change(marked.path, None, marked.version))


async def _marked(client: Client, draft: Draft) -> Draft | None:
    """Mark a draft so that neither a ledger comes to it nor it to the chain; None: it is gone."""
    for _ in range(TRIES_MAX):
        record = await client.records.read(draft.path)
        if record is None:
            return None
        known = _read(draft.stream_id, draft.name, record)
        if known.is_given_up:
            return known
        state = replace(_decode(known.path, record.value), given_up=True)
        with suppress(MetadataConflict):  # it drew another ledger, or was attached
            (version,) = await client.records.change(
                Change(draft.path, _encode(state), record.version)
            )
            return _draft(draft.stream_id, draft.name, state, version)
    raise MetadataConflict(f"draft {draft.name} changes again and again", retryable=True)


async def _fence(client: Client, ledger_id: LedgerId) -> None:
    """Stop whoever may still write to it; where that cannot be done, its deletion has to do."""
    with suppress(Error, TimeoutError):
        async with asyncio.timeout(FENCE_S):
            reader = await client.open_ledger(ledger_id, recovery=True)
            await reader.close()


# --- records --------------------------------------------------------------------------------------


def check_key(key: str) -> str:
    """Return a key as it stands in names of records. Raises ConfigError for one that is empty or too long."""
    quoted = quote(key, safe="@:+=")
    if not 1 <= len(quoted) <= DRAFT_KEY_CHARACTERS_MAX:
        raise ConfigError(
            f"{key!r} is no key of drafts: 1 to {DRAFT_KEY_CHARACTERS_MAX} characters, percent-encoded"
        )
    return quoted


def _read(stream_id: str, name: str, found: VersionedRecord) -> Draft:
    path = f"{drafts_path(stream_id)}/{name}"
    return _draft(stream_id, name, _decode(path, found.value), found.version)


def _draft(stream_id: str, name: str, state: _State, version: int) -> Draft:
    number, label, key = parts_of(name)
    return Draft(
        stream_id,
        name,
        unquote(key),
        number,
        unquote(label),
        state.made_us,
        state.ledgers,
        state.given_up,
        version,
    )


def parts_of(name: str) -> tuple[int, str, str]:
    """Return number, label and key of a draft by the name of its record. Raises StorageError for another name."""
    parts = name.split("~", 3)
    if (
        len(parts) != 4
        or not (parts[0].isascii() and parts[0].isdigit())
        or int(parts[0]) > NUMBER_MAX
    ):
        raise StorageError(f"{name!r} is no name of a draft")
    return int(parts[0]), parts[1], parts[3]


def ledgers_named(raw: bytes) -> tuple[LedgerId, ...]:
    """Return the ledgers that a draft's record names. Raises StorageError."""
    return _decode("of a draft", raw).ledgers


def ledgers_to_delete(raw: bytes) -> tuple[LedgerId, ...]:
    """Return the ledgers that a draft's record names for deletion: all, if it was given up. Raises StorageError."""
    state = _decode("of a draft", raw)
    return state.ledgers if state.given_up else ()


def is_of_draft(custom: Mapping[str, bytes]) -> bool:
    """Return whether a ledger of the stream, by its custom metadata, may be deleted with a draft."""
    return all(custom.get(key) == value for key, value in _OF_DRAFTS.items())


def _encode(state: _State) -> bytes:
    raw = msgspec.json.encode(state)
    try:
        msgspec.json.decode(raw, type=_State)
    except ValueError as error:
        raise StorageError(f"a draft's record would be one that nobody reads: {error}") from error
    return raw


def _decode(path: str, raw: bytes) -> _State:
    try:
        return msgspec.json.decode(raw, type=_State)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"record {path} is no draft: {error}") from error


# --- attaching ------------------------------------------------------------------------------------
#
# Closed ledgers become the next segments of a stream: by one change of its chain, and a repeat does
# nothing.


ATTACHED_MAX = 2048
"""Maximum drafts that are attached at once: the one change of metadata then has some 700 KB, of the 1 MB that
ZooKeeper takes.
"""
READ_TOGETHER = 32


async def attach(
    context: StreamContext, ledger_ids: Sequence[int], key: str, number: int
) -> DLSN | None:
    """Put closed ledgers behind all that the stream has, in this order; return the position of its last record.

    All of them or none. `key` and `number` make it repeatable: numbers of one key rise from 0, and a number that the
    key had, or one below it, changes nothing. The stream is taken over first: a writer that it has is fenced.

    A ledger's entries must be those of a stream (`fastbk/stream/README.md`). Transaction ids stay as they are where a
    stream's writer wrote them; others count from the stream's last one on (INV-S15). The ledgers are the stream's from
    then on, and are deleted with its segments.

    Raises ConfigError for a ledger that is open, empty, a stream's already, or older than the stream's end;
    StorageError for one with other entries; MetadataConflict when a writer opened the stream meanwhile (call it again);
    StreamSealed, StreamNotFound; WrongStreamKind for a stream of producers, which is not taken over.
    """
    _check_arguments(ledger_ids, key, number)
    known = await _open_chain(context, key, number, is_fencing=True)
    if number <= known.chain.attached_number(key):
        return known.chain.last_dlsn
    await _check_new(context, known.chain, ledger_ids)
    return await _attach(context, known, ledger_ids, key, number, ())


async def attach_drafts(
    context: StreamContext, drafts: Sequence[Draft], number: int, *, is_fencing: bool = True
) -> DLSN | None:
    """Attach the ledgers of drafts, as `attach` does, under the drafts' key; these drafts are gone with it.

    `is_fencing` False: StreamBusy where the stream has an open segment, which a writer may be writing to, or one that
    died has left. (A writer that has appended nothing yet cannot be told from none, and is fenced.)

    Raises DraftGone when one of the drafts was given up, MetadataConflict also when one was just now.
    """
    keys = {draft.key for draft in drafts}
    if len(keys) != 1:
        raise ConfigError("drafts of one key can be attached together, and one at least")
    ledger_ids = [ledger_id for draft in drafts for ledger_id in draft.ledgers]
    (key,) = keys
    _check_arguments(ledger_ids, key, number)
    known = await _open_chain(context, key, number, is_fencing=is_fencing)
    if number <= known.chain.attached_number(key):
        return known.chain.last_dlsn
    if any(draft.is_given_up for draft in drafts):
        raise DraftGone(f"a draft of {key} was given up: nothing of it can be attached")
    gone = [Change(draft.path, None, draft.version) for draft in drafts]
    return await _attach(context, known, ledger_ids, key, number, gone)


def _check_arguments(ledger_ids: Sequence[int], key: str, number: int) -> None:
    if not 1 <= len(ledger_ids) <= ATTACHED_MAX or len(set(ledger_ids)) != len(ledger_ids):
        raise ConfigError(
            f"1 to {ATTACHED_MAX} different ledgers can be attached at once, not {len(ledger_ids)}"
        )
    if not 0 <= number <= NUMBER_MAX or len(key) > KEY_CHARACTERS_MAX:
        raise ConfigError(
            f"a key has {KEY_CHARACTERS_MAX} characters at most, and its numbers begin with 0"
        )


async def _open_chain(
    context: StreamContext, key: str, number: int, *, is_fencing: bool
) -> VersionedChain:
    """Return the chain in an epoch of its own, without open segments; or as it is, where the number was attached."""
    known = await context.store.read()
    if number <= known.chain.attached_number(key):
        return known
    owner = new_owner()
    if is_fencing:
        async with slots_of(context.client):
            return await open_stream(context.client, context.store, owner, StreamKind.WRITER)

    def decide(chain: Chain) -> Chain:
        if chain.owner != owner:
            check_kind(chain, StreamKind.WRITER, context.name)
        if chain.open_rows:
            raise StreamBusy(
                f"stream {context.name} has an open segment, made by {chain.owner}: a writer has it, or died with it"
            )
        return open_for_append(chain, owner)

    return await context.store.change(decide, known)


async def _attach(
    context: StreamContext,
    known: VersionedChain,
    ledger_ids: Sequence[int],
    key: str,
    number: int,
    also: Sequence[Change],
) -> DLSN | None:
    epoch = known.chain.epoch

    async def contents(ledger_id: int) -> tuple[int, Contents]:
        return ledger_id, await _contents(context, ledger_id)

    found = tuple(await gathered(contents, ledger_ids, READ_TOGETHER))
    now_us = clock_us()

    def decide(chain: Chain) -> Chain:
        check_epoch(chain, epoch)
        wanted = attached(chain, found, key, number, now_us)
        if wanted.last_txid > TXID_MAX:
            raise ConfigError("the stream's transaction ids would rise above 2^62")
        return wanted

    known = await context.store.change(decide, known, also=also)
    return known.chain.last_dlsn


async def _check_new(context: StreamContext, chain: Chain, ledger_ids: Sequence[int]) -> None:
    taken = {chain.reserved, *chain.doomed}
    async for row in context.store.rows_from(chain, chain.head):
        taken.add(row.ledger_id)
    for ledger_id in ledger_ids:
        if ledger_id in taken:
            raise ConfigError(f"ledger {ledger_id} is one of {context.name}'s already")


async def _contents(context: StreamContext, ledger_id: int) -> Contents:
    async with await context.client.open_ledger(ledger_id, recovery=False) as reader:
        if not reader.metadata.is_closed:
            raise ConfigError(
                f"ledger {ledger_id} is open: close it by `fastbk ledger recover {ledger_id}` before it is attached"
            )
        await _claim(context, reader)
        contents = await contents_of(reader, 0)
    if contents.is_empty:
        raise ConfigError(f"ledger {ledger_id} has no records: nothing can be attached")
    return contents


async def _claim(context: StreamContext, reader: LedgerReader) -> None:
    """Mark the ledger as the stream's and its namespace's; one that is marked as another's is left alone."""
    owner, ours = reader.metadata.custom.get(STREAM_KEY), context.stream_id.encode()
    if owner not in (None, ours):
        raise ConfigError(f"ledger {reader.ledger_id} is a segment of another stream")
    if owner is None:
        # one that it has it keeps
        namespace = "" if reader.metadata.namespace else context.namespace
        await context.client.edit_metadata(
            reader.ledger_id, custom_of_stream(context.stream_id, namespace)
        )
