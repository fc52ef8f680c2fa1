"""Reads the pages of all bookies again and again, and makes a `ClusterOverview` of them.

A bookie that does not answer costs a round its timeout, once, beside the others. Metadata is read
in the background (`BackgroundValue`): a round shows what was read last, and why there is nothing
newer. The readers of metadata follow the poller: healing, the newest backup, ledgers that wait to
be closed, cursors, and what the hot ledgers are.

A page is bounded in time and size, and hundreds are read at once on one loop.
`fastbk.admin.page_client` is for one page: it blocks, and its errors are sentences for a command.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import msgspec

from fastbk.admin.cluster import uncloseable
from fastbk.autorecovery.state import ClusterState
from fastbk.client.placement_judge import misplaced_ledgers
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.meta.api import (
    HTTP_PROTOCOL,
    HTTPS_PROTOCOL,
    BookieRegistration,
    BookieService,
    Endpoint,
    VersionedLedger,
)
from fastbk.meta.health_records import backup_age_s, unfinished_recoveries
from fastbk.meta.records import VersionedRecord
from fastbk.meta.rollback import read_hold
from fastbk.model.health import (
    NO_OPEN_LEDGERS,
    NONE_MISPLACED,
    MisplacedFacts,
    OpenLedgerFacts,
)
from fastbk.model.ids import MEANT_BOOKIE, BookieId, LedgerId
from fastbk.model.ledger import STREAM_KEY
from fastbk.overview.bookie_history import NAMES, BookieHistory, BookieSample, MetricText
from fastbk.overview.values import ClusterOverview, CursorLag, Healing, HotLedger, HotStream
from fastbk.security.credentials import pages_token
from fastbk.security.tls import RefreshedContext, TlsOptions
from fastbk.stream.client import Client
from fastbk.stream.cursor.backlog import CursorGauge, CursorGauges
from fastbk.stream.namespace.listing import Namespaces, all_streams
from fastbk.stream.namespace.tree import StreamRecord, get
from fastbk.stream.paths import stream_path
from fastbk.web.client import Reply, encoded_request, exchange

ANSWER_BYTES_MAX = 8 << 20
REASON_CHARACTERS_MAX = 200


class PageError(StorageError):
    """A page was not answered, or not with 200. `status`: of HTTP; 0: no answer."""

    default_retryable = True

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class PageReader:
    """Reads pages by GET. A connection a page, as bookies want it."""

    def __init__(
        self, *, parallel_max: int = 128, timeout_s: float = 1.5, tls: TlsOptions | None = None
    ) -> None:
        """`timeout_s`: for a page, from its turn on. `tls`: for https; None: as the environment says."""
        self._turns = asyncio.Semaphore(parallel_max)
        self._timeout_s = timeout_s
        self._options = tls
        self._tls: RefreshedContext | None = None

    async def read(self, endpoint: Endpoint, target: str, bookie_id: str = "") -> bytes:
        """Return the body of a page; `bookie_id`: whose is meant, "": whoever's. Raises PageError, ConfigError."""
        where = f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}{target}"
        async with self._turns:
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._exchange(endpoint, target, bookie_id)
            except TimeoutError as error:
                raise PageError(f"{where}: no answer within {self._timeout_s:g} s") from error
            except ssl.SSLError as error:
                text = getattr(error, "verify_message", "") or error.reason or str(error)
                raise PageError(f"{where}: TLS failed: {text}; check FASTBK_TLS_CA_FILE") from error
            except OSError as error:
                # asyncio puts a sentence of its own in place of the reason.
                number = error.errno or 0
                reason = os.strerror(number) if number > 0 else error.strerror or error
                raise PageError(f"{where}: {reason}") from error
        if answer.status != 200:
            text = " ".join(answer.body.decode("utf-8", "replace").split())
            reason = text[:REASON_CHARACTERS_MAX]
            raise PageError(f"{where} answered {answer.status}: {reason}", answer.status)
        return answer.body

    async def read_object(
        self, endpoint: Endpoint, target: str, bookie_id: str = ""
    ) -> dict[str, Any]:
        """Return the JSON object of a page, as `read` has it. Raises PageError, ConfigError."""
        body = await self.read(endpoint, target, bookie_id)
        try:
            # unlike `json` it takes no lone surrogates: nobody could show them
            found = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise PageError(
                f"{endpoint.host}:{endpoint.port}{target}: answered no JSON object", 200
            )
        return found

    async def _exchange(self, endpoint: Endpoint, target: str, bookie_id: str) -> Reply:
        tls = self._context() if endpoint.protocol == HTTPS_PROTOCOL else None
        # In the clear anybody on the way would have the token.
        token = b"" if tls is None else await asyncio.to_thread(pages_token)
        headers = {"Authorization": f"Bearer {_header_text(token)}"} if token else {}
        headers |= {MEANT_BOOKIE: bookie_id} if bookie_id else {}
        host, port = endpoint.host, endpoint.port
        request = encoded_request("GET", host, port, target, headers)
        return await exchange(host, port, request, tls=tls, bytes_max=ANSWER_BYTES_MAX)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = (self._options or TlsOptions.from_environment() or TlsOptions()).context()
        return self._tls.current()


