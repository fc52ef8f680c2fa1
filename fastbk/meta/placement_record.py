"""The cluster's rules of placement: one record of the metadata store, which `fastbk cluster placement set` changes.

Clients read it when they choose bookies, at most every ten seconds (`RecordCalls.cluster_rules`). A cluster without the
record has `fastbk.placement.rules.DEFAULT_RULE`; so has one whose record nobody can read (INV-M17).

Decision 168.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, MetadataConflict
from fastbk.meta.records import Change, bad_record
from fastbk.placement.rules import ClusterRules, decode_cluster, encode_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.meta.api import MetadataStore

PLACEMENT_PATH = "cluster/placement"
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
    return rules_or_default(None if found is None else found.value)


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
