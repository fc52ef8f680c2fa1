"""The cluster's rules of placement: one record of the metadata store, which `fastbk cluster placement set` changes.

Clients read it when they choose bookies, at most every ten seconds (`fastbk.client.ensembles`). A cluster without the
record has `fastbk.placement.rules.DEFAULT_RULE`; so has one whose record nobody can read (INV-M17).

With it comes what Pulsar's operators say of where bookies are, from Pulsar's own node, which nobody writes here.

Decisions 168 and 169.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fastbk.errors import ConfigError, MetadataConflict
from fastbk.meta.records import Change, bad_record
from fastbk.placement.pulsar_racks import NO_RACKS, PulsarRacks, decode_racks
from fastbk.placement.rules import ClusterRules, decode_cluster, encode_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.meta.api import MetadataStore

PLACEMENT_PATH = "cluster/placement"
PULSAR_NODE = "Pulsar's node /bookies"
TRIES_MAX = 20


def rules_or_default(stored: bytes | None) -> ClusterRules:
    """Return what the record says. One that nobody can read is named, and says nothing."""
    if stored is None:
        return ClusterRules()
    try:
        return decode_cluster(stored)
    except ConfigError as error:
        bad_record(PLACEMENT_PATH, f"{error}; `fastbk cluster placement set` writes it anew")
        return ClusterRules()


def read_rules(store: MetadataStore) -> ClusterRules:
    """Return the cluster's rules. Raises MetadataUnavailable."""
    (found,) = store.records.read([PLACEMENT_PATH])
    rules = rules_or_default(None if found is None else found.value)
    return replace(rules, pulsar=_read_racks(store))


def _read_racks(store: MetadataStore) -> PulsarRacks:
    raw = store.pulsar_racks()
    racks = NO_RACKS if raw is None else decode_racks(raw)
    if racks.faults:
        bad_record(PULSAR_NODE, f"{'; '.join(racks.faults)}; `pulsar-admin bookies` mends it")
    return racks


def change_rules(
    store: MetadataStore, change: Callable[[ClusterRules], ClusterRules]
) -> ClusterRules:
    """Change the cluster's rules; return what they are then. `change` may be called again with what others stored.

    Raises MetadataUnavailable, MetadataConflict, and what `change` does.
    """
    for _ in range(TRIES_MAX):
        (found,) = store.records.read([PLACEMENT_PATH])
        changed = change(rules_or_default(None if found is None else found.value))
        version = None if found is None else found.version
        try:
            store.records.change([Change(PLACEMENT_PATH, encode_cluster(changed), version)])
        except MetadataConflict:
            continue
        return changed
    raise MetadataConflict(f"record {PLACEMENT_PATH}: others change it again and again: try again")
