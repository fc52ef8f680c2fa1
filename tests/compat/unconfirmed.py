"""Ledgers of Apache's clients on bookies of ours that forget unconfirmed ledgers after a second."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import fastbk.sync
from fastbk.devcluster.processes import wait_for
from tests.compat.java_cells import run_cells
from tests.compat.members import http_text
from tests.compat.results import Result, run_cell
from tests.compat.rig import Cluster, Rig
from tests.fixtures.confirmed import UNCONFIRMED

SETTINGS: dict[str, dict[str, object]] = {"gc": {"interval": "500ms", "unconfirmed_age": "1s"}}
CELLS = (
    "append",
    "digest-",
    "adv-",
    "deferred",
    "password-",
    "lac-",
    "recovery",
    "python-",
    "java-",
)
CONFIRMED_S_MAX = 30.0
NAME = "unconfirmed-none-listed"


def unconfirmed_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Java's cells over both versions; then no ledger that metadata lists may have expired."""
    with rig.cluster(ours=4, our_settings=SETTINGS) as cluster:
        for protocol in ("v3", "v2"):
            words = [cluster.metadata_uri, protocol, "client", *(only or CELLS)]
            column = f"java {protocol} > short age"
            yield from run_cells(column, cluster, rig.programs, words)
        yield run_cell(column, NAME, lambda: _check(cluster))


def _check(cluster: Cluster) -> None:
    wait_for(lambda: not any(_unconfirmed(cluster)), CONFIRMED_S_MAX, "all to be confirmed or gone")
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        listed = {info.ledger_id for info in client.list_ledgers()}
    assert listed
    assert not listed & _expired(cluster), f"{sorted(listed & _expired(cluster))} expired"


def _unconfirmed(cluster: Cluster) -> list[float]:
    """Return how many ledgers of each bookie are not confirmed."""
    found = []
    for member in cluster.members:
        value = UNCONFIRMED.search(http_text(member.http_port, "/metrics"))
        assert value is not None
        found.append(float(value[1]))
    return found


def _expired(cluster: Cluster) -> set[int]:
    """Return the ledgers that the bookies' deletion logs say expired."""
    assert cluster.ours is not None
    paths = [
        path for one in cluster.ours.bookies for path in Path(one.directory).rglob("audit.log")
    ]
    return {
        ledger_id
        for path in paths
        for line in path.read_text().splitlines()
        for ledger_id in json.loads(line).get("expired", ())
    }
