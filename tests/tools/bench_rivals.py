"""Apache BookKeeper's bookie for `./dev bench`, loaded by the same program in C through Apache's protocols.

It is tuned for latency, as in tests/compat/bench.py: it commits as soon as its queue is empty, has a heap of 1 GiB and
caches to match, and it is warm. Its metadata is in a ZooKeeper of its own; nothing of that is on the path of an add.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.compat.bench import APACHE_SETTINGS, BOOKIE_OPTIONS
from tests.compat.jars import programs
from tests.compat.rig import Cluster, Rig
from tests.style.tree import ROOT
from tests.tools.bench_report import Figures
from tests.tools.part import BUILD

PROTOCOLS = {"Apache, v3": "v3", "Apache, v2": "v2"}
WARM_UP_S = 5.0


class ApacheBookie:
    """One bookie of Apache's that runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def measure(self, system: str, arguments: tuple[str, ...], seconds: float) -> Figures:
        """Load it with these arguments of `fastbk bench`; processor time is all of its Java, the load's checks too."""
        from tests.tools.bench import load_of

        there = ("--metadata", self._cluster.metadata_uri, "--protocol", PROTOCOLS[system])
        before_s = self._cluster.members[0].cpu_s()
        found = load_of(ROOT, (*arguments, *there), seconds)
        used_s = self._cluster.members[0].cpu_s() - before_s
        return {**found, "bookie_us": used_s * 1e6 / found["entries"]}


@contextmanager
def apache_bookie() -> Iterator[ApacheBookie]:
    """Give a bookie that has been warmed up. Its data are on the tree's disk."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-apache-", dir=BUILD) as folder,
        Rig(Path(folder), programs()) as rig,
        rig.cluster(apache=1, apache_settings=APACHE_SETTINGS, java_options=BOOKIE_OPTIONS) as cluster,
    ):
        bookie = ApacheBookie(cluster)
        for system in PROTOCOLS:
            for window in ("1", "1000"):
                bookie.measure(system, ("append", "--window", window), WARM_UP_S)
        yield bookie
