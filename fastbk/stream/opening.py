"""Opening a stream for append: the former writer is fenced, what it left is closed, and a new epoch begins (INV-S6).

Decision 65.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from weakref import WeakKeyDictionary

from fastbk.client.client import Client
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import (
    ConfigError,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    StorageError,
    StreamSealed,
)
from fastbk.formats import PRODUCERS, level_of
from fastbk.model.ledger import custom_of_stream
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.chain import (
    Chain,
    Contents,
    Segment,
    StreamKind,
    check_kind,
    close_segment,
    forget_deleted,
    open_for_append,
)
from fastbk.stream.chain_store import ChainStore, VersionedChain
from fastbk.stream.context import StreamContext
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.segment_contents import contents_of

_log = LibraryLog("fastbk.stream")


class SegmentMoved(MetadataConflict):
    """Somebody else closed the segment, and it went, while it was looked at: read the chain again."""


def new_owner() -> str:
    """Return a name for one opening: of this host and process, for people, and drawn, so that no other has it."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"


async def check_bookies(context: StreamContext, policy: StreamPolicy) -> None:
    """Raise NotEnoughBookies or Unauthorized unless a segment could be made: who cannot write must not end who can."""
    await context.client.check_bookies(
        policy.ensemble,
        policy.write_quorum,
        policy.ack_quorum,
        placement=policy.placement_for(context.client.config.placement),
        allow_missing_bookies=policy.allow_missing_bookies,
        namespace=context.namespace,
    )


async def create_ledger(
    context: StreamContext, policy: StreamPolicy, ledger_id: int, **metadata: str
) -> LedgerWriter:
    """Create a ledger of the stream; it was named before (INV-S8). `metadata`: more of it, each as "fastbk.<name>".

    Streams' ledgers are guarded by their names, not by passwords.
    """
    more = {f"fastbk.{name}": value.encode() for name, value in metadata.items()}
    return await context.client.create_ledger(
        policy.ensemble,
        policy.write_quorum,
        policy.ack_quorum,
        policy.digest,
        metadata={**custom_of_stream(context.stream_id, context.namespace), **more},
        ledger_id=ledger_id,
        placement=policy.placement_for(context.client.config.placement),
        allow_missing_bookies=policy.allow_missing_bookies,
    )


async def close_open_segments(
    client: Client, store: ChainStore, known: VersionedChain
) -> list[tuple[int, Contents]]:
    """Fence, recover and close the ledgers of all open segments; return what each of them holds, in their order."""
    found: list[tuple[int, Contents]] = []
    for row in known.chain.open_rows:
        contents = await recovered(client, store, row)
        found.append((row.ledger_id, contents))
        if contents.is_empty:
            break  # what stands behind it was never written to
    return found


async def recovered(client: Client, store: ChainStore, row: Segment) -> Contents:
    """Have an open segment's ledger closed, by whomever; return what it holds."""
    try:
        reader = await client.open_ledger(row.ledger_id, recovery=True)
    except NoSuchLedger as error:
        moved = (await store.read()).chain.row(row.number)
        if moved is None or moved.ledger_id != row.ledger_id or not moved.is_open:
            raise SegmentMoved(f"segment {row.number} was closed meanwhile") from error
        raise StorageError(
            f"stream {store.stream_id}: ledger {row.ledger_id} of its open segment {row.number} was deleted by"
            " somebody: what it held is lost",
            ledger_id=row.ledger_id,
        ) from error
    async with reader:
        return await contents_of(reader, row.number, row.base_txid)


def closed(chain: Chain, found: list[tuple[int, Contents]]) -> Chain:
    """Return the chain with these ledgers' segments closed."""
    for ledger_id, contents in found:
        chain = close_segment(chain, ledger_id, contents)
    return chain


def check_producers_level(stream: str, level: int) -> None:
    """Raise ConfigError if a cluster of this format level has no streams of producers (INV-U1)."""
    needed = level_of(PRODUCERS)
    if level < needed:
        raise ConfigError(
            f"stream {stream} takes no producers: that needs format level {needed}, and the cluster has {level}."
            " Versions without that level cannot read what producers append. Upgrade them, then run"
            " `fastbk cluster finalize`"
        )


