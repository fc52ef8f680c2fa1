"""The calls of a metadata store: ledgers, identities and registrations of bookies, and generic records.

A store is plain blocking calls, usable from any thread; the asyncio client calls it in threads of its own.
Everything changes by compare-and-set on the version that was read (INV-M1): a conflict means read again and
decide anew. A call that fails with MetadataUnavailable may have taken effect: re-read before trying again.

Errors: NoSuchLedger, MetadataConflict, MetadataUnavailable, ClientClosed (after `close`, or in a forked child).

By a store's `Coordination` processes of AutoRecovery share the work of one cluster: its switches, the auditor's
election, locks of ledgers. In ZooKeeper it is Apache's nodes and bytes (`fastbk.meta.zookeeper.underreplication`), so
fastbk's processes and Apache's exclude one another. In sqlite and in memory it is records with leases
(`fastbk.meta.sqlite.coordination`).

`Subscriptions`, at the end, is what all stores have behind their watches.

Decision 153.
"""

from __future__ import annotations

import enum
import json
import re
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from fastbk.errors import ConfigError, IdentityChanged, MetadataConflict, NoSuchLedger, StorageError
from fastbk.meta.records import BadRecord, bad_record
from fastbk.model.cookie import Cookie
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import checked_integer
from fastbk.printable_text import printable

if TYPE_CHECKING:
    from fastbk.meta.records import RecordStore
    from fastbk.meta.replica_marks import ReplicaMarks

# Endpoints of a registration: the protocols of fastbk and of Apache on the data port, and the HTTP server, which has
# the name that Apache's bookies give theirs.
FASTBK_PROTOCOL = "fastbk"
APACHE_PROTOCOL = "bookie-rpc"
HTTP_PROTOCOL = "http"
HTTPS_PROTOCOL = "https"
HTTP_NAME = "httpserver"
TLS_EXTENSION = "tls"
"""The extension of an endpoint where a client may use TLS, as Apache's bookies register it."""
READS_ONLY_PROPERTY = "reads_only"
"""The property of a registration that says why the bookie takes no adds."""
REASON_CHARACTERS_MAX = 500
"""Longest such reason."""
NO_CLUSTER_REMEDY = (
    "A new cluster is made by `fastbk metadata init` (or `fastbk dev`). If there was one and its metadata is lost, make"
    " none, and start no bookie: stop them all, and run `fastbk metadata collect` and `fastbk metadata rebuild`"
)
"""Remedy in the error where a URI leads to no cluster: an empty new one would hide a lost one."""
LIST_PAGE_COUNT = 1000
LEDGERS_AT_ONCE = 100
"""Whose metadata is in memory together where all ledgers are read (INV-M18): a client may give one 256 KiB."""
IDS_PAGE_COUNT_MAX = 64_000
IDS_PAGE_QUICK_S = 0.25
IDS_PAGE_SLOW_S = 1.0
"""Pages of ids grow where they come quicker than the first, and shrink where they take longer than the second."""
PORT_MAX = 65_535
HOST_CHARACTERS_MAX = 255


class VersionedLedger(msgspec.Struct, frozen=True):
    """Metadata as it was read, and the version that an update of it has to name."""

    metadata: LedgerMetadata
    version: int


LedgerRead = VersionedLedger | BadRecord | None
"""What a ledger's id leads to; None: there is no such ledger."""


def ledger_read(ledger_id: LedgerId, raw: bytes, version: int) -> VersionedLedger | BadRecord:
    """Return what a ledger's record says, or what is wrong with it: it must not hide the others (INV-M17)."""
    try:
        return VersionedLedger(LedgerMetadata.from_bytes(raw), version)
    except StorageError as error:
        return bad_record(f"ledger {ledger_id}", error, version)


