"""Where the members of a ledger's last ensemble are, as its ack sets count: recorded with the ledger, by its writer.

An example: a ledger is to be durable in two racks. Its custom metadata have, under ACK_DOMAINS_KEY,

    {"racks": 2, "of": {"b1": "/eu/r1", "b2": "/eu/r1", "b3": "/eu/r2"}}

An append is acknowledged when b3 and another have it. If rack r1 is lost, b3 alone decides what was acknowledged.

INV-P5: writer and recovery count the domains that are recorded here, never those of today's table. A record changes
only with the ensemble, in the same compare-and-set, while the head is frozen (INV-E1): of the entries of the last
fragment that were acknowledged, all were by this record. Where it does not name a member, that one adds no domain for
the writer, and a domain of its own for a recovery. So whatever is acknowledged contains an ack set of the recovery's.

Only the last ensemble is recorded: entries of earlier fragments are acknowledged. What a ledger is to span is recorded,
too: the rule that is stored with it (`fastbk.placement.rules`) is for choosing bookies. A record that nobody can read,
or that is not there, means the plain count, which is stricter (INV-Q5).

Decision 172.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import msgspec

from fastbk.errors import ConfigError
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import ENSEMBLE_SIZE_MAX, AckSets, Span
from fastbk.placement.choose_ensemble import domains_of
from fastbk.placement.config import PlacementConfig, valid_location
from fastbk.placement.rules import ACK_RACKS, ACK_REGIONS, ACK_ZONES, COUNTED

ACK_DOMAINS_KEY = "fastbk.ack-domains"
RECORD_BYTES_MAX = 64 * 1024


class AckDomains(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an ack set of a ledger spans, and where the members of its last ensemble are."""

    racks: int = 1
    regions: int = 1
    zones: int = 1
    of: Mapping[BookieId, str] = msgspec.field(default_factory=dict)
    """Their locations. One that is not in it is not known."""

    def __post_init__(self) -> None:
        if not all(
            1 <= count <= ENSEMBLE_SIZE_MAX for count in (self.racks, self.regions, self.zones)
        ):
            raise ValueError(f"racks, regions and zones are 1..{ENSEMBLE_SIZE_MAX}")

    def changed(
        self, ensemble: Sequence[BookieId], locations: Mapping[BookieId, str]
    ) -> AckDomains:
        """Return the record of another ensemble; `locations` go before what was known."""
        both = {**self.of, **locations}
        return msgspec.structs.replace(
            self, of={member: both[member] for member in ensemble if member in both}
        )

    def allows(self, metadata: LedgerMetadata, ensemble: Sequence[BookieId]) -> bool:
        """Return whether an append can be acknowledged at all by these members of a ledger's ensemble."""
        fragment = replace(metadata.fragments[-1], ensemble=tuple(ensemble))
        changed = replace(metadata, fragments=(*metadata.fragments[:-1], fragment))
        return acknowledging(changed, self).in_every_write_set(range(len(ensemble)))


def custom_of_new(
    rule: PlacementConfig, write_quorum: int, locations: Mapping[BookieId, str]
) -> dict[str, bytes]:
    """Return what a new ledger's custom metadata have of its ack sets: nothing where a rule counts no domains.

    Raises ConfigError where no entry has as many copies as it is to span domains.
    """
    counted = COUNTED[rule.policy]
    racks, regions, zones = (
        getattr(rule, name) if name in counted else 1
        for name in (ACK_RACKS, ACK_REGIONS, ACK_ZONES)
    )
    wanted = max(racks, regions, zones)
    if wanted == 1:
        return {}
    if wanted > write_quorum:
        raise ConfigError(
            f"an append is to be durable in {wanted} {rule.policy}s, and write_quorum={write_quorum} makes"
            f" {write_quorum} {'copy' if write_quorum == 1 else 'copies'}: raise write_quorum, or lower the minimum of"
            " the ack quorum (`fastbk cluster placement show` prints the cluster's)"
        )
    record = AckDomains(racks, regions, zones, dict(locations))
    return {ACK_DOMAINS_KEY: msgspec.json.encode(record)}


def recorded(custom: Mapping[str, bytes]) -> AckDomains | None:
    """Return a ledger's record; None: it has none, or nobody can read it."""
    stored = custom.get(ACK_DOMAINS_KEY)
    if stored is None or len(stored) > RECORD_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(stored, type=AckDomains)
    except (ValueError, RecursionError):
        return None


def custom_of_changed(
    custom: Mapping[str, bytes], domains: AckDomains | None, ensemble: Sequence[BookieId]
) -> dict[str, bytes]:
    """Return custom metadata with what a writer knows of its members, over what is stored.

    `domains` None: it counts none. A record that somebody has removed stays so: the plain count is safe.
    """
    stored = recorded(custom)
    if domains is None or stored is None:
        return dict(custom)
    changed = stored.changed(ensemble, domains.of)
    return {**custom, ACK_DOMAINS_KEY: msgspec.json.encode(changed)}


def is_moved(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Return whether two records of a ledger span the same, and differ at most in where members are."""
    old, new = recorded(before), recorded(after)
    return old is not None and new is not None and old.changed((), {}) == new.changed((), {})


def without_record(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return metadata that say nothing of domains: whoever decides by them uses the plain count."""
    custom = {key: value for key, value in metadata.custom.items() if key != ACK_DOMAINS_KEY}
    return replace(metadata, custom=custom)


def acknowledging(metadata: LedgerMetadata, domains: AckDomains | None) -> AckSets:
    """Return the ack sets of the last fragment for whoever acknowledges: one that is not known adds no domain."""
    return _ack_sets(metadata, domains, [None] * metadata.ensemble_size)


def deciding(metadata: LedgerMetadata, fragment: Fragment | None = None) -> AckSets:
    """Return the ack sets of a fragment, the last by default, for whoever decides what was never acknowledged.

    One that is not recorded is in a domain of its own. Entries of earlier fragments are acknowledged, so there the
    plain count is as good.
    """
    if fragment is not None and fragment != metadata.fragments[-1]:
        return AckSets(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    return _ack_sets(metadata, recorded(metadata.custom), list(range(metadata.ensemble_size)))


def _ack_sets(
    metadata: LedgerMetadata, domains: AckDomains | None, unknown: Sequence[Hashable | None]
) -> AckSets:
    quorums = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
    if domains is None:
        return AckSets(*quorums)
    ensemble = metadata.fragments[-1].ensemble
    known = [valid_location(domains.of.get(bookie_id, "")) for bookie_id in ensemble]

    def span(count: int, noun: str) -> Span:
        places = [
            unknown[index] if location is None else _domain_of(location, noun)
            for index, location in enumerate(known)
        ]
        return Span(count, tuple(places), noun)

    counts = (("rack", domains.racks), ("region", domains.regions), ("zone", domains.zones))
    return AckSets(*quorums, tuple(span(count, noun) for noun, count in counts if count > 1))


def _domain_of(location: str, noun: str) -> str:
    if noun == "zone":
        return domains_of(location, "zone").upper
    domains = domains_of(location, "region")
    return domains.whole if noun == "rack" else domains.upper
