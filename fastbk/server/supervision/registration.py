"""The bookie's place in metadata: announced while it serves, kept alive, taken back when it stops.

Metadata calls block, so they run in one thread of their own, in order; the supervisor's loop never
waits for a store. An outage of metadata costs readiness, not service: clients that know the bookie
go on.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import fastbk
from fastbk.config import is_unspecified, split_address
from fastbk.errors import ConfigError, Error, MetadataConflict, MetadataUnavailable, StorageError
from fastbk.formats import LEVEL_MAX, LEVEL_PROPERTY
from fastbk.meta import open_store
from fastbk.meta.api import (
    APACHE_PROTOCOL,
    FASTBK_PROTOCOL,
    HTTP_NAME,
    HTTP_PROTOCOL,
    HTTPS_PROTOCOL,
    READS_ONLY_PROPERTY,
    REASON_CHARACTERS_MAX,
    TLS_EXTENSION,
    BookieService,
    Endpoint,
)
from fastbk.meta.format_level import FormatGate
from fastbk.model.ids import BookieId
from fastbk.observe import logs
from fastbk.retry import jittered
from fastbk.server.directories import disk_bytes
from fastbk.server.identity import read_shards, settle
from fastbk.server.offline import end_move
from fastbk.server.supervision.metadata_age import MetadataAge
from fastbk.server.supervision.unclean_start import begin_life, was_unclean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.meta.api import Lease, LedgerRead, MetadataStore
    from fastbk.meta.rollback import Hold
    from fastbk.model.ids import LedgerId
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.storage.identity import Shards

T = TypeVar("T")

_RETRY_S = 0.5


def endpoints(
    config: BookieConfig, host: str, port: int, http_port: int | None
) -> tuple[Endpoint, ...]:
    """Return what the registration contains: where clients reach the bookie, and where tools do.

    `host`, `port`: where it listens. `http_port`: where its pages are; None: there are none.
    """
    host = config.bookie.advertised or host
    extensions = () if config.tls.mode == "off" else (TLS_EXTENSION,)
    found = tuple(
        Endpoint(host, port, one, extensions=extensions)
        for one in (FASTBK_PROTOCOL, APACHE_PROTOCOL)
    )
    if http_port is None:
        return found
    http_host, _ = split_address(config.http.listen, "[http] listen")
    if is_unspecified(http_host):
        http_host = host
    protocol = HTTPS_PROTOCOL if config.http.tls else HTTP_PROTOCOL
    return (*found, Endpoint(http_host, http_port, protocol, HTTP_NAME))


class Membership:
    """Keeps metadata in agreement with what this bookie is and whether it takes writes."""

    def __init__(
        self,
        config: BookieConfig,
        endpoints: tuple[Endpoint, ...],
        on_problem: Callable[[str | None], None],
        *,
        on_hold: Callable[[Hold | None], None] = lambda hold: None,
        on_level: Callable[[int], None] = lambda level: None,
        on_unclean_start: Callable[[float], None] = lambda started_s: None,
        listed_id: Callable[[], int] = lambda: -1,
        accept_data_loss: bool = False,
    ) -> None:
        """`endpoints`: where clients and tools reach us.

        `on_problem` gets a reason while metadata does not know of us, None when it does again. `on_hold` gets the hold
        that metadata is on, None while it is on none; `on_level` the cluster's format level; `on_unclean_start` the
        time of a start after a life that did not stop cleanly. `listed_id`: the highest
        ledger id that gc saw listed.

        `accept_data_loss`: see `fastbk.server.identity.settle`.
        """
        self._config = config
        self._accept_data_loss = accept_data_loss
        self._endpoints = endpoints
        self._on_problem = on_problem
        self._on_hold = on_hold
        self._on_level = on_level
        self._on_unclean_start = on_unclean_start
        self._age: MetadataAge | None = None
        self._listed_id = listed_id
        self.formats = FormatGate()
        """What this bookie may write, by the level of its cluster."""
        self._is_level_damaged = False
        self.shards: Shards = ()
        self.is_limbo_listed = False
        """Whether the last join has listed the ledgers that may have lost something (INV-X6)."""
        self.cluster_id = ""
        """The pair of each shard, once `join` has returned."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        self._store: MetadataStore | None = None
        self._service: BookieService | None = None
        self._published = RegistrationProperties(config)
        self._lease: Lease | None = None
        self._writable = False
        self._has_changed = False
        self._has_problem = False
        self._turn = asyncio.Lock()
        """The lease is changed by one at a time: a renewal of an old one must not undo a new one."""
        self._task: asyncio.Task[None] | None = None

    async def join(self, bookie_id: str) -> BookieService:
        """Open the store and check that directories and metadata agree on who we are (INV-D1).

        Done once, with the directories locked; later calls return the same, and only see to damage that the last
        boot has met. Raises Error.
        """
        if self._service is None:
            self._service = await self._call(lambda: self._join(bookie_id))
        else:
            service = self._service
            await self._call(lambda: self._begin(service, is_first_boot=False))
        return self._service

    async def announce(
        self,
        *,
        writable: bool,
        properties: dict[str, str] | None = None,
        reads_only_reason: str = "",
    ) -> None:
        """Register, or change what is registered; returns once metadata said yes.

        Raises Error the first time. Later an outage of metadata does not keep the bookie from
        serving: it is a problem that is told of, and tried again until it is over.

        `properties` are told to whoever lists bookies, with what `RegistrationProperties` adds; other ones than
        before mean a new lease. `reads_only_reason` is published while the bookie is not writable,
        so that writers' errors can name it.
        """
        assert self._service is not None
        async with self._turn:
            wanted = dict(self._service.properties)
            if properties is not None:
                wanted = properties | self._published.properties()
            wanted.pop(READS_ONLY_PROPERTY, None)
            if reads_only_reason:
                wanted[READS_ONLY_PROPERTY] = reads_only_reason[:REASON_CHARACTERS_MAX]
            self._tell(wanted)
            self._writable = writable
            self._has_changed = True
            try:
                await self._apply()
            except Error as error:
                if self._task is None:
                    raise
                self._problem(error)
        if self._task is None:
            self._task = asyncio.create_task(self._keep())

    def mark_not_writable(self) -> None:
        """Have metadata say that we take no adds, soon; an outage leaves that to the lease's end."""
        lease, self._writable = self._lease, False
        if lease is not None:
            self._thread.submit(lambda: _quietly(lambda: lease.set_writable(False)))

    async def withdraw(self) -> None:
        """Deregister, so that clients choose others; an outage leaves it to the lease to run out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._lease is not None and not self._has_problem:
            await self._call(lambda: self._look_at_age(is_last=True))
        await self._leave()

    async def _leave(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._call(lambda: _quietly(lease.close))

    async def close(self) -> None:
        """Withdraw, close the store and end the thread."""
        await self.withdraw()
        store, self._store = self._store, None
        if store is not None:
            await self._call(store.close)
        self._thread.shutdown(wait=False)

    def read_ledgers(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRead]:
        """Return ledgers' metadata; blocks, from any thread but the loop's. Raises Error."""
        if self._store is None:
            raise MetadataUnavailable("metadata is not open yet, or not any more")
        return self._store.read_ledgers(ledger_ids)

    def _tell(self, properties: dict[str, str]) -> None:
        assert self._service is not None
        if properties != self._service.properties:
            self._service = replace(self._service, properties=properties)
            self._lease = None  # taken over by the same incarnation's new one

    def _join(self, bookie_id: str) -> BookieService:
        metadata = self._config.metadata
        self._store = open_store(metadata.uri, session_timeout_s=metadata.session_timeout_s)
        self._poll_level()
        end_move(self._config)
        incarnation = settle(
            self._config, self._store, bookie_id, accept_data_loss=self._accept_data_loss
        )
        self._age = MetadataAge(self._config.ledgers.all_directories, self._store, bookie_id)
        self._age.poll(is_last=True)
        self._on_hold(self._age.hold)
        self.shards = read_shards(self._config)
        self.cluster_id = self._store.instance_id()
        service = BookieService(BookieId(bookie_id), incarnation, self._endpoints)
        self._begin(service, is_first_boot=True)
        return service

    def _begin(self, service: BookieService, *, is_first_boot: bool) -> None:
        assert self._store is not None
        if is_first_boot and was_unclean(self._config.ledgers.all_directories):
            self._on_unclean_start(time.time())
        life = begin_life(
            self._config.ledgers.all_directories,
            self._store,
            service.bookie_id,
            service.incarnation,
            sync=self._config.journal.sync,
            ledgers_max=self._config.limits.ledgers_max,
            is_first_boot=is_first_boot,
        )
        self.is_limbo_listed = life.is_listed

    async def _keep(self) -> None:
        while True:
            pause_s = jittered(_RETRY_S)
            if self._lease is not None and not self._has_changed:
                # Half of what is allowed: a late wake-up must not cost the lease.
                pause_s = self._lease.renew_interval_s / 2
            await asyncio.sleep(pause_s)
            await self._call(self._look_at_age)
            if self._age is not None:
                self._on_hold(self._age.hold)
            async with self._turn:
                try:
                    await self._call(self._follow_level)
                    if self._service is not None and self._published.is_stale():
                        self._tell(self._service.properties | self._published.properties())
                    if self._lease is None or self._has_changed:
                        await self._apply()
                    else:
                        await self._call(self._lease.renew)
                except Error as error:
                    if isinstance(error, MetadataConflict):
                        self._lease = None  # run out, or taken: announce anew
                    elif isinstance(error, ConfigError):
                        await self._leave()
                    self._problem(error)
                    continue
            if self._has_problem:
                logs.info("registration.recovered")
                self._has_problem = False
            self._on_problem(None)

    def _poll_level(self) -> None:
        """Read the cluster's format level. Raises LevelLacking: then we leave the cluster (INV-U2)."""
        assert self._store is not None
        if self.formats.poll(self._store):
            if self._service is not None:  # else it is what the cluster has at our start
                logs.info("formats.level_rose", format_level=self.formats.level)
            self._on_level(self.formats.level)

    def _follow_level(self) -> None:
        """Do the same while we serve: a damaged record says nothing, and all goes on as before."""
        try:
            self._poll_level()
        except StorageError as error:
            if not self._is_level_damaged:
                logs.warning("formats.level_not_known", reason=str(error))
            self._is_level_damaged = True
        else:
            self._is_level_damaged = False

    def _look_at_age(self, *, is_last: bool = False) -> None:
        """See whether metadata was rolled back; troubles with metadata are the lease's to report."""
        assert self._age is not None
        try:
            self._age.poll(self._listed_id(), is_last=is_last)
        except MetadataUnavailable:
            pass
        except (Error, OSError) as error:
            logs.warning("metadata.age_not_known", reason=str(error))

    async def _apply(self) -> None:
        service, writable, lease, store = self._service, self._writable, self._lease, self._store
        assert service is not None
        assert store is not None
        if lease is None:
            self._lease = await self._call(
                lambda: store.register_bookie(service, writable=writable)
            )
        else:
            await self._call(lambda: lease.set_writable(writable))
        self._has_changed = False

    def _problem(self, error: Error) -> None:
        if not self._has_problem:
            logs.warning("registration.lost", reason=str(error))
            self._has_problem = True
        self._on_problem(f"metadata does not answer or does not list this bookie: {error}")

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _quietly(function: Callable[[], None]) -> None:
    try:
        function()
    except Error as error:
        logs.warning("registration.left_behind", reason=str(error))