def one_ledger(ledger_id: LedgerId, found: LedgerRead) -> VersionedLedger:
    """Return what was found of a ledger. Raises NoSuchLedger, StorageError."""
    if found is None:
        raise NoSuchLedger(f"there is no ledger {ledger_id}", ledger_id=ledger_id)
    if isinstance(found, BadRecord):
        raise found.error(ledger_id)
    return found


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a bookie."""

    host: str
    port: int
    protocol: str = FASTBK_PROTOCOL
    name: str = "bookie"
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieService:
    """How to reach a bookie. `incarnation` changes when its data was lost."""

    bookie_id: BookieId
    incarnation: int
    endpoints: tuple[Endpoint, ...]
    properties: dict[str, str] = field(default_factory=dict)

    def endpoint(self, protocol: str = FASTBK_PROTOCOL) -> Endpoint | None:
        """Return the first endpoint that speaks `protocol`."""
        return next((one for one in self.endpoints if one.protocol == protocol), None)

    def client_endpoint(self) -> Endpoint | None:
        """Return where clients reach it: in our protocol where it speaks that, else in Apache's."""
        return self.endpoint() or self.endpoint(APACHE_PROTOCOL)

    def check(self) -> BookieService:
        """Return it, if a bookie can have written it: anybody else may have. Raises StorageError."""
        for one in self.endpoints:
            if not 0 <= one.port <= PORT_MAX:
                raise StorageError(f"port {one.port} is none")
            if not (
                1 <= len(one.host) <= HOST_CHARACTERS_MAX
                and one.host.isprintable()
                and " " not in one.host
            ):
                raise StorageError(f"{printable(one.host, 100)!r} is no host")
        if not 0 <= self.incarnation < 2**64:
            raise StorageError(f"incarnation {self.incarnation} has more than 64 bits")
        return self


@dataclass(frozen=True, slots=True)
class BookieRegistration:
    """A bookie that is alive: its lease has not run out. Read-only ones take no normal adds."""

    service: BookieService
    writable: bool


class DirectoryIdentity(msgspec.Struct, frozen=True):
    """What `identity.json` of one directory says: `role` is "journal" or "ledger", the id is hex.

    `pair`: the number of the journal and index that it belongs to.
    """

    directory_id: str
    role: str
    pair: int = 0


class BookieIdentity(msgspec.Struct, frozen=True):
    """Which data a bookie id stands for: compared with its directories at every start (INV-D1).

    `starts` counts the starts of this incarnation, in the directories first: directories that know of fewer are an old
    copy.
    """

    bookie_id: BookieId
    incarnation: int
    directories: tuple[DirectoryIdentity, ...]
    starts: int = 0

    def cookie(self, instance_id: str) -> Cookie:
        """Return the cookie that belongs to it; the cluster's id may be empty."""
        journals, ledgers = (
            tuple(one.directory_id for one in self.directories if one.role == role)
            for role in ("journal", "ledger")
        )
        return Cookie(self.bookie_id, journals, ledgers, instance_id)


class BadIdentity(msgspec.Struct, frozen=True):
    """The identity of a bookie that is known, but nobody can read what is known (INV-M17)."""

    bookie_id: BookieId
    bad: BadRecord


class VersionedIdentity(msgspec.Struct, frozen=True):
    """An identity as it was read, and the version that a change of it has to name."""

    identity: BookieIdentity
    version: int
    written_s: float | None = None
    """When, by the clock of a store that has one of its own."""


class IdentityVersion(msgspec.Struct, frozen=True):
    """The identity of a bookie as it was at one moment. It gets a new version with each start and each loss of data."""

    bookie_id: BookieId
    version: int

    def changed(self) -> IdentityChanged:
        """Return what an update raises that depends on it."""
        return IdentityChanged(
            f"bookie {self.bookie_id} was started again, or lost its data, since it was given copies: give it what it"
            " lacks, then try again"
        )


def unreadable_service(bookie_id: BookieId, reason: object) -> BookieService:
    """Return what stands for a registration that cannot be read: it must not hide the other bookies (INV-M17)."""
    bad_record(
        f"registration of bookie {bookie_id}", f"{reason}; restart the bookie, which writes it anew"
    )
    return BookieService(bookie_id, 0, ())


def unreadable_identity(bookie_id: BookieId, reason: object, version: int) -> BadIdentity:
    """Return what stands for an identity that cannot be read."""
    return BadIdentity(bookie_id, bad_record(f"identity of bookie {bookie_id}", reason, version))


def deleted_before(ledger_id: LedgerId) -> MetadataConflict:
    """Return what `create_ledger` raises for the id of a ledger that was deleted."""
    return MetadataConflict(
        f"ledger {ledger_id} was deleted: choose another id", ledger_id=ledger_id
    )


