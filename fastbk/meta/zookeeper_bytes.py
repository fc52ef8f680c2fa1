"""What stands in the nodes of bookies and in fastbk's own, as bytes. No I/O.

- a registration: Apache's protobuf message BookieServiceInfoFormat; our incarnation is one of its properties;
- a cookie: Apache's (`fastbk.model.cookie`), the same that lies in each of the bookie's directories;
- an identity: JSON;
- deleted ids of one bucket: offsets and ranges as text, "0-4095" when all of them are gone.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from fastbk.errors import StorageError
from fastbk.meta.api import (
    APACHE_PROTOCOL,
    BookieIdentity,
    BookieService,
    DirectoryIdentity,
    Endpoint,
)
from fastbk.model import protobuf
from fastbk.model.cookie import encode as encode_cookie
from fastbk.model.ids import BookieId

INCARNATION_PROPERTY = "fastbk.incarnation"


# --- registrations -----------------------------------------------------------------------------------------------


def service_bytes(service: BookieService) -> bytes:
    """Return what a bookie's registration node holds."""
    out = bytearray()
    for endpoint in service.endpoints:
        message = bytearray()
        protobuf.put_bytes(message, 1, endpoint.name.encode())
        protobuf.put_int(message, 2, endpoint.port)
        protobuf.put_bytes(message, 3, endpoint.host.encode())
        protobuf.put_bytes(message, 4, endpoint.protocol.encode())
        for extension in endpoint.extensions:
            protobuf.put_bytes(message, 6, extension.encode())
        protobuf.put_bytes(out, 6, bytes(message))
    properties = {**service.properties, INCARNATION_PROPERTY: str(service.incarnation)}
    for key, value in properties.items():
        pair = bytearray()
        protobuf.put_bytes(pair, 1, key.encode())
        protobuf.put_bytes(pair, 2, value.encode())
        protobuf.put_bytes(out, 7, bytes(pair))
    return bytes(out)


def parse_service(bookie_id: BookieId, raw: bytes) -> BookieService:
    """Return what a registration node says; an Apache bookie's has incarnation 0. Raises StorageError.

    An empty node is an old Apache bookie's: its id is its address.
    """
    if not raw:
        host, colon, port = bookie_id.rpartition(":")
        at = (Endpoint(host, int(port), APACHE_PROTOCOL),) if colon and port.isdigit() else ()
        return BookieService(bookie_id, 0, at)
    endpoints: list[Endpoint] = []
    properties: dict[str, str] = {}
    try:
        for one in protobuf.fields(raw):
            if one.number == 6:
                endpoints.append(_endpoint(one.content()))
            elif one.number == 7:
                key, value = _pair(one.content())
                properties[key] = value
        incarnation = int(properties.pop(INCARNATION_PROPERTY, "0"))
    except ValueError as error:
        raise StorageError(f"the registration of bookie {bookie_id} is damaged: {error}") from error
    return BookieService(bookie_id, incarnation, tuple(endpoints), properties)


def _endpoint(message: bytes) -> Endpoint:
    texts = {1: "", 3: "", 4: ""}
    port = 0
    extensions: list[str] = []
    for one in protobuf.fields(message):
        if one.number in texts:
            texts[one.number] = one.content().decode()
        elif one.number == 2:
            port = one.integer()
        elif one.number == 6:
            extensions.append(one.content().decode())
    return Endpoint(texts[3], port, texts[4], texts[1], tuple(extensions))


def _pair(message: bytes) -> tuple[str, str]:
    texts = {1: "", 2: ""}
    for one in protobuf.fields(message):
        if one.number in texts:
            texts[one.number] = one.content().decode()
    return texts[1], texts[2]


# --- cookies and identities --------------------------------------------------------------------------------------


def cookie_bytes(identity: BookieIdentity, instance_id: str) -> bytes:
    """Return what a bookie's cookie node holds."""
    return encode_cookie(identity.cookie(instance_id))


def identity_bytes(identity: BookieIdentity) -> bytes:
    """Return what a bookie's identity node holds."""
    # As text: a reader in another language may have no integers of 64 bits in its JSON.
    return json.dumps({**asdict(identity), "incarnation": str(identity.incarnation)}).encode()


def parse_identity(raw: bytes) -> BookieIdentity:
    """Return what an identity node says; raise StorageError if it makes no sense."""
    try:
        record = json.loads(raw)
        return BookieIdentity(
            BookieId(record["bookie_id"]),
            int(record["incarnation"]),
            tuple(DirectoryIdentity(**one) for one in record["directories"]),
            int(record.get("starts", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"a bookie's identity in ZooKeeper is damaged: {error}") from error


# --- deleted ids -------------------------------------------------------------------------------------------------


def has_offset(raw: bytes, offset: int) -> bool:
    """Return whether a bucket's text names `offset`."""
    return any(first <= offset <= last for first, last in _ranges(raw))


def with_offset(raw: bytes, offset: int) -> bytes:
    """Return a bucket's text with `offset` added."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*_ranges(raw), (offset, offset)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in merged).encode()


def _ranges(raw: bytes) -> list[tuple[int, int]]:
    try:
        found = []
        for part in filter(None, raw.decode().split(",")):
            first, _, last = part.partition("-")
            found.append((int(first), int(last or first)))
    except ValueError as error:
        raise StorageError(f"a list of deleted ledgers is damaged: {error}") from error
    return found
