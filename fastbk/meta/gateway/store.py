"""The metadata store of clients that reach it by gateways only: `gateway://host:3182;host2`. See `fastbk.meta.api`.

It has what clients need: ledgers, records, marks and the list of bookies. Bookies, AutoRecovery and tools that repair a
cluster use the metadata store itself: what they need and this one lacks raises ConfigError.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from fastbk.config import is_loopback, split_address
from fastbk.errors import ClientClosed, ConfigError, Error, MetadataUnavailable
from fastbk.meta.api import (
    LIST_PAGE_COUNT,
    BadIdentity,
    BookieIdentity,
    BookieRegistration,
    BookieService,
    IdentityVersion,
    Lease,
    LedgerRead,
    Subject,
    Subscriptions,
    VersionedIdentity,
    VersionedLedger,
    WatchHandle,
    ledger_read,
    notify,
    one_ledger,
    parse_identity,
    parse_service,
    unreadable_identity,
)
from fastbk.meta.gateway import messages
from fastbk.meta.gateway.messages import (
    ANSWER_BYTES_MAX,
    CONTENT_TYPE,
    KEYS_MAX,
    NAMES,
    PATH,
    REQUEST_BYTES_MAX,
    ChangeRow,
    Failure,
    LedgerRow,
    ReadStates,
    RecordRow,
    Request,
    encode,
    error_of,
)
from fastbk.meta.records import (
    Change,
    VersionedRecord,
    check_folder,
    check_path,
    children_subject,
    count_within,
    record_subject,
)
from fastbk.meta.replica_marks import LedgerMark, ReplicaMarks
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica, from_json, to_json
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import Retry
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions
from fastbk.web.client import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.meta.api import Coordination
    from fastbk.security.tls import RefreshedContext


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """How a client reaches gateways: the same as it reaches bookies by."""

    tls: TlsOptions | None
    credentials: Credentials | None

    @classmethod
    def from_environment(cls) -> GatewayAccess:
        """Return what FASTBK_TLS_... and FASTBK_TOKEN_FILE say. Raises ConfigError."""
        return cls(TlsOptions.from_environment(), Credentials.from_environment())


class Calls(Protocol):
    """What sends requests to gateways."""

    def call(self, request: messages.Request, kind: type[T]) -> T:
        """Return a request's result. Raises Error."""

    def close(self) -> None:
        """Close the connections."""


def open_gateway(servers: Sequence[str], access: GatewayAccess, timeout_s: float) -> GatewayStore:
    """Return the store behind some gateways, each as host:port. Nothing is sent yet. Raises ConfigError."""
    calls = GatewayCalls(servers, timeout_s, access.tls, access.credentials)
    return GatewayStore(f"{messages.SCHEME}://{';'.join(servers)}", calls, timeout_s)


