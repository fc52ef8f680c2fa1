"""Where bookies are, as an operator's script says it, in the cluster's table: `cluster placement set --script FILE`.

AutoRecovery does the same again and again where its own options name the script. No record names one: a right to change
metadata must not become a right to run programs on every client.

Decision 169.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fastbk.client.known_bookies import TopologyScript
from fastbk.errors import ConfigError
from fastbk.meta.placement_record import change_rules, read_rules

if TYPE_CHECKING:
    from pathlib import Path

    from fastbk.meta.api import MetadataStore
    from fastbk.placement.rules import ClusterRules


def locations_by_script(store: MetadataStore, path: str | Path) -> dict[str, str]:
    """Return what a script says of the registered bookies: rows of the cluster's table, by their ids.

    Raises ConfigError where it fails, or knows none of them, and MetadataUnavailable.
    """
    script = TopologyScript(path)
    hosts = {
        bookie.service.bookie_id: endpoint.host
        for bookie in store.list_bookies()
        if (endpoint := bookie.service.client_endpoint()) is not None
    }
    script.learn(hosts.values())
    if script.failures:
        raise ConfigError(f"topology script {path}: {script.last_failure}")
    rows = {
        bookie_id: location
        for bookie_id, host in hosts.items()
        if (location := script.location_of(host)) is not None
    }
    if hosts and not rows:
        raise ConfigError(f"topology script {path}: it printed no location, as /region/rack")
    return rows


def with_rows(rules: ClusterRules, rows: dict[str, str]) -> ClusterRules:
    """Return the rules with these rows in their table; others stay, also those of bookies that are away."""
    return replace(rules, locations={**rules.locations, **rows})


def refresh_locations(store: MetadataStore, path: str | Path) -> list[str]:
    """Have the table say what a script says; return whose rows have changed. Raises as `locations_by_script`."""
    rows = locations_by_script(store, path)
    known = read_rules(store).locations
    changed = sorted(name for name, location in rows.items() if known.get(name) != location)
    if changed:
        change_rules(store, lambda rules: with_rows(rules, rows))
    return changed
