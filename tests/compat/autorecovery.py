"""Apache's AutoRecovery daemon (auditor and replication worker) beside bookies of ours."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kazoo.exceptions import NoNodeError

from fastbk.model.protobuf import fields
from tests.compat.java_cells import Answer, run_cells
from tests.compat.members import STORAGES, free_port, loopback_settings, write_conf
from tests.compat.results import Result
from tests.compat.rig import Cluster, Rig

DAEMON_MAIN = "org.apache.bookkeeper.replication.AutoRecoveryMain"
CHECK_TIMES = ("checkallledgersctime", "replicascheckctime")


@contextmanager
def daemon(cluster: Cluster, changes: Mapping[str, object] | None = None) -> Iterator[None]:
    """Run the daemon with short periods; `changes` go before its settings."""
    settings: dict[str, object] = {
        "bookiePort": free_port(),
        **loopback_settings(cluster.metadata_uri),
        "lostBookieRecoveryDelay": 0,
        "auditorPeriodicCheckInterval": 15,
        "auditorReplicasCheckInterval": 15,
        "auditorPeriodicBookieCheckInterval": 5,
        "openLedgerRereplicationGracePeriod": 2000,
        "rwRereplicateBackoffMs": 1000,
        "httpServerEnabled": "false",
        **(changes or {}),
    }
    conf = cluster.folder / "autorecovery.conf"
    write_conf(conf, settings)
    with open(cluster.folder / "autorecovery.log", "ab") as log:
        process = subprocess.Popen(
            cluster.programs.command(DAEMON_MAIN, "--conf", str(conf)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def autorecovery_cells(rig: Rig, only: list[str], *, kind: str) -> Iterator[Result]:
    """AutoRecovery over five bookies, ours or Apache's, one of which is lost for good, or three of each kind.

    Of those one of each kind is lost.
    """
    ours, apache = {"ours": (5, 0), "apache": (0, 5), "mixed": (3, 3)}[kind]
    only = only or ["autorecovery-lost-both-kinds" if kind == "mixed" else "autorecovery-"]
    # Lists of entries, which one of the checks asks for, are not to be had from DbLedgerStorage.
    settings: dict[str, object] = {"ledgerStorageClass": STORAGES["sorted"]}
    with (
        rig.cluster(
            ours=ours, apache=apache, apache_settings=settings, is_made_by_apache=kind == "mixed"
        ) as cluster,
        daemon(cluster),
    ):
        arguments = [cluster.metadata_uri, "v3", "autorecovery", *only]
        answers = _answers(cluster)
        yield from run_cells(
            f"autorecovery > {kind}", cluster, rig.programs, arguments, more_answers=answers
        )


def _answers(cluster: Cluster) -> dict[str, Answer]:
    root = f"{cluster.location.root}/underreplication"

    def checks() -> str:
        times = []
        for name in CHECK_TIMES:
            try:
                data = cluster.kazoo.get(f"{root}/{name}")[0]
            except NoNodeError:
                times.append("0")
                continue
            times.append(
                str(next((field.integer() for field in fields(data) if field.number == 1), 0))
            )
        return " ".join(times)

    return {
        "autorecovery-checks": checks,
        "autorecovery-marked": lambda: str(marked_ledgers(cluster, f"{root}/ledgers")),
        "lose": lambda bookie_id: cluster.member(bookie_id).kill(),
    }


def marked_ledgers(cluster: Cluster, path: str) -> int:
    """Return how many ledgers Apache's nodes below `path` mark."""
    try:
        names = cluster.kazoo.get_children(path)
    except NoNodeError:
        return 0
    return sum(
        1 if name.startswith("urL") else marked_ledgers(cluster, f"{path}/{name}") for name in names
    )