class GatewayStore:
    """A `MetadataStore` behind gateways. Every call ends within about `timeout_s` seconds."""

    def __init__(self, uri: str, calls: Calls, timeout_s: float = 10.0) -> None:
        """`uri`: for messages. `calls`: how requests reach a gateway; they are closed with the store."""
        self.uri = uri
        self._timeout_ms = int(timeout_s * 1e3)
        self._calls = calls
        self._watches = GatewayWatches(self._states)
        self.records = GatewayRecords(self._calls, self._watches, self._timeout_ms)
        self.marks = GatewayMarks(self._calls, self.records, self._timeout_ms)

    @property
    def coordination(self) -> Coordination:
        """Raise ConfigError: processes that share repairs use the metadata store itself."""
        self._refuse("locks and switches of AutoRecovery")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(
            f"{self.uri}: a gateway offers no {what}: give the URI of the metadata store behind it (`zk://...`), with"
            " the rights that this needs there"
        )

    # --- ledgers -----------------------------------------------------------------------------------------------

    def instance_id(self) -> str:
        """Return the cluster's id."""
        return self._calls.call(messages.InstanceId(self._timeout_ms), str)

    def next_ledger_id(self) -> LedgerId:
        """Draw the next ledger id."""
        return self._calls.call(messages.DrawId(self._timeout_ms), int)

    def highest_drawn_id(self) -> LedgerId:
        """Raise ConfigError."""
        self._refuse("counter of ledger ids")

    def move_ids_above(self, ledger_id: LedgerId) -> None:
        """Raise ConfigError."""
        self._refuse("counter of ledger ids")

    def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> int:
        """Store a new ledger. One with the same creation token is taken for ours when an answer was lost."""
        request = messages.CreateLedger(self._timeout_ms, ledger_id, metadata.to_bytes(), False)
        return self._calls.call(request, int)

    def read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        """Return a ledger's metadata and version."""
        return one_ledger(ledger_id, *self.read_ledgers([ledger_id]))

    def read_ledgers(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRead]:
        """Return several ledgers' metadata."""
        ledgers: list[LedgerRead] = []
        while len(ledgers) < len(ledger_ids):
            some = tuple(ledger_ids[len(ledgers) : len(ledgers) + KEYS_MAX])
            rows = self._calls.call(
                messages.ReadLedgers(self._timeout_ms, some), list[LedgerRow | None]
            )
            ledgers += [_ledger(*one) for one in zip(some, _some_of(rows), strict=False)]
        return ledgers

    def update_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None = None,
    ) -> int:
        """Compare-and-set on `version` (INV-M1). Raise ConfigError for a change that depends on a bookie's identity."""
        if if_identity is not None:
            self._refuse("repairs of ledgers")
        request = messages.UpdateLedger(
            self._timeout_ms, ledger_id, metadata.to_bytes(), version, False
        )
        return self._calls.call(request, int)

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Remove a ledger."""
        request = messages.DeleteLedger(self._timeout_ms, ledger_id, version, False)
        self._calls.call(request, type(None))

    def list_ledgers(
        self, after: LedgerId = -1, count_max: int = LIST_PAGE_COUNT
    ) -> list[LedgerId]:
        """Return one page of ids: of those that the client may work with."""
        ledgers: list[LedgerId] = []
        at: LedgerId | None = after
        while at is not None and len(ledgers) < count_max:
            request = messages.ListLedgers(
                self._timeout_ms, at, min(KEYS_MAX, count_max - len(ledgers))
            )
            page = self._calls.call(request, messages.LedgerPage)
            ledgers += page.ledger_ids
            at = page.next_after
        return ledgers

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[LedgerId], None]
    ) -> WatchHandle:
        """Report changes of one ledger."""
        return self._watches.add(ledger_id, lambda: callback(ledger_id))

    # --- bookies -----------------------------------------------------------------------------------------------

    def register_bookie(self, service: BookieService, *, writable: bool) -> Lease:
        """Raise ConfigError."""
        self._refuse("registration of bookies")

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the live bookies."""
        rows = self._calls.call(messages.ListBookies(self._timeout_ms), list[messages.BookieRow])
        return [BookieRegistration(parse_service(row.service), row.writable) for row in rows]

    def watch_bookies(self, callback: Callable[[], None]) -> WatchHandle:
        """Report changes of the set of live bookies."""
        return self._watches.add(None, callback)

    def read_identity(self, bookie_id: BookieId) -> VersionedIdentity | None:
        """Raise ConfigError."""
        self._refuse("identities of bookies")

    def foreign_cookie(self, bookie_id: BookieId) -> bytes | None:
        """Raise ConfigError."""
        self._refuse("cookies of bookies")

    def write_identity(
        self, identity: BookieIdentity, version: int | None, *, replaced_cookie: bytes | None = None
    ) -> int:
        """Raise ConfigError."""
        self._refuse("identities of bookies")

    def delete_identity(self, bookie_id: BookieId, version: int) -> None:
        """Raise ConfigError."""
        self._refuse("identities of bookies")

    def list_identities(self) -> list[BookieIdentity | BadIdentity]:
        """Return the identities of all bookies."""
        request = messages.ListIdentities(self._timeout_ms)
        rows = self._calls.call(request, list[messages.IdentityRow])
        return [
            unreadable_identity(BookieId(row.bookie_id), row.fault, 0)
            if row.fault
            else parse_identity(row.identity, BookieId(row.bookie_id))
            for row in rows
        ]

    def pulsar_racks(self) -> bytes | None:
        """Return what the gateway's store does; one of a version before 0.4 does not know the request."""
        try:
            return self._calls.call(messages.PulsarRacks(self._timeout_ms), bytes | None)  # type: ignore[arg-type]
        except ConfigError:
            return None

    # --- watches and the end -----------------------------------------------------------------------------------

    def _states(
        self, subjects: Sequence[Subject], seen: Sequence[str] | None, wait_s: float
    ) -> list[str]:
        found: list[str] = []
        for start in range(0, len(subjects), KEYS_MAX):
            known = None if seen is None else tuple(seen[start : start + KEYS_MAX])
            some = tuple(subjects[start : start + KEYS_MAX])
            request = messages.ReadStates(self._timeout_ms, some, known, int(wait_s * 1e3))
            states = self._calls.call(request, list[str])
            if len(states) != len(some):
                raise MetadataUnavailable(
                    f"a gateway answered {len(some)} subjects of watches with {len(states)} states: is it of another"
                    " version?"
                )
            found += states
        return found

    def close(self) -> None:
        """End the watches and close the connections."""
        self._watches.close()
        self._calls.close()