class Watch(Protocol):
    """A subscription. Its callback runs in a thread of the store's and must only hand over.

    INV-M16: until it is closed it tells of every change, also of one while the store's connection was lost. Whoever
    waits for a change looks at nothing meanwhile.
    """

    def close(self) -> None:
        """End it; the callback may run once more if it was about to."""


class Lease(Protocol):
    """A bookie's registration while it is held."""

    renew_interval_s: float
    """Call `renew` at least this often; a lease that is not renewed for about three times as long runs out."""

    def renew(self) -> None:
        """Stay registered. Raises MetadataConflict when another holder took the bookie id."""

    def set_writable(self, writable: bool) -> None:
        """Say whether normal adds are taken; also renews."""

    def close(self) -> None:
        """Deregister; nothing happens if the lease is another's by now. A second call does nothing."""


class MetadataStore(Protocol):
    """A metadata store; see the module's text for what holds for all calls."""

    uri: str

    @property
    def records(self) -> RecordStore:
        """Small values at paths, for what is built on ledgers."""

    @property
    def marks(self) -> ReplicaMarks:
        """Marks of under-replicated ledgers."""

    @property
    def coordination(self) -> Coordination:
        """How processes of AutoRecovery share its work."""

    def instance_id(self) -> str:
        """Return the id of this cluster, drawn when the store was first opened."""

    def next_ledger_id(self) -> LedgerId:
        """Return an id that no caller got before and no deleted ledger had."""

    def highest_drawn_id(self) -> LedgerId:
        """Return the highest id that `next_ledger_id` may have returned, to anybody, also to Apache's clients; -1."""

    def move_ids_above(self, ledger_id: LedgerId) -> None:
        """Have ids be drawn above this one only. Raises StorageError where the layout has no way to (INV-M3)."""

    def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> int:
        """Store a new ledger and return its version; MetadataConflict if that id is taken or was, by a ledger deleted.

        Bookies may still hold entries of a deleted ledger, or remember for days that it is to be freed. So a store
        never forgets a deleted id.
        """

    def read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        """Return the ledger's metadata; NoSuchLedger if there is none, StorageError if it cannot be read."""

    def read_ledgers(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRead]:
        """Return the metadata of several ledgers, in their order; None for those that are not there.

        One that cannot be read is a BadRecord: that ledger is there, and keeps what it has (INV-M17).

        For whoever needs many: a page of a listing takes about as long as a few single calls.
        """

    def update_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None = None,
    ) -> int:
        """Replace the metadata if it still has `version`; return the new version. MetadataConflict, NoSuchLedger.

        `if_identity`: a bookie's identity that has to be the same in that moment, too, else IdentityChanged.
        """

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Remove the ledger (if it still has `version`); bookies free its data later. NoSuchLedger.

        Raises MetadataOnHold while metadata is on hold (INV-M4).
        """

    def list_ledgers(
        self, after: LedgerId = -1, count_max: int = LIST_PAGE_COUNT
    ) -> list[LedgerId]:
        """Return up to `count_max` ids above `after`, ascending; fewer only at the end.

        Going on with the last id of each page, a ledger that exists all the time is in one of them: an id missing
        from a whole listing was deleted, or created after the listing began (take your own set first).
        """

    def watch_ledger(self, ledger_id: LedgerId, callback: Callable[[LedgerId], None]) -> Watch:
        """Call `callback(ledger_id)` after each change or deletion from now on; changes may be told as one."""

    def register_bookie(self, service: BookieService, *, writable: bool) -> Lease:
        """Announce a bookie. A live lease of another incarnation: MetadataConflict; of the same one: taken over.

        The holder of an incarnation holds its directories' locks, so there is never a second one alive.
        """

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are alive, by id.

        One whose registration cannot be read has no endpoints: it is alive, and nobody can reach it (INV-M17).
        """

    def watch_bookies(self, callback: Callable[[], None]) -> Watch:
        """Call `callback()` after bookies came, went or changed between writable and read-only."""

    def read_identity(self, bookie_id: BookieId) -> VersionedIdentity | None:
        """Return what is known of that bookie's data, None if nothing. Raises StorageError if it cannot be read."""

    def write_identity(
        self, identity: BookieIdentity, version: int | None, *, replaced_cookie: bytes | None = None
    ) -> int:
        """Store an identity: `version` None = it must be new, else the version read. Returns the new version.

        `replaced_cookie`: a foreign cookie that a new identity may take the place of, if it still has these bytes.
        """

    def foreign_cookie(self, bookie_id: BookieId) -> bytes | None:
        """Return the cookie of a bookie of that id which is not fastbk's; None where there is none."""

    def delete_identity(self, bookie_id: BookieId, version: int) -> None:
        """Forget a bookie's identity if it still has `version`; MetadataConflict."""

    def list_identities(self) -> list[BookieIdentity | BadIdentity]:
        """Return all identities, by bookie id; what cannot be read of a bookie is bad, and it is known all the same."""

    def pulsar_racks(self) -> bytes | None:
        """Return what Pulsar's operators say of where bookies are (`fastbk.placement.pulsar_racks`); None: nothing."""

    def close(self) -> None:
        """Release everything; leases that are still held run out. A second call does nothing."""