INTERVAL_S = 60.0
_SHARE = 20


class RegistrationProperties:
    """What a bookie tells those who choose bookies: its place, its labels and its disks' free space; also its version.

    Free space changes with every flush, a registration should not: another figure is told only when it differs by a
    twentieth of the disk, and at most once a minute.
    """

    def __init__(self, config: BookieConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._directories = config.ledgers.all_directories
        self._settings = config.bookie
        self._clock = clock
        self._told_free_bytes: int | None = None
        self._looked_s = clock()

    def properties(self) -> dict[str, str]:
        """Return what is to be told now; what is not known or not set is left out."""
        told = {"version": fastbk.__version__, LEVEL_PROPERTY: str(LEVEL_MAX)}
        if self._settings.location:
            told["location"] = self._settings.location
        if self._settings.labels:
            told["labels"] = ",".join(sorted(set(self._settings.labels)))
        self._told_free_bytes, _ = self._free_and_total_bytes()
        self._looked_s = self._clock()
        if self._told_free_bytes is not None:
            told["free_bytes"] = str(self._told_free_bytes)
        return told

    def is_stale(self) -> bool:
        """Return whether the free space moved so far from what was told that it is worth telling."""
        if self._clock() - self._looked_s < INTERVAL_S:
            return False
        self._looked_s = self._clock()
        free_bytes, total_bytes = self._free_and_total_bytes()
        if free_bytes is None:
            return False
        if self._told_free_bytes is None:
            return True
        return abs(free_bytes - self._told_free_bytes) * _SHARE >= total_bytes

    def _free_and_total_bytes(self) -> tuple[int | None, int]:
        try:
            return disk_bytes(self._directories)
        except OSError:
            return None, 0