class GatewayRecords:
    """The records behind gateways. See `fastbk.meta.records`."""

    def __init__(self, calls: Calls, watches: GatewayWatches, timeout_ms: int) -> None:
        self._calls = calls
        self._watches = watches
        self._timeout_ms = timeout_ms

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records."""
        records: list[VersionedRecord | None] = []
        while len(records) < len(paths):
            records += self.read_some(paths[len(records) :], messages.ANSWER_BYTES_MAX)
        return records

    def read_some(self, paths: Sequence[str], bytes_max: int) -> list[VersionedRecord | None]:
        """Return the first ones of several records, of those that one answer has room for (INV-M18)."""
        some = tuple(check_path(path) for path in paths[:KEYS_MAX])
        rows = self._calls.call(
            messages.ReadRecords(self._timeout_ms, some), list[RecordRow | None]
        )
        found = [None if row is None else row.record() for row in _some_of(rows)]
        return found[
            : count_within((0 if one is None else len(one.value) for one in found), bytes_max)
        ]

    def change(self, changes: Sequence[Change]) -> list[int]:
        """Do all of it or nothing (INV-M1)."""
        for change in changes:
            change.check()
        rows = tuple(ChangeRow(one.path, one.value, one.version) for one in changes)
        return self._calls.call(messages.ChangeRecords(self._timeout_ms, rows, False), list[int])

    def children(self, path: str) -> list[str]:
        """Return the names below a path."""
        (names,) = self.children_of([path])
        return names

    def children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names below several paths."""
        for path in paths:
            check_folder(path)
        children: list[list[str]] = []
        while len(children) < len(paths):
            some = tuple(paths[len(children) : len(children) + KEYS_MAX])
            children += _some_of(
                self._calls.call(messages.ListChildren(self._timeout_ms, some), list[list[str]])
            )
        return children

    def watch(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Report changes of a record."""
        return self._watches.add(record_subject(path), callback)

    def watch_children(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Report names that come or go."""
        return self._watches.add(children_subject(path), callback)


class GatewayMarks(ReplicaMarks):
    """The marks of under-replicated ledgers: read as records, changed by a request of their own."""

    def __init__(self, calls: Calls, records: GatewayRecords, timeout_ms: int) -> None:
        super().__init__(records)
        self._calls = calls
        self._timeout_ms = timeout_ms

    def update(
        self,
        ledger_id: LedgerId,
        add: Sequence[MissingReplica] = (),
        remove: Sequence[MissingReplica] = (),
    ) -> LedgerMark:
        """Change the mark of a ledger; return it. See `ReplicaMarks`."""
        request = messages.UpdateMark(self._timeout_ms, ledger_id, to_json(add), to_json(remove))
        return LedgerMark(ledger_id, from_json(self._calls.call(request, bytes)))


def _ledger(ledger_id: LedgerId, row: LedgerRow | None) -> LedgerRead:
    return None if row is None else ledger_read(ledger_id, row.metadata, row.version)


def _some_of(rows: list[T]) -> list[T]:
    """Return what an answer has of what was requested. Raises MetadataUnavailable for one without anything."""
    if not rows:
        raise MetadataUnavailable(
            "a gateway answered a request with nothing: is it of another version?"
        )
    return rows


# --- calls -------------------------------------------------------------------------------------------------------
#
# A client's calls to gateways: connections that stay open, failover between gateways, and repeats of lost answers.
#
# Every request may be repeated, at any gateway: the gateway then recognises what was done already
# (`is_repeat`). So a connection that breaks, a gateway that dies and one that is too busy are all
# met in the same way until the call's time is over; then MetadataUnavailable says that the change
# may have happened. Blocking; any thread. A forked child has to open a store of its own.


IDLE_S_MAX = 30.0
"""A connection that was not used for so long is not used again: the gateway closes it after twice that."""
IDLE_MAX = 16
"""Connections that are kept for the next calls."""
TOKEN_CHECK_S = 5.0
"""How old the token may be that is shown: the file is read again then."""
ATTEMPT_S_MAX = 5.0
"""Longest wait for one gateway while there are others."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 0.5
_ANSWER_BYTES_MAX = ANSWER_BYTES_MAX + 4 * 1024 * 1024
"""The last row of an answer may reach over the bound; a record has 900 kB at most."""
_TOKEN = re.compile(r"[!-~]+")


@dataclass(slots=True, eq=False)
class _Connection:
    http: HttpConnection
    address: str
    used_s: float


class GatewayCalls:
    """The calls of one store."""

    def __init__(
        self,
        servers: Sequence[str],
        timeout_s: float,
        tls: TlsOptions | None,
        credentials: Credentials | None,
    ) -> None:
        """`servers`: each as host:port. Raises ConfigError where requests would go in the clear to other machines."""
        self._servers = deque(servers)
        self._timeout_s = timeout_s
        self._context: RefreshedContext | None = None if tls is None else tls.context()
        self._credentials = credentials
        if tls is None:
            for server in servers:
                if not is_loopback(split_address(server, "gateway")[0]):
                    raise ConfigError(
                        f"gateway {server}: set FASTBK_TLS_CA_FILE or give tls=: only a gateway of this machine is"
                        " reached without TLS, for trials"
                    )
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._waiting: set[_Connection] = set()
        self._token: tuple[float, str] = (float("-inf"), "")
        self._pid = os.getpid()
        self._is_closed = False

    def call(self, request: Request, kind: type[T]) -> T:
        """Return a request's result. `is_repeat` of the request is set here. Raises Error."""
        name, body_kind = NAMES[type(request)], kind
        retry = Retry(PAUSE_MIN_S, PAUSE_MAX_S, self._timeout_s)
        wait_s = request.wait_ms / 1e3 if isinstance(request, ReadStates) else 0.0
        end_s = time.monotonic() + self._timeout_s + wait_s
        attempts, is_sent = 0, False
        while True:
            self._check_open()
            left_s = end_s - time.monotonic()
            servers = len(self._servers)
            limit_s = max(0.05, min(left_s, ATTEMPT_S_MAX + wait_s) if servers > 1 else left_s)
            if is_sent and hasattr(request, "is_repeat"):
                request = replace(request, is_repeat=True)
            address = self._servers[0]
            try:
                status, answer = self._exchange(
                    address, name, replace(request, timeout_ms=int(limit_s * 1e3)), limit_s
                )
                return self._result(status, answer, body_kind)
            except _NotSent as error:
                failed = self._lost(address, error.reason, is_sent=is_sent)
            except OSError as error:
                is_sent = True
                failed = self._lost(address, error, is_sent=True)
            except MetadataUnavailable as error:
                is_sent |= error.outcome != "not_written"
                failed = error
            attempts += 1
            with self._lock:
                if self._servers[0] == address:
                    self._servers.rotate(-1)
            if attempts % servers == 0 or left_s <= 0:
                if is_sent and failed.outcome == "not_written":
                    failed.outcome = "unknown"
                time.sleep(retry.pause_s(failed))
            elif end_s - time.monotonic() <= 0:
                raise failed

    def close(self) -> None:
        """Close all connections that no call uses, or that wait for a change; others close when their calls end."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            # A forked child has the parent's connections, too.
            for connection in self._waiting if self._pid == os.getpid() else ():
                connection.http.cut()
        for one in idle:
            one.http.close()

    # --- one exchange -----------------------------------------------------------------------------------------------

    def _exchange(
        self, address: str, name: str, request: Request, limit_s: float
    ) -> tuple[int, bytes]:
        body = encode(request)
        if len(body) > REQUEST_BYTES_MAX:
            raise ConfigError(
                f"a request has {len(body)} bytes, a gateway takes {REQUEST_BYTES_MAX}: change less at once"
            )
        headers = {"Content-Type": CONTENT_TYPE, **self._authorization()}
        connection = self._taken(address, limit_s)
        may_wait = isinstance(request, ReadStates) and request.wait_ms > 0
        try:
            if may_wait:
                self._begin_wait(connection)
            answer = connection.http.exchange("POST", PATH + name, headers, body, is_last=False)
        except BaseException:
            connection.http.close()
            raise
        finally:
            if may_wait:
                with self._lock:
                    self._waiting.discard(connection)
        self._give_back(connection, is_good=not answer.is_last)
        if answer.status == 401:
            self._token = (float("-inf"), "")
        return answer.status, answer.body

    def _result(self, status: int, answer: bytes, kind: type[T]) -> T:
        try:
            if status == 200:
                return msgspec.msgpack.decode(answer, type=kind)
            failure = msgspec.msgpack.decode(answer, type=Failure)
        except ValueError as error:
            raise MetadataUnavailable(
                f"a gateway answered {status} with something else than its protocol: is the address a gateway's?"
            ) from error
        raise error_of(failure)

    def _taken(self, address: str, limit_s: float) -> _Connection:
        """Return a connection, one that is open if there is one. Raises _NotSent."""
        now_s = time.monotonic()
        stale: list[_Connection] = []
        taken: _Connection | None = None
        with self._lock:
            while self._idle and taken is None:
                one = self._idle.pop()
                if one.address == address and now_s - one.used_s < IDLE_S_MAX:
                    taken = one
                else:
                    stale.append(one)
        for one in stale:
            one.http.close()
        if taken is not None:
            taken.http.set_timeout(limit_s)
            return taken
        return _Connection(self._connected(address, limit_s), address, now_s)

    def _connected(self, address: str, limit_s: float) -> HttpConnection:
        host, port = split_address(address, "gateway")
        context = None
        if self._context is not None:
            with self._lock:  # it may be made anew
                context = self._context.current()
        made = HttpConnection(host, port, tls=context, bytes_max=_ANSWER_BYTES_MAX)
        try:
            made.connect(limit_s)
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"gateway {address} has a certificate that is not good: {error.verify_message}; is FASTBK_TLS_CA_FILE"
                " the one that signed it?"
            ) from error
        except OSError as error:
            raise _NotSent(error) from error
        return made

    def _begin_wait(self, connection: _Connection) -> None:
        with self._lock:
            self._check_open()
            self._waiting.add(connection)

    def _give_back(self, connection: _Connection, *, is_good: bool) -> None:
        connection.used_s = time.monotonic()
        with self._lock:
            if is_good and not self._is_closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.http.close()

    def _authorization(self) -> dict[str, str]:
        if self._context is None or self._credentials is None:
            return {}  # in the clear anybody on this machine may have the port, and would have the token
        read_s, token = self._token
        now_s = time.monotonic()
        if now_s - read_s >= TOKEN_CHECK_S:
            token = self._credentials.gateway_token().decode("ascii", "replace")
            if token and not _TOKEN.fullmatch(token):
                path = self._credentials.gateway_token_file or self._credentials.token_file
                raise ConfigError(f"{path}: this is no token: none has such characters")
            self._token = (now_s, token)
        return {"Authorization": f"Bearer {token}"} if token else {}

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the gateway's store was closed")
        if self._pid != os.getpid():
            raise ClientClosed(
                "this store belongs to the parent process: open another one behind a fork"
            )

    def _lost(self, address: str, error: BaseException, *, is_sent: bool) -> MetadataUnavailable:
        reason = str(error) or type(error).__name__
        if is_sent:
            hint = "what was asked for may be done yet: read again before retrying"
            if self._context is None:
                hint = f"is FASTBK_TLS_CA_FILE set, if it has TLS? If so, {hint}"
        else:
            hint = "is `fastbk gateway` running there, and are host and port right?"
        return MetadataUnavailable(
            f"gateway {address} does not answer: {reason}: {hint}",
            outcome="unknown" if is_sent else "not_written",
        )


class _NotSent(Exception):
    """A connection could not be made: nothing was sent."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


# --- watches -----------------------------------------------------------------------------------------------------
#
# Watches by a gateway: requests that it answers when something has changed, or when their time is over.
#
# Two threads send them. One waits long, for all that was watched when its request began. The other
# waits shortly, for what came since, until the first one's next request takes that over. A gateway
# without room for more answers at once, and what is not there it watches for a second only: then
# these threads poll.


if TYPE_CHECKING:
    States = Sequence[str]

_log = LibraryLog("fastbk.meta")
LONG_WAIT_S, SHORT_WAIT_S = 10.0, 1.0
POLL_S = 1.0
"""Pause between requests that are answered early, and nothing has changed; and while no gateway answers."""
THREADS_MAX = 16
"""Those of watches that have ended wait for their answers yet. When there are so many, new watches have no others."""
CHANGE_S = 0.05
"""Minimum pause between two requests, the first of which was answered with a change: 20 a second of each thread."""


class _Threads:
    """The two threads, from the first watch until there is none."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()
        self.waited_for: set[Subject] = set()
        self.is_long_busy = False
        self.is_rest_wanted = False
        """The long one goes on soon with what the short one waits for, which then does not begin again."""


class GatewayWatches:
    """The watches of one store. See `fastbk.meta.api.MetadataStore`."""

    def __init__(self, states: Callable[[Sequence[Subject], States | None, float], States]) -> None:
        """`states(subjects, seen, wait_s)`: returns the states, once one is not as it was seen, or wait_s is over.

        `seen`: None: at once. Raises Error.
        """
        self._states = states
        self._wake = threading.Condition()  # its lock may be taken twice by one thread
        self._subscriptions = Subscriptions()
        self._threads: _Threads | None = None
        self._thread_count = 0

    def add(self, subject: Subject, callback: Callable[[], None]) -> WatchHandle:
        """Subscribe `callback` to changes of `subject` from now on. Raises Error."""
        handle = WatchHandle(self, subject, callback)
        (now,) = self._states([subject], None, 0.0)
        with self._wake:
            self._subscriptions.add(handle, now)
            if self._threads is None:
                self._threads = _Threads()
                for is_long in (True, False):
                    arguments = (self._threads, is_long)
                    threading.Thread(
                        target=self._run, args=arguments, name="fastbk-watch", daemon=True
                    ).start()
                    self._thread_count += 1
            self._wake.notify_all()
        return handle

    def remove(self, handle: WatchHandle) -> None:
        """End a subscription; the last one ends the threads, which may wait for an answer yet."""
        with self._wake:
            self._subscriptions.remove(handle)
            if (
                not self._subscriptions
                and self._threads is not None
                and self._thread_count + 2 <= THREADS_MAX
            ):
                self._end(self._threads)
            self._wake.notify_all()

    def close(self) -> None:
        """End all subscriptions."""
        with self._wake:
            handles = self._subscriptions.all()
        for handle in handles:
            self.remove(handle)

    # --- in the threads ---------------------------------------------------------------------------------------------

    def _run(self, threads: _Threads, is_long: bool) -> None:
        while not threads.is_stopped.is_set():
            seen, wait_s = self._next(threads, is_long=is_long)
            began_s = time.monotonic()
            changed: list[WatchHandle] = []
            pause_s = POLL_S
            try:
                if seen:
                    now = self._states(list(seen), list(seen.values()), wait_s)
                    changed = self._changed(seen, now)
                    pause_s = CHANGE_S if changed else POLL_S
                    pause_s = max(0.0, pause_s - (time.monotonic() - began_s))
            except ClientClosed:
                self._end(threads)
            except Error as error:
                # The gateways are away; what changed meanwhile is told when they are back.
                _log.debug("metadata.watch_waits", reason=str(error))
            finally:
                with self._wake:
                    threads.waited_for.difference_update(seen)
                    threads.is_long_busy &= not is_long
                    self._wake.notify_all()
            for handle in changed:
                notify(handle)
            if seen:
                threads.is_stopped.wait(pause_s)
        with self._wake:
            self._thread_count -= 1

    def _next(self, threads: _Threads, *, is_long: bool) -> tuple[dict[Subject, str], float]:
        """Return what a thread waits for next, as it was seen, and how long; nothing when it has to end."""
        with self._wake:
            while not threads.is_stopped.is_set():
                known = self._subscriptions.seen.items()
                seen = {one: str(state) for one, state in known if one not in threads.waited_for}
                if seen and (is_long or (threads.is_long_busy and not threads.is_rest_wanted)):
                    is_all = not threads.waited_for
                    if is_long:
                        threads.is_long_busy, threads.is_rest_wanted = True, not is_all
                    threads.waited_for.update(seen)
                    if len(seen) > KEYS_MAX:
                        return seen, 0.0  # more than one request has room for is polled
                    return seen, LONG_WAIT_S if is_long and is_all else SHORT_WAIT_S
                if is_long and not known:
                    self._end(threads)
                else:
                    self._wake.wait()
        return {}, 0.0

    def _end(self, threads: _Threads) -> None:
        with self._wake:
            threads.is_stopped.set()
            if self._threads is threads:
                self._threads = None
            self._wake.notify_all()

    def _changed(self, seen: dict[Subject, str], now: States) -> list[WatchHandle]:
        with self._wake:
            return [
                one
                for subject, state in zip(seen, now, strict=True)
                # One that ended and began anew meanwhile may have had a later state at once.
                if self._subscriptions.seen.get(subject) == seen[subject]
                for one in self._subscriptions.changed(subject, state)
            ]