@runtime_checkable
class GroupingStore(Protocol):
    """A store for which many changes are cheaper together: those with a commit to pay for each."""

    def group(self) -> AbstractContextManager[None]:
        """Make the calls of this block, by this thread, durable together, at its end; each keeps its own outcome.

        Results and errors of the calls count only once the block has ended; when its end raises, nobody knows of any.
        """


def all_ids(store: MetadataStore) -> Iterator[LedgerId]:
    """Yield the ids of all ledgers, ascending. Raises MetadataUnavailable."""
    return chain.from_iterable(_pages(store))


def all_ledgers(
    store: MetadataStore,
) -> Iterator[tuple[LedgerId, VersionedLedger | BadRecord]]:
    """Yield all ledgers with their metadata, by rising id, but for those deleted meanwhile. Raises Error."""
    for page in _pages(store):
        for at in range(0, len(page), LEDGERS_AT_ONCE):
            some = page[at : at + LEDGERS_AT_ONCE]
            for ledger_id, read in zip(some, store.read_ledgers(some), strict=True):
                if read is not None:
                    yield ledger_id, read


def _pages(store: MetadataStore) -> Iterator[list[LedgerId]]:
    after = -1
    while page := store.list_ledgers(after):
        yield page
        after = page[-1]


class LedgerIdPages:
    """Reads the ids of all ledgers, page by page; `is_more`: there may be another page.

    Pages begin small and grow: each one of ZooKeeper's reads again where it begins. Where ids lie far apart a page
    takes a request an id, and has the deadline of one call.
    """

    def __init__(self) -> None:
        self.is_more = True
        self._after: LedgerId = -1
        self._count = LIST_PAGE_COUNT

    def read(self, store: MetadataStore) -> list[LedgerId]:
        """Return the next page, ascending; an empty one only at the end."""
        began_s = time.monotonic()
        page = store.list_ledgers(self._after, self._count)
        took_s = time.monotonic() - began_s
        self.is_more = len(page) == self._count
        if page:
            self._after = page[-1]
        if took_s < IDS_PAGE_QUICK_S:
            self._count = min(4 * self._count, IDS_PAGE_COUNT_MAX)
        elif took_s > IDS_PAGE_SLOW_S:
            self._count = max(self._count // 4, LIST_PAGE_COUNT)
        return page

    def all_of(self, store: MetadataStore) -> Iterator[list[LedgerId]]:
        """Yield all pages."""
        while self.is_more:
            yield self.read(store)


# --- registrations and identities as JSON, for stores but ZooKeeper ----------------------------------------------


def service_text(service: BookieService) -> str:
    """Return a registration's text."""
    fields = asdict(service)
    for one in fields["endpoints"]:
        if not one["extensions"]:
            del one["extensions"]  # version 0.1, which has no TLS, cannot read this field
    return json.dumps(fields)


def parse_service(text: str, bookie_id: BookieId | None = None) -> BookieService:
    """Return what a registration says. `bookie_id`: of the bookie that it has to be of. Raises StorageError."""
    try:
        service = msgspec.json.decode(text, type=BookieService)
    except (ValueError, TypeError, RecursionError) as error:
        raise StorageError(f"a bookie's registration is damaged: {error}") from error
    if bookie_id is not None and service.bookie_id != bookie_id:
        raise StorageError(
            f"a bookie's registration is damaged: it is of bookie {service.bookie_id}"
        )
    return service.check()


def identity_text(identity: BookieIdentity) -> str:
    """Return an identity's text."""
    return json.dumps(msgspec.to_builtins(identity))


def parse_identity(text: str, bookie_id: BookieId) -> BookieIdentity:
    """Return what an identity says. Raises StorageError."""
    try:
        identity = msgspec.json.decode(text, type=BookieIdentity)
    except (ValueError, TypeError, RecursionError) as error:
        raise StorageError(f"the identity of bookie {bookie_id} is damaged: {error}") from error
    if identity.bookie_id != bookie_id:
        raise StorageError(
            f"the identity of bookie {bookie_id} is damaged: it is of bookie {identity.bookie_id}"
        )
    return identity


# How processes of AutoRecovery share the work of one cluster.

UNREADABLE = "unreadable"
"""Stands for the name of whoever made a vote or lock that nobody can read."""
_NUMBER = re.compile(rb"\d{1,18}")


def stored_number(path: str, raw: bytes) -> int | None:
    """Return the number in a switch or the time of a check; None: it is none, so what holds without it holds (INV-M17).

    Without its delay a lost bookie waits as long as by default.
    """
    if _NUMBER.fullmatch(raw.strip()):
        return int(raw)
    bad_record(path, f"{raw[:100]!r} is no number; the default holds: setting it anew repairs it")
    return None


class Check(enum.Enum):
    """A check of the auditor; the values name where it stands when the check ended last."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class Vote(Protocol):
    """A vote in the auditor's election. It lasts until `close`, or until the session or lease behind it ends."""

    def is_elected(self) -> bool:
        """Return whether the voter is the auditor, by the store's own word (INV-H1). False once the session ended.

        The answer is as of now: ask again before each step that only the auditor may take.
        """

    @property
    def is_lost(self) -> bool:
        """Whether the vote is gone, as far as this process knows: a new vote is needed. Makes no request."""

    def close(self) -> None:
        """Withdraw the vote. A second call does nothing."""


class LedgerLock(Protocol):
    """The right to change one ledger's copies, until `release` or the end of the session or lease behind it."""

    ledger_id: LedgerId

    def is_held(self) -> bool:
        """Return whether the lock is still held; one read. Ask now and then while work goes on."""

    def release(self) -> None:
        """Give the lock back if it is still held (INV-H2). A second call does nothing."""


class Coordination(Protocol):
    """AutoRecovery's coordination in one metadata store."""

    # --- switches ------------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Return whether AutoRecovery is allowed to work (somebody has to run it besides)."""

    def enable(self) -> bool:
        """Let AutoRecovery work again; return False if it was allowed to before."""

    def disable(self) -> bool:
        """Let AutoRecovery rest; return False if it did so before."""

    def lost_bookie_delay_s(self) -> int | None:
        """Return how long a bookie may be away before its ledgers are marked; None: it was never set."""

    def set_lost_bookie_delay(self, seconds: int) -> None:
        """Set that delay, in seconds. The auditor checks for lost bookies at every write, also of the same number."""

    def trigger_audit(self) -> None:
        """Have the auditor check for lost bookies now. Raises ConfigError if there is none that would."""

    def check_time_ms(self, check: Check) -> int:
        """Return when a check ended last, in ms since 1970; -1: never."""

    def set_check_time(self, check: Check, time_ms: int) -> None:
        """Set that time; an old one lets the next auditor check at once."""

    def watch_switches(self, callback: Callable[[], None]) -> Watch:
        """Call back after AutoRecovery was enabled or disabled, or the delay was written, from now on."""

    # --- the auditor ---------------------------------------------------------------------------------------------

    def vote(self, voter: BookieId) -> Vote:
        """Stand for election. Of all votes the oldest one is elected."""

    def auditor(self) -> BookieId | None:
        """Return the elected auditor, None if there is none."""

    def watch_election(self, callback: Callable[[], None]) -> Watch:
        """Call back after votes came or went, from now on."""

    # --- locks ---------------------------------------------------------------------------------------------------

    def lock(self, ledger_id: LedgerId, holder: str) -> LedgerLock | None:
        """Take the lock of a ledger; None: somebody holds it, maybe this process. `holder`: a host's name."""

    def worker_of(self, ledger_id: LedgerId) -> str | None:
        """Return who holds a ledger's lock, None if nobody does."""

    def locks(self) -> Iterator[tuple[LedgerId, str]]:
        """Yield all locks with their holders; those that come or go meanwhile may be missed."""


class JoinedWatch:
    """Several watches that end together."""

    def __init__(self, watches: list[Watch]) -> None:
        self._watches = watches

    def close(self) -> None:
        """End all of them."""
        for one in self._watches:
            one.close()


DELAY_S_MAX = 2**31 - 1
"""Longest delay of lost bookies, in seconds, that Apache's auditor reads."""


def check_delay(seconds: object) -> int:
    """Return a delay of lost bookies that can be stored. Raises ConfigError: every way in comes here.

    Apache's auditor takes no other; a negative one would end each of its passes, and ours.
    """
    return checked_integer("lostBookieRecoveryDelay", seconds, 0, DELAY_S_MAX)


def trigger_audit(coordination: Coordination) -> None:
    """Do what `Coordination.trigger_audit` says: the auditor listens to writes of the delay; the number stays."""
    if not coordination.is_enabled():
        raise ConfigError("Autorecovery is disabled. So giving up!")
    if coordination.auditor() is None:
        raise ConfigError("No auditor elected, though Autorecovery is enabled. So giving up.")
    coordination.set_lost_bookie_delay(max(coordination.lost_bookie_delay_s() or 0, 0))


# Who watches what: subjects, the handles of those who watch them, and what was seen last.

# text: of records (`fastbk.meta.records`); None: the set of bookies
Subject = LedgerId | str | None
_log = LibraryLog("fastbk.meta")


class Watching(Protocol):
    """What hands out subscriptions."""

    def remove(self, handle: WatchHandle) -> None:
        """End a subscription."""


class WatchHandle:
    """One subscription."""

    def __init__(self, watcher: Watching, subject: Subject, callback: Callable[[], None]) -> None:
        self.subject = subject
        self.callback = callback
        self._watcher = watcher

    def close(self) -> None:
        """End the subscription."""
        self._watcher.remove(self)


def notify(handle: WatchHandle) -> None:
    """Call back; one callback's fault must not end the watches of all others."""
    try:
        handle.callback()
    except Exception as error:  # noqa: BLE001 -- it is the application's
        _log.error("metadata.watch_callback_failed", reason=repr(error), failed=error)


class Subscriptions:
    """The handles by subject, and what was seen of each. Its owner's lock guards it.

    Attributes:
        seen: what was seen last of each subject that has a handle.
    """

    def __init__(self) -> None:
        self.seen: dict[Subject, object] = {}
        self._handles: dict[Subject, dict[Hashable, WatchHandle]] = {}

    def __bool__(self) -> bool:
        return bool(self._handles)

    def add(self, handle: WatchHandle, now: object) -> None:
        """Take a handle; `now`: what is seen of its subject."""
        # A handle that is there already may still have to tell of an older state: leave what was seen.
        self.seen.setdefault(handle.subject, now)
        self._handles.setdefault(handle.subject, {})[id(handle)] = handle

    def remove(self, handle: WatchHandle) -> None:
        """Forget a handle. A second time does nothing."""
        handles = self._handles.get(handle.subject, {})
        handles.pop(id(handle), None)
        if not handles:
            self._handles.pop(handle.subject, None)
            self.seen.pop(handle.subject, None)

    def all(self) -> list[WatchHandle]:
        """Return all handles."""
        return [handle for handles in self._handles.values() for handle in handles.values()]

    def changed(self, subject: Subject, now: object) -> list[WatchHandle]:
        """Note what is seen of a subject; return the handles to notify: none where it was seen before."""
        if subject not in self.seen or self.seen[subject] == now:
            return []
        self.seen[subject] = now
        return list(self._handles[subject].values())
