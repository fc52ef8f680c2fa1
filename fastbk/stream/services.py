"""Write services (`fastbk serve`) as metadata has them: who is there, who comes first for a stream, who owns one.

A service writes its record anew each `BEAT_S`, with the next `beat`. Who looks judges by its own clock alone: a beat
that stands still while metadata answers is of a service that is dead, frozen or cut off (`Beats`). Times in records
are never compared.

INV-S38: a service is given up only after `LEASE_S` of looks that all found the same beat.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import StorageError
from fastbk.meta.records import VersionedRecord, bad_record
from fastbk.stream.paths import SERVICES, decode

BEAT_S: Final = 1.0
LEASE_S: Final = 3.0
UPDATE_S_MAX: Final = 1.5
"""What one look adds to the time that a beat stood still: between two that lie further apart metadata, or whoever
looks, may have stood still.
"""
SERVICE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
ADDRESS_CHARACTERS_MAX = 100
_OWNER = re.compile(r"service:([A-Za-z0-9_.-]{1,64})@([^~@]{1,100})~[0-9a-f]{8}")


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One service. `address` and `http`: host and port, of producers and of its pages.

    `started_ms`: since 1970, for people, and to tell two lives of one id apart.
    """

    service_id: str
    address: str
    beat: int
    http: str = ""
    started_ms: int = 0
    software: str = ""


@dataclass(frozen=True, slots=True)
class VersionedService:
    """A record as it was read, and the version that a change of it has to name."""

    service: ServiceRecord
    version: int


def put_service(service: ServiceRecord) -> bytes:
    """Return a record's bytes."""
    return msgspec.json.encode(service)


def get_service(name: str, record: VersionedRecord) -> VersionedService:
    """Return what the record of that id says. Raises StorageError."""
    try:
        service = msgspec.json.decode(record.value, type=ServiceRecord)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the record of write service {name} is damaged: {error}") from error
    if service.service_id != name:
        raise StorageError(f"the record of write service {name} is of {service.service_id[:100]!r}")
    return VersionedService(service, record.version)


async def read_services(records: RecordCalls) -> list[VersionedService]:
    """Return all services, by id; a record that cannot be read is logged and left out. Raises MetadataUnavailable."""
    parts = await records.children(SERVICES)
    paths = [f"{SERVICES}/{part}" for part in parts]
    stored = [record async for record in records.each(paths)]
    services = []
    for part, record in zip(parts, stored, strict=True):
        if record is None:
            continue  # it stopped just now
        try:
            services.append(get_service(decode(part), record))
        except StorageError as error:
            bad_record(f"{SERVICES}/{part}", error)
    return services


def ranked(stream: str, services: Iterable[ServiceRecord]) -> list[ServiceRecord]:
    """Return the services in the order in which they are asked for a stream, by its path.

    By rendezvous hashing: each service has as many streams as the others, and when one goes only its own move.
    """

    def weight(service: ServiceRecord) -> bytes:
        text = f"{stream.strip('/')}\0{service.service_id}".encode()
        return hashlib.blake2b(text, digest_size=16).digest()

    return sorted(services, key=weight)


# --- the owner in a stream's chain ----------------------------------------------------------------


def owner_name(service_id: str, address: str) -> str:
    """Return what a service writes into the chain of a stream that it takes over: another one each time."""
    return f"service:{service_id}@{address}~{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class OwnerService:
    """Which service a chain's owner is."""

    service_id: str
    address: str


def service_of_owner(owner: str) -> OwnerService | None:
    """Return which service an owner is; None: it is none, but a writer, or nobody."""
    match = _OWNER.fullmatch(owner)
    return None if match is None else OwnerService(match[1], match[2])


# --- who is alive ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Beat:
    beat: int
    started_ms: int
    still_s: float = 0.0


class Beats:
    """What one process saw of all services' beats."""

    def __init__(self) -> None:
        self._known: dict[str, _Beat] = {}
        self._updated_s: float | None = None

    def update(self, services: Iterable[ServiceRecord], now_s: float) -> None:
        """Take in what metadata says of all services. `now_s`: a monotonic clock before they were asked for."""
        passed_s = 0.0 if self._updated_s is None else min(now_s - self._updated_s, UPDATE_S_MAX)
        self._updated_s = now_s
        beats = {}
        for service in services:
            known = self._known.get(service.service_id)
            if known is None or (known.beat, known.started_ms) != (
                service.beat,
                service.started_ms,
            ):
                known = _Beat(service.beat, service.started_ms)
            else:
                known.still_s += max(passed_s, 0.0)
            beats[service.service_id] = known
        self._known = beats

    def still_s(self, service_id: str) -> float | None:
        """Return for how long a service's beat stood still; None: there is no such service."""
        known = self._known.get(service_id)
        return None if known is None else known.still_s

    def is_alive(self, service_id: str) -> bool:
        """Return whether a service is there, and may be alive (INV-S38)."""
        known = self._known.get(service_id)
        return known is not None and known.still_s < LEASE_S
