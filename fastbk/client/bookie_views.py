"""From a bookie's registration to what placement knows of it: its place, labels, free space, and whether it is near.

A bookie may publish `location`, `labels` (with commas), `free_bytes` and `reads_only` (a reason) in its registration's
properties. They come from the network: what is wrong counts as not said, and never keeps a bookie from being used.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from functools import lru_cache

from fastbk.meta.api import READS_ONLY_PROPERTY, REASON_CHARACTERS_MAX, BookieRegistration
from fastbk.model.ids import BookieId
from fastbk.placement.topology import valid_labels, valid_location
from fastbk.placement.values import DEFAULT_LOCATION, BookieView

LOCATION_PROPERTY = "location"
LABELS_PROPERTY = "labels"
FREE_BYTES_PROPERTY = "free_bytes"

HOSTS_REMEMBERED_MAX = 4096


def view_of(
    registration: BookieRegistration,
    *,
    quarantined: bool = False,
    location_of: Callable[[BookieId, str], str | None] | None = None,
    is_local: Callable[[str], bool] | None = None,
) -> BookieView:
    """Return what is known of a registered bookie.

    Args:
        registration: as the metadata store lists it.
        quarantined: whether this client avoids it now.
        location_of: bookie id, host -> location, None where it does not know; it goes before what the bookie says
            of itself (`BookieLocations.location_of`).
        is_local: whether a host is this one; None: `is_local_host`.
    """
    service = registration.service
    endpoint = service.client_endpoint()
    host = endpoint.host if endpoint is not None else ""
    location = location_of(service.bookie_id, host) if location_of is not None else None
    if location is None:
        location = valid_location(service.properties.get(LOCATION_PROPERTY, ""))
    return BookieView(
        service.bookie_id,
        writable=registration.writable,
        quarantined=quarantined,
        free_bytes=_bytes_of(service.properties.get(FREE_BYTES_PROPERTY, "")),
        location=location or DEFAULT_LOCATION,
        labels=valid_labels(service.properties.get(LABELS_PROPERTY, "")),
        is_local=bool(host) and (is_local or is_local_host)(host),
        reads_only_reason=reads_only_reason(registration),
    )


def reads_only_reason(registration: BookieRegistration) -> str:
    """Return why the bookie takes no adds, as it published that; empty if it does, or does not say."""
    if registration.writable:
        return ""
    return " ".join(registration.service.properties.get(READS_ONLY_PROPERTY, "").split())[
        :REASON_CHARACTERS_MAX
    ]


@lru_cache(maxsize=HOSTS_REMEMBERED_MAX)
def is_local_host(host: str) -> bool:
    """Return whether `host` is this machine, without asking a name service: its own name, or an address it has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in ("localhost", socket.gethostname())
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))  # only addresses of this machine can be bound; nothing is sent
    except OSError:
        return False
    return not address.is_unspecified


def _bytes_of(text: str) -> int | None:
    """Return a size in bytes, None if `text` is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
