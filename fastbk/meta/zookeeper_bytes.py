"""What stands in the nodes of bookies and in fastbk's own, as bytes. No I/O.

- a registration: Apache's protobuf message BookieServiceInfoFormat; our incarnation is one of its properties;
- a cookie: Apache's (`fastbk.model.cookie`), the same that lies in each of the bookie's directories;
- an identity: JSON;
- deleted ids of one bucket: offsets and ranges as text, "0-4095" when all of them are gone.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import msgspec

from fastbk.errors import StorageError
from fastbk.meta.api import (
    APACHE_PROTOCOL,
    BookieIdentity,
    BookieService,
    DirectoryIdentity,
    Endpoint,
)
from fastbk.meta.zookeeper_paths import DELETED_BUCKET_IDS
from fastbk.model import protobuf
from fastbk.model.cookie import encode as encode_cookie
from fastbk.model.ids import BookieId

INCARNATION_PROPERTY = "fastbk.incarnation"
_RANGE = re.compile(rb"(\d{1,4})(?:-(\d{1,4}))?")


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
        return BookieService(bookie_id, 0, at).check()
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
    return BookieService(bookie_id, incarnation, tuple(endpoints), properties).check()


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


class _Identity(msgspec.Struct):
    """An identity's JSON."""

    bookie_id: str
    incarnation: int
    directories: tuple[DirectoryIdentity, ...]
    starts: int = 0


def parse_identity(bookie_id: BookieId, raw: bytes) -> BookieIdentity:
    """Return what an identity node says; raise StorageError if it makes no sense."""
    try:
        # Not strict: the incarnation is text.
        found = msgspec.json.decode(raw, type=_Identity, strict=False)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the identity of bookie {bookie_id} is damaged: {error}") from error
    if found.bookie_id != bookie_id:
        raise StorageError(
            f"the identity of bookie {bookie_id} is damaged: it is of bookie {found.bookie_id}"
        )
    return BookieIdentity(bookie_id, found.incarnation, found.directories, found.starts)


# --- deleted ids -------------------------------------------------------------------------------------------------


def is_bucket(raw: bytes) -> bool:
    """Return whether a bucket's text can be read."""
    return _ranges(raw) is not None


def has_offset(raw: bytes, offset: int) -> bool:
    """Return whether a bucket's text names `offset`. One that nobody can read names all: no id is used twice."""
    ranges = _ranges(raw)
    return ranges is None or any(first <= offset <= last for first, last in ranges)


def with_offset(raw: bytes, offset: int) -> bytes:
    """Return a bucket's text with `offset` added; one that nobody can read is replaced by all of them."""
    ranges = _ranges(raw)
    if ranges is None:
        return b"0-%d" % (DELETED_BUCKET_IDS - 1)
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, (offset, offset)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in merged).encode()


def _ranges(raw: bytes) -> list[tuple[int, int]] | None:
    """Return the ranges of a bucket's text; None: nobody can read it."""
    found = []
    for part in filter(None, raw.split(b",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < DELETED_BUCKET_IDS:
            return None
        found.append((first, last))
    return found
