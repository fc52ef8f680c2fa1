"""What sqlite holds of bookies, as JSON: registrations and identities. No I/O."""

from __future__ import annotations

import json
from dataclasses import asdict

import msgspec

from fastbk.errors import StorageError
from fastbk.meta.api import BookieIdentity, BookieService
from fastbk.model.ids import BookieId

_DAMAGED = (ValueError, TypeError, RecursionError)


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
    except _DAMAGED as error:
        raise StorageError(f"a bookie's registration is damaged: {error}") from error
    if bookie_id is not None and service.bookie_id != bookie_id:
        raise StorageError(
            f"a bookie's registration is damaged: it is of bookie {service.bookie_id}"
        )
    return service.check()


def identity_text(identity: BookieIdentity) -> str:
    """Return an identity's text."""
    return json.dumps(asdict(identity))


def parse_identity(text: str, bookie_id: BookieId) -> BookieIdentity:
    """Return what an identity says. Raises StorageError."""
    try:
        identity = msgspec.json.decode(text, type=BookieIdentity)
    except _DAMAGED as error:
        raise StorageError(f"the identity of bookie {bookie_id} is damaged: {error}") from error
    if identity.bookie_id != bookie_id:
        raise StorageError(
            f"the identity of bookie {bookie_id} is damaged: it is of bookie {identity.bookie_id}"
        )
    return identity
