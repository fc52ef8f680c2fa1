"""The asyncio client: creates, opens, deletes and lists ledgers; owns the connections and the metadata store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Literal, Protocol, Self, TypeVar, Unpack

from fastbk.client.async_tools import Coalescer, SharedEnd, raised_again
from fastbk.client.bookie_pool import BookiePool
from fastbk.client.bookie_requests import LedgerRequests
from fastbk.client.config import ClientConfig, ClientOptions, config_of
from fastbk.client.connection import Answer, Traffic
from fastbk.client.ensembles import Ensembles, log_replacements
from fastbk.client.explicit_lac_sender import LacGuard
from fastbk.client.ledger_options import (
    QuorumWarnings,
    check_password,
    checking_of,
    custom_metadata_change,
    custom_of,
    digest_to_open_with,
    new_metadata,
    pacing_of,
    shape_of,
    writer_options,
)
from fastbk.client.ledger_reader import LedgerInfo, LedgerReader
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.client.metadata_calls import LockCalls, MarkCalls, MetadataCalls, RecordCalls
from fastbk.client.runner import LedgerIo, run
from fastbk.errors import (
    ClientClosed,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    StorageError,
    Unauthorized,
)
from fastbk.meta import MetadataStore
from fastbk.meta.api import LEDGERS_AT_ONCE, BookieRegistration, LedgerIdPages, VersionedLedger
from fastbk.meta.replica_marks import delete_ledger
from fastbk.meta.uri import uri_or_default
from fastbk.model.entry import DigestType
from fastbk.model.ids import LedgerId, check_ledger_id
from fastbk.model.ledger import STREAM_KEY, Fragment, LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.native import client_codec as codec
from fastbk.observe.library_log import LibraryLog
from fastbk.observe.meter import meter_of
from fastbk.option_checks import check_type, checked_timeout
from fastbk.placement.config import PlacementConfig
from fastbk.replication.accepted_loss import AcceptedLoss, CloseAcceptingLoss
from fastbk.replication.ack_domains import custom_of_new
from fastbk.replication.ledger_repair import RepairMissing, RepairQueue
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Choose, Procedure, ReadEntry, Replaced
from fastbk.replication.recovery import RecoverLedger, RecoveryOptions
from fastbk.replication.under_replication import owed_by
from fastbk.replication.writer_machine import WriterMachine
from fastbk.retry import jittered
from fastbk.wire.statuses import Status

T = TypeVar("T")
FENCED_TOO = (Status.OK, Status.NO_ENTRY, Status.NO_LEDGER)
"""Answers to a read that fences: it has fenced, whether the entry is there or not."""
FENCE_S = 2.0
"""How long a deletion waits for bookies to fence an open ledger."""
_log = LibraryLog("fastbk.client")
# Clients that are open in this process: a fork makes them useless in the child.
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Settling(Protocol):
    """A writer that has taken appends, or a cursor that has taken acknowledgements."""

    lost_event: str
    """What is logged where some of it may be lost."""

    @property
    def label(self) -> str:
        """What it has taken, for people."""

    @property
    def is_unsettled(self) -> bool:
        """Whether something was taken that is neither stored nor has failed."""

    @property
    def trouble(self) -> object:
        """Why some of it has failed; empty or None: nothing has."""

    async def until_settled(self) -> None:
        """Return when all that was taken so far is stored, or has failed."""


class Attached(Protocol):
    """What ends with a client: connections that are not to bookies."""

    def mark_forked(self, error: Error) -> None:
        """Refuse everything with that: the client lives in a forked child."""

    async def close(self, timeout_s: float) -> None:
        """End."""


class Client:
    """A client of one cluster on one event loop. Use `fastbk.connect(uri)`; no I/O before `async with` or a call.

    Every call has a deadline: `timeout=` or the default of `ClientConfig`. A cancelled call of this class leaves
    nothing half-done but this: a cancelled `create_ledger` may leave an empty open ledger, and a cancelled
    `delete_ledger` may have deleted.
    """

    def __init__(
        self,
        uri: str | MetadataStore,
        config: ClientConfig | None = None,
        *,
        shares_loop: bool = True,
    ) -> None:
        """`shares_loop`: an application runs on the client's loop, too, and may keep it for itself."""
        self.config = ClientConfig() if config is None else config
        self._store = MetadataCalls(uri, self.config)
        self.records = RecordCalls(self._store)
        self.marks = MarkCalls(self._store)
        self.locks = LockCalls(self._store)
        self.pool = BookiePool(self.config, self._store.list_bookies, self._report)
        self._writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()
        self._lac_guard = LacGuard(self.pool) if shares_loop else None
        self.unsettled: set[Settling] = set()
        """Writers and producers of streams, and cursors, that are open."""
        self.attached: list[Attached] = []
        self._ensembles = Ensembles(self.pool, self._store)
        self._warnings = QuorumWarnings()
        self._is_watching = False
        self._end = SharedEnd()
        self._refreshing = Coalescer(self._tell_writers)
        self.repairs = CopyRepairs(self)
        _open_clients.add(self)

    def __repr__(self) -> str:
        return f"<Client of {self._store.place}{'' if self._store.closed is None else ', closed'}>"

    # --- bookies -----------------------------------------------------------------------------------------------

    def _bookies_changed(self) -> None:
        """The watch tells of bookies that came or went; changes while one is looked at are looked at once more."""
        if self._store.closed is None:
            self._refreshing.schedule()

    async def _tell_writers(self) -> None:
        with contextlib.suppress(Error):
            await self.pool.bookies()
        for writer in list(self._writers):
            writer.bookies_changed(self.pool.known.read_only())
        self.repairs.bookies_changed()

    async def _io(self, requests: LedgerRequests, metadata: LedgerMetadata) -> LedgerIo:
        await self._ensembles.locate()
        requests.tag = await self.pool.tags.get(requests.ledger_id, metadata)

        async def choose(action: Choose) -> Replaced:
            return await self._ensembles.replace(
                requests.ledger_id, action, metadata, self.config.placement
            )

        return LedgerIo(
            requests.ledger_id,
            requests,
            self.pool,
            self._store,
            self.marks.perform,
            choose,
            self.repairs.add,
        )

    # --- ledgers -----------------------------------------------------------------------------------------------

    async def create_ledger(
        self,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int | None = None,
        digest: str = "crc32c",
        password: bytes = b"",
        metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
        *,
        explicit_ids: bool = False,
        deferred_sync: bool = False,
        placement: PlacementConfig | None = None,
        allow_missing_bookies: bool = False,
        publish: Literal["immediate", "piggyback"] = "piggyback",
    ) -> LedgerWriter:
        """Create a ledger and return its writer. `ack_quorum` None: the majority of `write_quorum`.

        Less than a majority is possible, and a WeakQuorumWarning once for each client: see docs/quorums.md.
        `digest`: crc32c, crc32, hmac or none. `explicit_ids`: the caller names the id of each entry. `deferred_sync`:
        what is appended counts only once `force` has returned. `placement`: in place of the client's. It narrows the
        rules of the cluster and of the ledger's namespace (`ClientConfig.namespace`), and what is left is kept in the
        ledger's custom metadata: whoever replaces a bookie later keeps to it (INV-P3, INV-P4). With an ack minimum an
        append returns when its copies span so many racks, regions or zones (INV-P5).

        `allow_missing_bookies`: begin with fewer bookies, as long as `ack_quorum` of them answer. The ensemble shrinks
        at most to `write_quorum`. Below that it names bookies that are read-only or away: their copies are owed, and
        marked.

        `publish`: when readers see the last entries. "piggyback": with the next entry, or when the writer has been idle
        for `explicit_lac_interval`; within a second while the application keeps the event loop for itself (INV-C7).
        "immediate": at once, since the LAC leaves before the application learns of the last acknowledgement (INV-C5); a
        lone append then takes the client three sends more.

        Raises NotEnoughBookies unless `ensemble` writable bookies answer, ConfigError, MetadataConflict for a
        `ledger_id` that is taken, or was a deleted ledger's.
        """
        if ledger_id is not None:
            check_ledger_id(ledger_id)
        check_type("publish", publish, Literal["immediate", "piggyback"])
        digest_type = DigestType.of(digest)
        wish, namespace = placement or self.config.placement, self.config.namespace
        custom = custom_of(metadata, wish, namespace)
        # Refuses impossible quorums before anything is asked.
        checked = new_metadata(
            (), ensemble, write_quorum, ack_quorum, digest_type, password, custom, 0, 0
        )
        self._warnings.check(checked)
        self.pool.tags.check(checked.namespace)
        await self._watch_bookies()
        rule = await self._rule_of_new(checked, wish)
        while True:
            chosen = await self._ensembles.new(
                checked, rule, allow_missing_bookies=allow_missing_bookies
            )
            domains = custom_of_new(rule, write_quorum, chosen.locations)
            custom = custom_of(metadata, rule, namespace, self._ensembles.cluster_rule, domains)
            value = replace(
                checked,
                ensemble_size=len(chosen.bookies),
                fragments=(Fragment(0, chosen.bookies),),
                password=password if self.config.passwords_in_metadata or not password else None,
                custom=dict(custom or {}),
                created_ms=int(time.time() * 1000),
                creation_token=secrets.randbits(62),
            )
            if ledger_id is None:
                ledger_id = await self.records.draw_ledger_id()
            try:
                known = await self._create(ledger_id, value)
            except Unauthorized:
                # A gateway may go by a rule that was changed since this client has read it.
                self._forget_rules()
                before, rule = rule, await self._rule_of_new(checked, wish)
                if rule == before:
                    raise
            else:
                break
        if chosen.away:
            await self.marks.update(ledger_id, add=owed_by(chosen.away))
        await self._ensembles.note_created(ledger_id, value, rule)
        flags = codec.FLAG_DEFERRED_SYNC if deferred_sync else 0
        requests = LedgerRequests(ledger_id, digest_type, password, flags, value.creation_token)
        options = writer_options(self.config, deferred_sync, chosen.away)
        machine = WriterMachine(ledger_id, known, options, self.pool.known.describe_trouble)
        io = await self._io(requests, value)
        writer = LedgerWriter(machine, io, self.config, explicit_ids=explicit_ids)
        self._keep_writer(writer, publish)
        return writer

    def _keep_writer(
        self, writer: LedgerWriter, publish: Literal["immediate", "piggyback"]
    ) -> None:
        writer.publish_at_once(is_wanted=publish == "immediate")
        if self._lac_guard is not None:
            writer.guarded_by(self._lac_guard)
        self._writers.add(writer)
        meter = meter_of(self.config.tracing)
        if meter is not None and STREAM_KEY not in writer.metadata.custom:
            writer.measure(meter)

    async def check_bookies(
        self,
        ensemble: int,
        write_quorum: int,
        ack_quorum: int,
        *,
        placement: PlacementConfig | None = None,
        allow_missing_bookies: bool = False,
        namespace: str = "",
    ) -> None:
        """Raise NotEnoughBookies or Unauthorized unless such a ledger could be made now; see `create_ledger`."""
        self.pool.tags.check(namespace or self.config.namespace)
        shape = shape_of(ensemble, write_quorum, ack_quorum)
        wish = placement or self.config.placement
        if (
            not namespace
        ):  # else `placement` has its rule: a stream's policy is not just its namespace's
            wish = await self._narrowed_by_namespace(self.config.namespace, wish)
        rule = await self._ensembles.rule_of_new(wish)
        custom_of_new(rule, write_quorum, {})
        await self._ensembles.new(shape, rule, allow_missing_bookies=allow_missing_bookies)

    async def _rule_of_new(self, shape: LedgerMetadata, wish: PlacementConfig) -> PlacementConfig:
        """Return the rule of a new ledger. Raises ConfigError."""
        if STREAM_KEY not in shape.custom:  # else its stream's policy has narrowed the wish
            wish = await self._narrowed_by_namespace(shape.namespace, wish)
        rule = await self._ensembles.rule_of_new(wish)
        custom_of_new(rule, shape.write_quorum, {})  # refuses what no append could keep to
        return rule

    def _forget_rules(self) -> None:
        self._ensembles.forget_rules()

    async def _narrowed_by_namespace(
        self, namespace: str, wanted: PlacementConfig
    ) -> PlacementConfig:
        """Return what is wanted of a ledger of a namespace; namespaces, and their rules, are known above this class."""
        del namespace
        return wanted

    async def _watch_bookies(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            try:
                await self._store.watch_bookies(self._bookies_changed)
            except BaseException:
                self._is_watching = False
                raise
            self.pool.is_watched = self._store.announces_changes

    async def _create(self, ledger_id: LedgerId, value: LedgerMetadata) -> VersionedLedger:
        try:
            version = await self._store.call(lambda store: store.create_ledger(ledger_id, value))
        except (MetadataConflict, MetadataUnavailable):
            # The answer of a creation that took effect may have been lost: the token tells.
            found: VersionedLedger | None
            try:
                found = await self._store.read_ledger(ledger_id)
            except NoSuchLedger:
                found = None
            if found is None or found.metadata.creation_token != value.creation_token:
                raise
            return found
        return VersionedLedger(value, version)

    async def open_ledger(
        self,
        ledger_id: LedgerId,
        recovery: bool = True,
        digest: str | None = None,
        password: bytes = b"",
    ) -> LedgerReader:
        """Open a ledger for reading. `digest` None: what its metadata names.

        With `recovery`, a ledger that is not closed is fenced, so that its writer can append no more, and closed behind
        everything that was ever acknowledged. Without, the reader follows the writer.

        Raises NoSuchLedger, Unauthorized, ConfigError (another digest), and what recovery meets: NotEnoughBookies,
        DigestMismatch, MetadataUnavailable; the same call may then succeed later, whoever makes it.
        """
        known = await self._store.read_ledger(ledger_id)
        digest_type = digest_to_open_with(ledger_id, known.metadata, digest, password)
        requests = LedgerRequests(
            ledger_id, digest_type, password, 0, known.metadata.creation_token
        )
        io = await self._io(requests, known.metadata)
        if recovery and not known.metadata.is_closed:
            known = await self._recovered(known, io)
            self.repairs.check_recovered(ledger_id, known.metadata)
        reader = LedgerReader(known.metadata, io, self.config, self._store.watch_ledger)
        meter = meter_of(self.config.tracing)
        if meter is not None and STREAM_KEY not in known.metadata.custom:
            reader.measure(meter)
        return reader

    async def _recovered(self, known: VersionedLedger, io: LedgerIo) -> VersionedLedger:
        options = RecoveryOptions(
            pacing=pacing_of(self.config), metadata_timeout_s=self.config.metadata_timeout
        )
        recovery = RecoverLedger(io.ledger_id, known, options)
        recovered = await run(recovery, io)
        log_replacements(self.pool, io.ledger_id, "recovery", recovery.stats.replacements)
        return recovered

    async def close_accepting_loss(
        self, ledger_id: LedgerId, *, password: bytes = b"", dry_run: bool = False
    ) -> AcceptedLoss:
        """Close a ledger that `open_ledger` cannot recover, behind the last entry that can be found.

        Entries may be given up that were acknowledged; the result names them, and the bookies that could not answer.
        Call it only after `open_ledger` failed with NotEnoughBookies or DigestMismatch and the bookies do not come
        back. `dry_run`: only look, and change nothing. A ledger that is closed stays as it is.

        Raises NoSuchLedger, Unauthorized, MetadataUnavailable, MetadataConflict.
        """
        known = await self._store.read_ledger(ledger_id)
        digest_type = digest_to_open_with(ledger_id, known.metadata, None, password)
        requests = LedgerRequests(
            ledger_id, digest_type, password, 0, known.metadata.creation_token
        )
        io = await self._io(requests, known.metadata)
        closing = CloseAcceptingLoss(
            ledger_id,
            known,
            pacing_of(self.config),
            self.config.metadata_timeout,
            is_dry_run=dry_run,
        )
        loss = await run(closing, io)
        if loss.is_closed:
            _log.warning(
                "client.closed_with_loss",
                ledger_id=ledger_id,
                last_entry_id=loss.last_entry_id,
                given_up=str(loss.given_up),
                unanswered=", ".join(sorted(loss.unanswered)),
            )
        return loss

    async def delete_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> None:
        """Delete a ledger: its metadata at once, its data when bookies get to it. NoSuchLedger if there is none.

        Behind the deletion of an open one bookies are fenced, as far as they answer: when this returns no append is
        acknowledged any more, and its writer's next one raises NoSuchLedger. A deletion that is refused fences nobody.
        """
        check_ledger_id(ledger_id)
        io: LedgerIo | None = None
        try:
            known = await self._store.read_ledger(ledger_id)
        except StorageError:
            if password is not None:
                raise
            # Nobody can append to, or fence, what nobody can read.
        else:
            if password is not None:
                check_password(ledger_id, known.metadata, password)
            if not known.metadata.is_closed:
                with contextlib.suppress(Error):
                    io = await self._io_of(ledger_id, known.metadata, password)
        await self._store.call(lambda store: delete_ledger(store, ledger_id))
        if io is not None:
            await self._fence_deleted(known.metadata, io)

    async def _io_of(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, password: bytes | None
    ) -> LedgerIo:
        password = password or metadata.password or b""
        digest_type = digest_to_open_with(ledger_id, metadata, None, password)
        requests = LedgerRequests(ledger_id, digest_type, password, 0, metadata.creation_token)
        return await self._io(requests, metadata)

    async def _fence_deleted(self, metadata: LedgerMetadata, io: LedgerIo) -> None:
        """Fence a ledger that metadata has no more, at so many bookies that none has an ack quorum, if they answer."""
        ensemble = metadata.fragments[-1].ensemble
        unfenced_max, fenced, answers = metadata.ack_quorum - 1, 0, 0
        is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_outcome(outcome: Answer | Error) -> None:
            nonlocal fenced, answers
            answers += 1
            fenced += not isinstance(outcome, Error) and outcome.status in FENCED_TOO
            if max(fenced + unfenced_max, answers) >= len(ensemble) and not is_over.done():
                is_over.set_result(None)

        fence = ReadEntry(0, fence=True)
        asked = [
            self.pool.peer(bookie_id).send_request(
                lambda request_id: io.requests.frame(fence, request_id),
                FENCE_S,
                on_outcome,
                io.requests.tag,
            )
            for bookie_id in ensemble
        ]
        await asyncio.wait([is_over], timeout=FENCE_S)
        for one in asked:
            one.cancel()
        if fenced + unfenced_max < len(ensemble):
            _log.warning(
                "client.deleted_unfenced", ledger_id=io.ledger_id, reason="too few bookies answered"
            )

    async def fence(self, ledger_id: LedgerId, password: bytes | None = None) -> bool:
        """Fence and close a stream's ledger that is about to be deleted. False: too few bookies answered in time."""
        try:
            async with asyncio.timeout(FENCE_S):
                known = await self._store.read_ledger(ledger_id)
                if not known.metadata.is_closed:
                    await self._recovered(
                        known, await self._io_of(ledger_id, known.metadata, password)
                    )
        except NoSuchLedger:
            return True
        except (Error, TimeoutError) as error:
            reason = str(error) or f"it took more than {FENCE_S:g} s"
            _log.warning("client.deleted_unfenced", ledger_id=ledger_id, reason=reason)
            return False
        return True

    @raised_again
    async def list_ledger_ids(self) -> AsyncGenerator[list[LedgerId], None]:
        """Yield the ids of all ledgers, a page at a time, ascending; no ledger's metadata is read."""
        pages = LedgerIdPages()
        while pages.is_more:
            if page := await self._store.call(pages.read):
                yield page

    @raised_again
    async def list_ledgers(self) -> AsyncGenerator[LedgerInfo, None]:
        """Yield all ledgers by id; those that come or go meanwhile may be in it or not.

        One whose metadata cannot be read is logged and left out (INV-M17).
        """
        after = -1
        while page := await self._store.call(lambda store: store.list_ledgers(after)):  # noqa: B023
            for offset in range(0, len(page), LEDGERS_AT_ONCE):
                some = page[offset : offset + LEDGERS_AT_ONCE]
                found = await self._store.call(lambda store: store.read_ledgers(some))  # noqa: B023 -- at once
                for ledger_id, read in zip(some, found, strict=True):
                    if isinstance(read, VersionedLedger):
                        yield LedgerInfo(ledger_id, read.metadata, read.version)
            after = page[-1]

    async def ledger_info(self, ledger_id: LedgerId) -> LedgerInfo:
        """Return a ledger's metadata; NoSuchLedger if there is none."""
        ledger = await self._store.read_ledger(ledger_id)
        return LedgerInfo(ledger_id, ledger.metadata, ledger.version)

    async def is_closed(self, ledger_id: LedgerId) -> bool:
        """Return whether the ledger is closed, by what its metadata says now. NoSuchLedger."""
        return (await self._store.read_ledger(ledger_id)).metadata.is_closed

    @raised_again
    async def watch_ledger(self, ledger_id: LedgerId) -> AsyncGenerator[LedgerInfo, None]:
        """Yield a ledger's metadata now, and again after changes, of which several may be told as one.

        Ends when the ledger is deleted; NoSuchLedger if there is none at first.
        """
        async with contextlib.aclosing(self._store.follow_ledger(ledger_id)) as changes:
            async for change in changes:
                yield LedgerInfo(ledger_id, change.metadata, change.version)

    async def edit_metadata(
        self, ledger_id: LedgerId, changes: Mapping[str, bytes | None]
    ) -> LedgerInfo:
        """Set (or with None remove) keys of a ledger's custom metadata; return what holds then.

        By compare-and-set: nobody's change of anything else is lost. MetadataUnavailable: it may have taken effect.
        """
        known = await self._store.read_ledger(ledger_id)
        decide = custom_metadata_change(changes)
        update = MetadataUpdate(decide, known, self.config.metadata_timeout)
        updated = await self.run_procedure(ledger_id, known.metadata, update)
        return LedgerInfo(ledger_id, updated.metadata, updated.version)

    async def run_procedure(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, procedure: Procedure[T]
    ) -> T:
        """Run a procedure of fastbk/replication about a ledger and return its result; for tools.

        Digest and password are those that the metadata names.
        """
        digest_type = metadata.digest_type or DigestType.CRC32
        requests = LedgerRequests(
            ledger_id, digest_type, metadata.password or b"", 0, metadata.creation_token
        )
        return await run(procedure, await self._io(requests, metadata))

    async def call_store(self, call: Callable[[MetadataStore], T]) -> T:
        """Return `call(store)` of the metadata store, in a thread of the client's; for tools."""
        return await self._store.call(call)

    async def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now."""
        return await self.pool.bookies()

    @property
    def placements_short(self) -> int:
        """How often this client chose bookies that keep less than a rule's minimum, which was not enforced."""
        return self._ensembles.short.count

    # --- life --------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, object]:
        """Return figures of the whole client and of its writers that are open."""
        writers = {writer.ledger_id: writer.stats() for writer in self._writers}
        return {
            "writers": writers,
            "under_replicated": sum(sum(one.under_replicated.values()) for one in writers.values()),
            "placements_short": self.placements_short,
            "traffic": {
                distance.label: dict(zip(Traffic.FIELDS, counts, strict=True))
                for distance, counts in self.pool.traffic.totals().items()
            },
        }

    def _report(self, error: BaseException) -> None:
        _log.error("client.connection_failed", reason=repr(error), failed=error)

    def mark_forked(self) -> None:
        """Make this client refuse everything: it lives in a forked child, its sockets are the parent's."""
        self._store.closed = "this client was made before a fork: make a new one in the child"
        self.pool.is_closed = True
        error = ClientClosed(self._store.closed)
        for writer in self._writers:
            writer.block(error)
        for attached in self.attached:
            attached.mark_forked(error)

    async def settle(self, timeout_s: float) -> list[str]:
        """Wait until all that open writers and cursors took is stored or has failed; for `fastbk.sync`, before `close`.

        Returns, and logs, a line for each that has not stored it after `timeout_s` seconds, or has failed: callers may
        not wait for it.
        """
        lost: list[str] = []
        ledgers = [writer for writer in self._writers if STREAM_KEY not in writer.metadata.custom]
        unsettled: list[Settling] = [one for one in (*self.unsettled, *ledgers) if one.is_unsettled]
        if not unsettled:
            return lost
        tasks = [asyncio.ensure_future(one.until_settled()) for one in unsettled]
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for one, task in zip(unsettled, tasks, strict=True):
            task.cancel()
            reason = (
                f"it took more than {timeout_s:g} s" if task in late else str(one.trouble or "")
            )
            if reason:
                lost.append(f"{one.label} may be lost: {reason}")
                _log.error(one.lost_event, of=one.label, reason=reason)
        await asyncio.gather(*tasks, return_exceptions=True)
        return lost

    async def close(self, *, timeout: float | None = None) -> None:
        """End writers that are left (their ledgers stay open), send what was written, close.

        Cancelled, it goes on. Called again, it waits for the first call's end; the first one's timeout holds.
        """
        limit_s = checked_timeout(timeout, self.config.close_timeout)
        await self._end.reach(lambda: self._close(limit_s))

    async def _close(self, limit_s: float) -> None:
        await self.repairs.close()
        if self._store.closed is not None:
            return
        self._store.refuse("this client is closed: make a new one")
        _open_clients.discard(self)
        for attached in self.attached:
            await attached.close(limit_s)
        for writer in list(self._writers):
            writer.abandon(
                ClientClosed(
                    f"the client was closed while ledger {writer.ledger_id} was open: close writers first",
                    outcome="unknown",
                )
            )
        self._refreshing.cancel()
        self._ensembles.cancel()
        self._ensembles.short.close()
        if self._lac_guard is not None:
            await self._lac_guard.end(limit_s)
        await self.pool.close(limit_s)
        await self.marks.close(limit_s)
        await self.locks.close(limit_s)
        await self._store.close(limit_s)

    async def __aenter__(self) -> Self:
        await self._store.call(lambda store: store.instance_id())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(uri: str | MetadataStore | None = None, **options: Unpack[ClientOptions]) -> Client:
    """Return a client of the cluster whose metadata is at `uri`; see `ClientConfig` for the options. No I/O.

    `uri` None: the variable FASTBK_METADATA. Raises ConfigError if neither is there, and for unknown options.
    """
    if uri is None:
        uri = uri_or_default(uri, "give connect() a metadata URI")
    return Client(uri, config_of(options))


def _after_fork_in_child() -> None:
    for client in list(_open_clients):
        client.mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)