def _header_text(token: bytes) -> str:
    text = token.decode("ascii", "replace")
    if not text.isascii() or not text.isprintable():
        raise ConfigError("the file of FASTBK_PAGES_TOKEN_FILE or FASTBK_TOKEN_FILE has no token")
    return text


def page_endpoint(service: BookieService) -> Endpoint | None:
    """Return where a registered bookie answers HTTP; with TLS where it has both."""
    return service.endpoint(HTTPS_PROTOCOL) or service.endpoint(HTTP_PROTOCOL)


PAGE_TIMEOUT_S = 1.5
METADATA_TIMEOUT_S = 10.0
BOOKIES_INTERVAL_S = 2.0
IDENTITIES_INTERVAL_S = 10.0
HEALING_INTERVAL_S = 5.0
OPEN_LEDGERS_INTERVAL_S = 30.0
OPEN_LEDGERS_TIMEOUT_S = 60.0
CURSORS_INTERVAL_S = 30.0
CURSORS_TIMEOUT_S = 60.0
CURSORS_MAX = 200
NEWEST_EVENT = "/events?newest=1&limit=1"
NOT_FOUND = 404


class OverviewPoller:
    """Makes overviews of one cluster. Use it in `async with`, in the loop of its client."""

    def __init__(
        self,
        client: Client,
        metadata_uri: str = "",
        *,
        page_timeout_s: float = PAGE_TIMEOUT_S,
        cursors_max: int = CURSORS_MAX,
        open_ledgers_timeout_s: float = OPEN_LEDGERS_TIMEOUT_S,
    ) -> None:
        """Nothing is read yet.

        Args:
            client: of the cluster; it stays the caller's.
            metadata_uri: shown in overviews.
            page_timeout_s: for one page of a bookie, above 0.
            cursors_max: cursors whose backlog is read; 0: none, and streams are not read.
            open_ledgers_timeout_s: to find ledgers that cannot be closed: while a bookie is away all are read.
        """
        self._uri = metadata_uri
        self._pages = PageReader(timeout_s=page_timeout_s, tls=client.config.tls)
        self._histories: dict[str, BookieHistory] = {}
        self._missing: set[tuple[str, str]] = set()
        """Bookies and pages that they do not have: they are of an older version."""
        self._facts = LedgerFactsCache(client)
        self._bookies: BackgroundValue[list[BookieRegistration] | None] = BackgroundValue(
            "bookies", client.list_bookies, None,
            interval_s=BOOKIES_INTERVAL_S / 2, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip

        async def identities() -> list[str]:
            listed = await client.call_store(lambda store: store.list_identities())
            return [one.bookie_id for one in listed]

        self._identities: BackgroundValue[list[str]] = BackgroundValue(
            "known bookies", identities, [],
            interval_s=IDENTITIES_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip
        self._healing: BackgroundValue[Healing | None] = BackgroundValue(
            "healing", HealingReader(client).read, None,
            interval_s=HEALING_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip
        self._cursors: BackgroundValue[tuple[tuple[CursorLag, ...], int]] = BackgroundValue(
            "cursors", CursorReader(client, cursors_max).read, ((), 0),
            interval_s=CURSORS_INTERVAL_S, timeout_s=CURSORS_TIMEOUT_S,
        )  # fmt: skip
        self._ledgers: BackgroundValue[None] = BackgroundValue(
            "hot ledgers", self._facts.read, None, interval_s=0.5, timeout_s=METADATA_TIMEOUT_S
        )

        async def hold() -> str:
            found = await client.call_store(read_hold)
            return "" if found is None else str(found)

        self._hold: BackgroundValue[str] = BackgroundValue(
            "hold", hold, "", interval_s=HEALING_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S
        )
        self._backup_age: BackgroundValue[float | None] = BackgroundValue(
            "age of the last backup", lambda: read_backup_age(client), None,
            interval_s=HEALING_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip
        self._open_ledgers: BackgroundValue[OpenLedgerFacts] = BackgroundValue(
            "ledgers that cannot be closed", lambda: read_open_ledgers(client), NO_OPEN_LEDGERS,
            interval_s=OPEN_LEDGERS_INTERVAL_S, timeout_s=open_ledgers_timeout_s,
        )  # fmt: skip

        self._misplaced: BackgroundValue[MisplacedFacts] = BackgroundValue(
            "misplaced ledgers", lambda: read_misplaced(client), NONE_MISPLACED,
            interval_s=HEALING_INTERVAL_S, timeout_s=METADATA_TIMEOUT_S,
        )  # fmt: skip
        self._values: list[BackgroundValue[Any]] = [
            self._bookies, self._identities, self._healing,
            self._hold, self._backup_age, self._open_ledgers, self._misplaced,
        ]  # fmt: skip
        if cursors_max:
            self._values.append(self._cursors)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End what is under way."""
        await asyncio.gather(*(value.close() for value in [*self._values, self._ledgers]))

    async def overviews(self, interval_s: float = 2.0) -> AsyncGenerator[ClusterOverview, None]:
        """Yield an overview every `interval_s`, above 0, or as fast as bookies answer."""
        await self.settled(METADATA_TIMEOUT_S, only_bookies=True)
        while True:
            began_s = time.monotonic()
            yield await self.poll()
            await asyncio.sleep(max(0.05, began_s + interval_s - time.monotonic()))

    async def settled(self, within_s: float, *, only_bookies: bool = False) -> None:
        """Begin to read metadata, and return when all of it was read once, or after that time.

        `only_bookies`: return when the list of bookies was read.
        """
        for value in self._values:
            value.refresh()
        waiting = [self._bookies] if only_bookies else self._values
        await asyncio.gather(*(one.settled(within_s) for one in waiting))

    async def poll(self) -> ClusterOverview:
        """Read the pages of all bookies once, and return the overview. Takes at most about two page timeouts."""
        for one in self._values:
            one.refresh()
        listed = self._bookies.value or []
        await asyncio.gather(*(self._read(one) for one in listed))
        now_s = time.monotonic()
        self._note_unregistered(listed, now_s)
        rows = [history.row(now_s) for history in self._histories.values()]
        hot = added_up(
            history.newest.hot
            for history in self._histories.values()
            if history.newest is not None and history.is_answering
        )
        self._facts.want(sorted(hot, key=lambda one: -hot[one][0])[:CANDIDATES_MAX])
        self._ledgers.refresh()
        ledgers = hottest(hot, self._facts.known)
        cursors, left_out = self._cursors.value
        return ClusterOverview(
            time.time(),
            self._uri,
            tuple(sorted(rows, key=lambda row: row.sickness())),
            ledgers[:SHOWN_MAX],
            by_stream(ledgers),
            cursors,
            left_out,
            self._healing.value,
            tuple(value.error for value in [*self._values, self._ledgers] if value.error),
            self._hold.value,
            self._backup_age.value,
            self._open_ledgers.value,
            self._misplaced.value,
        )

    def _note_unregistered(self, listed: list[BookieRegistration], now_s: float) -> None:
        if self._bookies.value is None:
            return
        registered = {one.service.bookie_id for one in listed}
        known = {*self._identities.value, *registered}
        for bookie_id in known - registered:
            self._history(bookie_id).note_unregistered(now_s)
        for bookie_id in set(self._histories) - known:
            if self._identities.value:  # its cookie was deleted: it belongs to the cluster no more
                del self._histories[bookie_id]
                self._missing -= {one for one in self._missing if one[0] == bookie_id}

    def _history(self, bookie_id: str, http: str = "") -> BookieHistory:
        history = self._histories.get(bookie_id)
        if history is None:
            history = self._histories[bookie_id] = BookieHistory(bookie_id)
        history.http = http or history.http
        return history

    async def _read(self, registration: BookieRegistration) -> None:
        service = registration.service
        endpoint = page_endpoint(service)
        if endpoint is None:
            reason = "it has no HTTP page: give its [http] section a `listen`"
            now_s = time.monotonic()
            self._history(service.bookie_id).note_silence(reason, now_s, has_page=False)
            return
        history = self._history(
            service.bookie_id, f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}"
        )
        try:
            # By itself: a bookie that does not answer takes one turn of the reader, and not four.
            info = await self._pages.read_object(endpoint, "/info", service.bookie_id)
            metrics, hot, events = await asyncio.gather(
                self._pages.read(endpoint, "/metrics?names=fastbk", service.bookie_id),
                self._read_optional(service.bookie_id, endpoint, "/hot"),
                self._read_optional(service.bookie_id, endpoint, NEWEST_EVENT),
            )
        except PageError as error:
            history.note_silence(str(error), time.monotonic())
            return
        parsed = MetricText.parse(metrics.decode("utf-8", "replace"), NAMES)
        history.add(BookieSample(time.monotonic(), parsed, info, hot, events))

    async def _read_optional(
        self, bookie_id: str, endpoint: Endpoint, target: str
    ) -> dict[str, Any]:
        """Return the answer of a page that older versions do not have; then an empty one."""
        if (bookie_id, target) in self._missing:
            return {}
        try:
            return await self._pages.read_object(endpoint, target, bookie_id)
        except PageError as error:
            if error.status != NOT_FOUND:
                raise
            self._missing.add((bookie_id, target))
            return {}


T = TypeVar("T")


class BackgroundValue(Generic[T]):
    """The newest value of `read`, begun anew at most every `interval_s`, one at a time.

    Attributes:
        value: the newest; at first the one given. error: why the last read failed; "" if it did not.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Awaitable[T]],
        value: T,
        *,
        interval_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: for errors."""
        self.value = value
        self.error = ""
        self._name = name
        self._read = read
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._due_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def refresh(self) -> None:
        """Begin to read, if that is due and none is under way. Returns at once."""
        if (self._task is None or self._task.done()) and self._clock() >= self._due_s:
            self._task = asyncio.create_task(self._run())

    async def settled(self, within_s: float) -> None:
        """Return when the read under way has ended, or after that time."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within_s)

    async def close(self) -> None:
        """End a read under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                self.value = await self._read()
            self.error = ""
        except TimeoutError:
            self.error = f"{self._name}: not read within {self._timeout_s:g} s"
        except (Error, OSError) as error:
            self.error = f"{self._name}: {' '.join(str(error).split())}"
        finally:
            self._due_s = self._clock() + self._interval_s


MARKS_MAX = 100_000
"""Marks are counted up to this."""
UNCLOSEABLE_MAX = 10_000
"""The same for ledgers that cannot be closed."""


class HealingReader:
    """Reads what AutoRecovery has to do, and how fast it is."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._before: tuple[float, dict[str, tuple[int, int]]] | None = None
        """When, and worker -> ledgers and bytes that it had repaired since it began."""

    async def read(self) -> Healing:
        """Return it as it is now. Raises MetadataUnavailable, StorageError."""
        state = ClusterState(self._client.records)
        workers, audit = await state.workers(), await state.audit.read()
        enabled, auditor = await self._client.call_store(
            lambda store: (store.coordination.is_enabled(), store.coordination.auditor())
        )
        marked = 0
        async for page in self._client.marks.pages():
            marked += len(page)
            if marked >= MARKS_MAX:
                break
        done = {
            name: (worker.ledgers_repaired, worker.bytes_copied) for name, worker in workers.items()
        }
        ledgers_per_s, bytes_per_s = self._rates(done)
        reports = workers.values()
        return Healing(
            enabled,
            auditor or "",
            marked,
            max((report.bytes_left for report in reports), default=0) if marked else 0,
            max((report.parked_count for report in reports), default=0) if marked else 0,
            ledgers_per_s,
            bytes_per_s,
            tuple(sorted([*((str(one), 0) for one in audit.due), *audit.waiting.items()])),
        )

    def _rates(self, done: dict[str, tuple[int, int]]) -> tuple[float | None, float | None]:
        now_s, before = self._clock(), self._before
        self._before = now_s, done
        if before is None or now_s <= before[0]:
            return None, None
        ledgers = size_bytes = 0
        for name, (ledgers_now, bytes_now) in done.items():
            # A worker that is new, or began anew, has counted from 0.
            ledgers_then, bytes_then = before[1].get(name, (ledgers_now, bytes_now))
            ledgers += max(0, ledgers_now - ledgers_then)
            size_bytes += max(0, bytes_now - bytes_then)
        took_s = now_s - before[0]
        return ledgers / took_s, size_bytes / took_s


async def read_backup_age(client: Client) -> float:
    """Return how old the newest backup of metadata is, in seconds. Raises MetadataUnavailable."""
    return await client.call_store(lambda store: backup_age_s(store, time.time_ns() // 1_000_000))


async def read_misplaced(client: Client) -> MisplacedFacts:
    """Return what the auditor found misplaced, and is. Raises MetadataUnavailable."""
    return await client.call_store(misplaced_ledgers)


async def read_open_ledgers(client: Client) -> OpenLedgerFacts:
    """Return which ledgers wait to be closed. Reads all ledgers' metadata while a bookie is away."""
    unfinished = await client.call_store(unfinished_recoveries)
    waiting: list[LedgerId] = []
    away: set[BookieId] = set()
    async with aclosing(uncloseable(client)) as found:
        async for one in found:
            away.update(one.away)
            waiting.append(one.ledger_id)
            if len(waiting) >= UNCLOSEABLE_MAX:
                break
    return OpenLedgerFacts(
        unfinished=tuple(unfinished), uncloseable=tuple(waiting), away=tuple(sorted(away))
    )


class CursorReader:
    """Reads how far durable cursors are behind, as a janitor does it for its page."""

    def __init__(self, client: Client, cursors_max: int) -> None:
        """`cursors_max`: cursors of which the backlog is read."""
        self._client = client
        self._gauges = CursorGauges(client, cursors_max)

    async def read(self) -> tuple[tuple[CursorLag, ...], int]:
        """Return the cursors, the longest unread first, and how many more there are. Raises what metadata raises."""
        self._gauges.begin()
        async for streams in all_streams(self._client.records):
            for stream in streams:
                await self._gauges.measure(stream, is_thorough=True)
        self._gauges.end()
        found = [_lag(one) for one in self._gauges.all()]
        return tuple(sorted(found, key=_worst_first)), self._gauges.left_out


def _lag(gauge: CursorGauge) -> CursorLag:
    backlog = gauge.backlog
    if backlog is None:
        return CursorLag(gauge.stream, gauge.cursor, gauge.by, None, None, None, gauge.moved_s)
    return CursorLag(
        gauge.stream, gauge.cursor, gauge.by, backlog.records, backlog.size_bytes, backlog.seconds, gauge.moved_s
    )  # fmt: skip


def _worst_first(one: CursorLag) -> tuple[float, int, str, str]:
    return -(one.oldest_unread_s or 0.0), -(one.backlog_records or 0), one.stream, one.cursor


SHOWN_MAX = 20
CANDIDATES_MAX = 100
"""Ledgers of a round whose metadata is read: copies on several bookies decide only once their quorum is known."""
FACTS_MAX = 4096


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What metadata says of a ledger. `stream`: path; "" for none."""

    write_quorum: int
    stream: str = ""


def added_up(pages: Iterable[Mapping[str, Any]]) -> dict[LedgerId, tuple[float, float, int]]:
    """Return ledger -> adds a second, bytes a second, bookies: the answers of `/hot`, added up over bookies."""
    found: dict[LedgerId, tuple[float, float, int]] = {}
    for page in pages:
        for ledger in page.get("ledgers", ()):
            ledger_id = int(ledger["ledger_id"])
            adds, size_bytes, bookies = found.get(ledger_id, (0.0, 0.0, 0))
            adds += float(ledger["adds_per_second"])
            found[ledger_id] = adds, size_bytes + float(ledger["bytes_per_second"]), bookies + 1
    return found


def hottest(
    sums: Mapping[LedgerId, tuple[float, float, int]], facts: Mapping[LedgerId, LedgerFacts]
) -> tuple[HotLedger, ...]:
    """Return the ledgers with most adds; copies are divided by the write quorum, where it is known."""
    found = []
    for ledger_id, (adds, size_bytes, bookies) in sums.items():
        known = facts.get(ledger_id)
        copies = known.write_quorum if known is not None else 1
        stream = known.stream if known is not None else ""
        found.append(HotLedger(ledger_id, adds / copies, size_bytes / copies, stream, bookies))
    found.sort(key=lambda one: (-one.adds_per_s, one.ledger_id))
    return tuple(found)


def by_stream(ledgers: Iterable[HotLedger]) -> tuple[HotStream, ...]:
    """Return the streams of these ledgers, most adds first; at most SHOWN_MAX."""
    sums: dict[str, tuple[float, float]] = {}
    for ledger in ledgers:
        if ledger.stream:
            adds, size_bytes = sums.get(ledger.stream, (0.0, 0.0))
            sums[ledger.stream] = adds + ledger.adds_per_s, size_bytes + ledger.bytes_per_s
    found = [HotStream(path, *both) for path, both in sums.items()]
    return tuple(sorted(found, key=lambda one: (-one.adds_per_s, one.path))[:SHOWN_MAX])


class LedgerFactsCache:
    """What metadata says of the ledgers that were used last; at most FACTS_MAX of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: OrderedDict[LedgerId, LedgerFacts] = OrderedDict()
        self._wanted: list[LedgerId] = []

    @property
    def known(self) -> Mapping[LedgerId, LedgerFacts]:
        """What is known now."""
        return self._known

    def want(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Have the next `read` read those that are not known; of more than CANDIDATES_MAX the first."""
        self._wanted = [ledger_id for ledger_id in ledger_ids if ledger_id not in self._known][
            :CANDIDATES_MAX
        ]

    async def read(self) -> None:
        """Read what is wanted. Raises MetadataUnavailable, StorageError."""
        wanted, self._wanted = self._wanted, []
        if not wanted:
            return
        found = await self._client.call_store(lambda store: store.read_ledgers(wanted))
        ledgers = {
            one: each.metadata
            for one, each in zip(wanted, found, strict=True)
            if isinstance(each, VersionedLedger)
        }
        streams = {
            ledger.custom[STREAM_KEY].decode(errors="replace")
            for ledger in ledgers.values()
            if STREAM_KEY in ledger.custom
        }
        paths = await self._paths(sorted(streams))
        for ledger_id, metadata in ledgers.items():
            stream = paths.get(metadata.custom.get(STREAM_KEY, b"").decode(errors="replace"), "")
            self._known[ledger_id] = LedgerFacts(metadata.write_quorum, stream)
            self._known.move_to_end(ledger_id)
        while len(self._known) > FACTS_MAX:
            self._known.popitem(last=False)

    async def _paths(self, stream_ids: list[str]) -> dict[str, str]:
        """Return stream id -> its path; streams without a readable record are left out."""
        # A ledger's creator can name anything as its stream: what is no id has no path.
        stream_ids = [one for one in stream_ids if one.isascii() and one.isalnum()]
        records = await self._client.records.read_all([stream_path(one) for one in stream_ids])
        namespaces = Namespaces(self._client.records)
        paths = {}
        for stream_id, raw in zip(stream_ids, records, strict=True):
            path = None if raw is None else await self._path(namespaces, stream_id, raw)
            if path:
                paths[stream_id] = path
        return paths

    async def _path(self, namespaces: Namespaces, stream_id: str, raw: VersionedRecord) -> str:
        try:
            record = get(StreamRecord, raw.value, stream_path(stream_id))
            return "/".join([*(await namespaces.of(record.namespace)).path, record.name])
        except Error:
            return ""
