"""Where bookies are, and in which groups, as Pulsar's operators say it: `pulsar-admin bookies set-bookie-rack`.

Pulsar keeps it in one node of ZooKeeper, `/bookies` beside the root of ledgers, as JSON: group, bookie's id, and of it
a rack and a host's name. A group of an isolated broker or namespace is such a group, so here it is a label.

    {"default": {"bookie1:3181": {"rack": "/eu/r1", "hostname": "bookie1"}}}

Each ledger of a namespace with groups names them in its custom metadata (`pulsar_group`). What cannot be read is named
and passed over: it must not keep bookies from being used. Pure.

Decision 169.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fastbk.model.ids import BookieId
from fastbk.placement.config import valid_labels, valid_location

RACKS_BYTES_MAX = 1024 * 1024
"""Of the node: ZooKeeper takes no larger one by default, and 1,000 bookies need a tenth of it."""
GROUP_KEY = "EnsemblePlacementPolicyConfig"
"""Of a ledger's custom metadata: the policy of its Pulsar namespace."""
GROUP_BYTES_MAX = 64 * 1024
FAULTS_SHOWN = 3
_POLICY_CLASS = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"


class PulsarBookie(msgspec.Struct, frozen=True):
    """What the node says of one bookie. `location` "": nothing of where it is."""

    location: str = ""
    groups: frozenset[str] = frozenset()


_SILENT: Final = PulsarBookie()


class PulsarRacks(msgspec.Struct, frozen=True):
    """What the node says.

    Attributes:
        bookies: by id, as it stands there, and by the host of an id with a port, as Pulsar finds them, too.
        faults: what is wrong with it, some sentences.
    """

    bookies: Mapping[str, PulsarBookie] = msgspec.field(default_factory=dict)
    faults: tuple[str, ...] = ()

    def of(self, bookie_id: BookieId, host: str) -> PulsarBookie:
        """Return what it says of a bookie: an id goes before a host."""
        return self.bookies.get(bookie_id) or self.bookies.get(host, _SILENT)


NO_RACKS: Final = PulsarRacks()


def decode_racks(raw: bytes) -> PulsarRacks:
    """Return what the node says. Of a bookie in several groups the last group's rack counts, as in Pulsar."""
    if len(raw) > RACKS_BYTES_MAX:
        fault = f"it has {len(raw):,} bytes, and is read up to {RACKS_BYTES_MAX:,}"
        return PulsarRacks(faults=(fault,))
    try:
        listed = msgspec.json.decode(raw, type=dict[str, dict[str, Any] | None])
    except (ValueError, RecursionError) as error:
        return PulsarRacks(faults=(f"it is no JSON of groups and bookies: {error}",))
    bookies: dict[str, PulsarBookie] = {}
    faults: list[str] = []
    for group, members in sorted(listed.items()):
        labels = valid_labels(group)
        if members and not labels:
            faults.append(f"group {group[:100]!r} is no label")
        for name, info in (members or {}).items():
            before = bookies.get(name, _SILENT)
            location = _location(info)
            if location is None:
                faults.append(f"{name[:100]!r} has a rack that is no location: {str(info)[:100]}")
            bookies[name] = PulsarBookie(location or before.location, before.groups | labels)
    for name, bookie in list(bookies.items()):
        host, colon, port = name.rpartition(":")
        if colon and port.isdecimal():
            bookies.setdefault(host, bookie)
    if len(faults) > FAULTS_SHOWN:
        faults[FAULTS_SHOWN:] = [f"and {len(faults) - FAULTS_SHOWN} more"]
    return PulsarRacks(bookies, tuple(faults))


def _location(info: object) -> str | None:
    """Return the location of what is said of a bookie, "" for none; None: it is wrong."""
    rack = info.get("rack") if isinstance(info, dict) else info
    if rack is None:
        return ""
    if not isinstance(rack, str):
        return None
    rack = rack.strip()
    if rack in ("", "/"):
        return ""
    return valid_location(rack if rack.startswith("/") else f"/{rack}")


def pulsar_group(custom: Mapping[str, bytes]) -> tuple[str, bool] | None:
    """Return the group that a ledger of Pulsar's is to stay in, and whether it is hard; None: it names none.

    It is soft where its namespace has secondary groups, too. Of several primary groups there is no rule here: None.
    """
    raw = custom.get(GROUP_KEY, b"")
    if not 0 < len(raw) <= GROUP_BYTES_MAX:
        return None
    try:
        fields = msgspec.json.decode(raw, type=dict[str, Any])
    except (ValueError, RecursionError):
        return None
    wanted = fields.get("properties")
    if fields.get("policyClass") != _POLICY_CLASS or not isinstance(wanted, dict):
        return None
    primary, secondary = (
        _names(wanted.get(key))
        for key in ("isolationBookieGroups", "secondaryIsolationBookieGroups")
    )
    return None if len(primary) != 1 else (min(primary), not secondary)


def _names(text: object) -> frozenset[str]:
    """Return the groups of a property: text with commas, or the list that an old broker writes."""
    names = text if isinstance(text, list) else [text]
    return valid_labels(",".join(name for name in names if isinstance(name, str)))