# --- repairs of copies that were missing ----------------------------------------------------------


CLOSE_WAIT_S = 1.0
"""How long a client that is closed goes on with checks and repairs."""


class CopyRepairs:
    """The repairs of copies that were missing when this client closed or recovered a ledger, one at a time.

    A ledger that is closed while a bookie restarts misses copies there, and its writer has marked them. This client
    tries again while it lives: once the bookie is registered and takes adds, it checks the marked entries there, copies
    those that the bookie lacks from the others, and removes the mark. A read-only bookie would store these copies in
    the room that it keeps for recoveries and fences. What the client has not repaired when it is closed stays marked.

    The logger `fastbk.client` reports why a repair did not succeed, once for each reason, and when one has succeeded.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue = RepairQueue()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()
        self._reasons: dict[tuple[LedgerId, MissingReplica], str] = {}

    @property
    def waiting(self) -> int:
        """How many ledgers wait for a repair."""
        return len(self._queue)

    @property
    def is_checking(self) -> bool:
        """Whether a recovered ledger is being checked."""
        return bool(self._checks)

    def add(self, ledger_id: LedgerId, missing: tuple[MissingReplica, ...]) -> None:
        """Repair these when their bookies are there."""
        if not missing:
            return
        self._queue.add(ledger_id, missing)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._go_on())

    def check_recovered(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Check a ledger that was recovered."""
        task = asyncio.get_running_loop().create_task(self._check(ledger_id, metadata))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        client = self._client
        try:
            checking = checking_of(ledger_id, metadata, await client.list_bookies())
            await client.run_procedure(ledger_id, metadata, checking)
            # Also what the dead writer had marked.
            self.add(ledger_id, (await client.marks.read(ledger_id)).missing)
        except Error as error:
            _log.warning("ledger.copies_unchecked", ledger_id=ledger_id, reason=str(error))

    def bookies_changed(self) -> None:
        """Bookies came or went: try again at once."""
        self._queue.hurry()
        self._changed.set()

    async def close(self) -> None:
        """Do what can be done within a moment, and give up the rest; it stays marked."""
        await self._stop()
        if (self._checks or len(self._queue)) and not self._client.pool.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WAIT_S):
                    if self._checks:
                        await asyncio.wait(self._checks)
                        await self._stop()
                    if len(self._queue):
                        self._queue.hurry()
                        await self._try_all()
        self._queue.clear()
        for check in self._checks:
            check.cancel()
        await self._stop()

    async def _stop(self) -> None:
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while len(self._queue):
                self._changed.clear()
                await self._try_all()
                if len(self._queue):
                    await self._pause(jittered(max(0.0, self._queue.due_s - loop.time())))
        finally:
            self._task = None

    async def _pause(self, pause_s: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), pause_s)
        except TimeoutError:
            return

    async def _try_all(self) -> None:
        queue, now_s = self._queue, asyncio.get_running_loop().time()
        try:
            listed = await self._client.list_bookies()
        except Error:
            listed = []
        writable = {one.service.bookie_id for one in listed if one.writable}
        queue.begin_round(writable, now_s)
        while (step := queue.next()) is not None:
            await self._repair(*step)
        if not len(queue):
            self._reasons.clear()

    async def _repair(self, ledger_id: LedgerId, missing: MissingReplica) -> None:
        repairing = RepairMissing(ledger_id, missing, self._client.pool.known.distance)
        try:
            metadata = (await self._client.ledger_info(ledger_id)).metadata
            if not await self._client.run_procedure(ledger_id, metadata, repairing):
                self._failed(ledger_id, missing, repairing.reason)
                return
        except NoSuchLedger:
            self._queue.deleted(ledger_id)
        except Error as error:
            self._failed(ledger_id, missing, str(error))
        except Exception as error:  # noqa: BLE001 -- a fault of ours must not end the other repairs
            self._failed(ledger_id, missing, repr(error), error)
        else:
            self._queue.repaired(ledger_id, missing)
            _log.info("ledger.copies_repaired", **_fields(ledger_id, missing))

    def _failed(
        self,
        ledger_id: LedgerId,
        missing: MissingReplica,
        reason: str,
        fault: Exception | None = None,
    ) -> None:
        """Log why a repair did not succeed, unless the last attempt failed for the same reason."""
        if self._reasons.get((ledger_id, missing)) != reason:
            self._reasons[ledger_id, missing] = reason
            fields = _fields(ledger_id, missing)
            _log.warning("ledger.copies_unrepaired", failed=fault, reason=reason, **fields)


def _fields(ledger_id: LedgerId, missing: MissingReplica) -> dict[str, object]:
    return {
        "ledger_id": ledger_id,
        "bookie": missing.bookie_id,
        "first_entry_id": missing.first_entry_id,
        "last_entry_id": missing.last_entry_id,
    }