async def open_stream(
    client: Client, store: ChainStore, owner: str, kind: StreamKind | None
) -> VersionedChain:
    """Take the stream over; return its chain, all segments closed, in an epoch that is this opening's alone.

    `kind`: of who is going to append; None: nobody, and the stream stays what it is (INV-S28). Whoever wrote before is
    fenced: of what it had under way the recovered ledgers decide. Raises WrongStreamKind, and ConfigError for producers
    in a cluster whose format level has none, before anybody is fenced; StreamSealed, StreamNotFound, and what recovery
    and metadata raise: the same call may then succeed later.
    """
    while True:
        known = await store.read()
        if known.chain.is_sealed:
            raise StreamSealed(
                f"stream {store.name or store.stream_id} has ended: nothing can be appended to it"
            )
        check_kind(known.chain, kind, store.name)
        if kind is StreamKind.PRODUCERS and known.chain.kind is not kind:
            check_producers_level(store.name, await client.records.format_level())
        try:
            found = await close_open_segments(client, store, known)
        except SegmentMoved:
            continue

        def decide(chain: Chain, found: list[tuple[int, Contents]] = found) -> Chain:
            if chain.owner != owner:
                check_kind(chain, kind, store.name)
            chain = closed(chain, found)
            if chain.open_rows:  # another writer has opened one since: that has to be closed, too
                raise MetadataConflict(
                    f"stream {store.stream_id} was opened by somebody else meanwhile"
                )
            return open_for_append(chain, owner, kind)

        try:
            return await store.change(decide, known)
        except MetadataConflict as error:
            if error.retryable or not (await store.read()).chain.open_rows:
                raise


async def delete_pending(context: StreamContext, known: VersionedChain) -> VersionedChain:
    """Delete the chain's doomed ledgers, and forget them (INV-S8); what fails now is left to the janitor."""
    if not known.chain.doomed:
        return known
    gone: list[int] = []
    try:
        for ledger_id in known.chain.doomed:
            await context.client.records.retire_ledger_id(ledger_id, context.stream_id)
            gone.append(ledger_id)
        if gone:
            known = await context.store.change(
                lambda chain: forget_deleted(chain, tuple(gone)), known
            )
    except Error as error:
        _log.info("stream.doomed_ledgers_wait", stream=context.name, reason=str(error))
    return known


# --- how much goes on at once ---------------------------------------------------------------------
#
# How much of what needs metadata a client's streams do at once.
#
# Thousands of streams of one client become due to roll in the same moment. Each roll is half a
# dozen calls of metadata, which a few threads make one after the other: all at once they would wait
# longer than a call may, and be given up while they still happen. So only some go on at a time, and
# the others wait in their order; appends wait for none of it.


SLOTS_MAX = 64
"""Segments that are made or ended at once by one client, and streams that are opened."""
LINE_EVERY_S = 1.0
"""Minimum pause between log lines: in an outage thousands of streams try in vain every few seconds."""


class SegmentSlots:
    """One client's turns at it, in the order of their asking; `async with` waits for one.

    Attributes:
        trouble: that metadata did not answer the last of them; None once it has answered any.
    """

    def __init__(self) -> None:
        self.trouble: Error | None = None
        self._trouble_since_s = 0.0
        self._logged_s: float | None = None
        self._unlogged = 0
        self._semaphore = asyncio.Semaphore(SLOTS_MAX)

    @property
    def troubled_s(self) -> float:
        """For how long metadata has answered nobody; 0 when it answers."""
        return 0.0 if self.trouble is None else time.monotonic() - self._trouble_since_s

    def log_wait(self, stream: str, error: Error) -> None:
        """Log that a segment of a stream's has to wait; a line a second, which counts those that were not named."""
        now_s = time.monotonic()
        if self._logged_s is not None and now_s - self._logged_s < LINE_EVERY_S:
            self._unlogged += 1
            return
        others, self._unlogged, self._logged_s = self._unlogged, 0, now_s
        _log.warning("stream.segment_waits", stream=stream, reason=str(error), others=others)

    async def __aenter__(self) -> None:
        await self._semaphore.acquire()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._semaphore.release()
        if isinstance(error, MetadataUnavailable):
            if self.trouble is None:
                self._trouble_since_s = time.monotonic()
            self.trouble = error
        elif error is None or isinstance(error, Exception):
            self.trouble = None


_slots: WeakKeyDictionary[Client, SegmentSlots] = WeakKeyDictionary()


def slots_of(client: Client) -> SegmentSlots:
    """Return what has to be held while a segment is made or ended, or a stream is opened."""
    slots = _slots.get(client)
    if slots is None:
        slots = _slots[client] = SegmentSlots()
    return slots
