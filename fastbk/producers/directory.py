"""A write service among the others: its own record in metadata, and which of theirs are of live ones.

    directory = Directory(client.records, me)
    await directory.begin()                 # announces it; raises ConfigError where another one has its id
    task = create_task(directory.run())     # a beat and a look each second
    directory.others_for("shop/orders")     # who takes the stream when this service stops, the first one first
    await directory.end()                   # its record is gone

INV-S39: a service takes the place of a record of its id only if that has its own address, or stood still (INV-S38).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import ConfigError, Error, MetadataConflict, StorageError
from fastbk.meta.records import Change
from fastbk.observe.logs import LimitLog
from fastbk.stream.paths import service_path
from fastbk.stream.services import (
    BEAT_S,
    LEASE_S,
    Beats,
    ServiceRecord,
    get_service,
    put_service,
    ranked,
    read_services,
)

FORGET_S = 3600.0
"""A record whose beat stood still for so long is deleted, whosever it was."""


class Directory:
    """One service's view of all services. Belongs to one event loop.

    Attributes:
        me: its own record.
        services: all that metadata had at the last look, dead ones among them.
        updates: how many looks there were.
    """

    def __init__(
        self,
        records: RecordCalls,
        me: ServiceRecord,
        clock_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.me = me
        self.services: tuple[ServiceRecord, ...] = ()
        self.updates = 0
        self._records = records
        self._path = service_path(me.service_id)
        self._clock_s = clock_s
        self._pause = pause
        self._beats = Beats()
        self._version: int | None = None
        self._is_ended = False
        self._failures = LimitLog("serve.beat_failed")

    # --- its own record -----------------------------------------------------------------------------------------

    def describe(self, *, http: str) -> None:
        """Say where the service's pages are, from the next beat on."""
        self.me = replace(self.me, http=http)

    async def begin(self) -> None:
        """Announce the service. Raises ConfigError where a live one has its id; MetadataUnavailable."""
        service, self._version = await self._own()
        if service is not None and service.address != self.me.address:  # INV-S39
            await self._until_still(service)
        while True:
            try:
                await self._write()
                break
            except MetadataConflict:
                _, self._version = await self._own()
        await self._update()

    async def run(self) -> None:
        """Write the next beat and look, once in `BEAT_S`. Raises ConfigError where another one took the id."""
        while True:
            began_s = self._clock_s()
            await self.step()
            await self._pause(max(0.1, BEAT_S - (self._clock_s() - began_s)))

    async def step(self) -> None:
        """Write the next beat, and look. Metadata that does not answer, or refuses this service, is logged.

        Raises ConfigError where another one took the id.
        """
        try:
            if not self._is_ended:
                await self._beat()
            await self._update()
        except ConfigError:
            raise
        except Error as error:
            self._failures.note(type(error).__name__, reason=str(error))

    async def end(self) -> None:
        """Delete the record, so that producers go elsewhere, and look who is there. What fails is logged."""
        if self._is_ended:
            return
        self._is_ended = True
        try:
            service, version = await self._own()
            if version is not None and (service is None or self._is_mine(service)):
                await self._records.change(Change(self._path, None, version))
            await self._update()
        except Error as error:
            self._failures.note(type(error).__name__, reason=str(error))

    async def _own(self) -> tuple[ServiceRecord | None, int | None]:
        """Return what is there under the own id, and its version; a record that is damaged has only a version."""
        record = await self._records.read(self._path)
        if record is None:
            return None, None
        try:
            return get_service(self.me.service_id, record).service, record.version
        except StorageError:
            return None, record.version

    async def _until_still(self, service: ServiceRecord) -> None:
        until_s = self._clock_s() + LEASE_S
        while self._clock_s() < until_s:
            await self._pause(BEAT_S / 2)
            again, self._version = await self._own()
            if again is None:
                return
            if (again.beat, again.started_ms) != (service.beat, service.started_ms):
                raise self._taken(again)

    def _taken(self, service: ServiceRecord) -> ConfigError:
        return ConfigError(
            f"another write service, at {service.address}, has the id {service.service_id}: give each one an id of"
            " its own ([serve] id)"
        )

    def _is_mine(self, service: ServiceRecord) -> bool:
        return (service.started_ms, service.address) == (self.me.started_ms, self.me.address)

    async def _beat(self) -> None:
        self.me = replace(self.me, beat=self.me.beat + 1)
        try:
            await self._write()
        except MetadataConflict:
            # It may have been written by a call whose answer was lost, or was deleted by hand.
            service, self._version = await self._own()
            if service is not None and not self._is_mine(service):
                raise self._taken(service) from None
            await self._write()

    async def _write(self) -> None:
        change = Change(self._path, put_service(self.me), self._version)
        (self._version,) = await self._records.change(change)

    # --- the others ---------------------------------------------------------------------------------------------

    async def _update(self) -> None:
        now_s = self._clock_s()
        listed = await read_services(self._records)
        self.services = tuple(service.service for service in listed)
        self._beats.update(self.services, now_s)
        self.updates += 1
        for service in listed:
            if (self._beats.still_s(service.service.service_id) or 0.0) >= FORGET_S:
                path = service_path(service.service.service_id)
                with contextlib.suppress(MetadataConflict):
                    await self._records.change(Change(path, None, service.version))

    def beat_of(self, service_id: str) -> int | None:
        """Return a service's beat at the last look; None: there is no such service."""
        return next(
            (service.beat for service in self.services if service.service_id == service_id), None
        )

    def is_alive(self, service_id: str) -> bool:
        """Return whether a service is there, and may be alive (INV-S38)."""
        return self._beats.is_alive(service_id)

    def others_for(self, stream: str) -> list[ServiceRecord]:
        """Return the other live services in the order in which they are asked for a stream."""
        others = [
            service
            for service in self.services
            if service.service_id != self.me.service_id and self.is_alive(service.service_id)
        ]
        return ranked(stream, others)
