"""Ledgers of Apache's clients on bookies of ours that forget unconfirmed ledgers after a second."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import fastbk.sync
from fastbk.devcluster.processes import wait_for
from tests.compat.java_cells import run_cells
from tests.compat.results import Result
from tests.compat.rig import HTTP_S_MAX, Cluster, Rig

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
        started_s = time.monotonic()
        verdict, reason = "pass", ""
        try:
            _check(cluster)
        except (AssertionError, TimeoutError) as error:
            verdict, reason = "fail", f"{type(error).__name__}: {error}"
        yield Result(column, NAME, verdict, time.monotonic() - started_s, reason)


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
        url = f"http://127.0.0.1:{member.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=HTTP_S_MAX) as answer:
            text = answer.read().decode()
        value = re.search(
            r"^fastbk_journal_ledgers_unconfirmed(?:{.*})? (\S+)$", text, re.MULTILINE
        )
        assert value is not None
        found.append(float(value[1]))
    return found


def _expired(cluster: Cluster) -> set[int]:
    """Return the ledgers that the bookies' audit logs say expired."""
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
