"""What sqlite holds of bookies, as JSON: registrations and identities. No I/O."""

from __future__ import annotations

import json
from dataclasses import asdict

from fastbk.errors import StorageError
from fastbk.meta.api import BookieIdentity, BookieService, DirectoryIdentity, Endpoint

_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def service_text(service: BookieService) -> str:
    """Return a registration's text."""
    fields = asdict(service)
    for one in fields["endpoints"]:
        if not one["extensions"]:
            del one["extensions"]  # version 0.1, which has no TLS, cannot read this field
    return json.dumps(fields)


def parse_service(text: str) -> BookieService:
    """Return what a registration says. Raises StorageError."""
    try:
        fields = json.loads(text)
        endpoints = tuple(
            Endpoint(**{**one, "extensions": tuple(one.get("extensions", ()))})
            for one in fields.pop("endpoints")
        )
        return BookieService(**fields, endpoints=endpoints)
    except _DAMAGED as error:
        raise StorageError(f"a bookie's registration in sqlite is damaged: {error!r}") from error


def identity_text(identity: BookieIdentity) -> str:
    """Return an identity's text."""
    return json.dumps(asdict(identity))


def parse_identity(text: str) -> BookieIdentity:
    """Return what an identity says. Raises StorageError."""
    try:
        fields = json.loads(text)
        directories = tuple(DirectoryIdentity(**one) for one in fields.pop("directories"))
        return BookieIdentity(**fields, directories=directories)
    except _DAMAGED as error:
        raise StorageError(f"a bookie's identity in sqlite is damaged: {error!r}") from error
