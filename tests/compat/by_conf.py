"""Bookies of ours with Apache's files and BK_ variables, as `fastbk bookie --config x.conf` starts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from tests.compat.java_cells import CELLS_MAIN, run_cells
from tests.compat.members import STORAGES, ConfMember, http_text
from tests.compat.results import Result, is_wanted, run_cell
from tests.compat.rig import Cluster, Rig

CELLS = (
    "append",
    "digest-",
    "quorum-3",
    "adv-",
    "deferred",
    "password-",
    "read-",
    "batch-",
    "lac-",
    "wire-",
    "recovery",
    "python-",
    "java-",
    "admin-bookies",
    "admin-bookie-info",
    "change-",
    "restart-",
)
"""Words of the Java cells that run here: all but what the part `java` has shown and no configuration touches."""
SETTINGS: dict[str, object] = {
    "ledgerStorageClass": STORAGES["db"],
    "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    "gcWaitTime": 20_000,
    "flushInterval": 5000,
    "journalMaxSizeMB": 64,
    "journalSyncData": "false",
    "extraServerComponents": "",
    "nettyMaxFrameSizeBytes": 5 << 20,
}
"""Beside what Apache's bookies of the rig have. The variables overrule what would be too little."""
VARIABLES = {"BK_journalSyncData": "true", "BK_gcWaitTime": "15000"}
IN_FORCE_SETTINGS = {"journal.sync": "always", "gcWaitTime": 15_000, "flushInterval": 5000}
"""What the two come to."""
LIMITS: dict[str, object] = {
    "maxPendingAddRequestsPerThread": 8,
    "maxPendingReadRequestsPerThread": 8,
    "numAddWorkerThreads": 1,
    "numReadWorkerThreads": 1,
}


def conf_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Four bookies by file; what the files say is in force; then Java's cells over both versions."""
    with rig.cluster(is_started=False) as cluster:
        cluster.add_by_conf(4, settings=SETTINGS, variables=VARIABLES)
        cluster.start()
        for name, cell in IN_FORCE.items():
            if is_wanted(name, only):
                yield run_cell("java v3 > by conf", name, lambda cell=cell: _each(cluster, cell))  # type: ignore[misc]
        for protocol in ("v3", "v2"):
            words = [cluster.metadata_uri, protocol, "client", *(only or CELLS)]
            yield from run_cells(
                f"java {protocol} > by conf", cluster, rig.programs, words, main_class=CELLS_MAIN
            )


def limit_cells(rig: Rig, only: list[str], *, kind: str) -> Iterator[Result]:
    """Four bookies with narrow limits: ours by file, or Apache's with the same file."""
    with rig.cluster(is_started=False) as cluster:
        if kind == "ours":
            cluster.add_by_conf(4, settings=LIMITS)
        else:
            cluster.add_apache(4, settings=LIMITS)
        cluster.start()
        for protocol in ("v3", "v2"):
            words = [cluster.metadata_uri, protocol, "limits", *only]
            yield from run_cells(f"java {protocol} > {kind}", cluster, rig.programs, words)


def _names(cluster: Cluster, member: ConfMember) -> None:
    """Id, address and cookie are those that Apache's bookie would have with the file."""
    root = cluster.location.root
    assert cluster.kazoo.exists(f"{root}/available/{member.bookie_id}"), "registration"
    cookie = cluster.kazoo.get(f"{root}/cookies/{member.bookie_id}")[0].decode()
    assert f'bookieHost: "127.0.0.1:{member.port}"' in cookie, cookie


def _http_server(_cluster: Cluster, member: ConfMember) -> None:
    assert http_text(member.http_port, "/heartbeat").strip() == "OK"
    assert "bookie_SERVER_STATUS" in http_text(member.http_port, "/metrics")


def _variables(_cluster: Cluster, member: ConfMember) -> None:
    """BK_ variables go before the file."""
    settings = json.loads(http_text(member.http_port, "/api/v1/config/server_config"))
    found = {name: settings.get(name) for name in IN_FORCE_SETTINGS}
    assert found == IN_FORCE_SETTINGS, found


def _directories(_cluster: Cluster, member: ConfMember) -> None:
    for name in ("journal", "ledgers"):
        assert any((member.folder / name).iterdir()), f"{name} is empty"


IN_FORCE: dict[str, Callable[[Cluster, ConfMember], None]] = {
    "conf-names": _names,
    "conf-http": _http_server,
    "conf-variables": _variables,
    "conf-directories": _directories,
}


def _each(cluster: Cluster, cell: Callable[[Cluster, ConfMember], None]) -> None:
    for member in cluster.members:
        assert isinstance(member, ConfMember)
        cell(cluster, member)
