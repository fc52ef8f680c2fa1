"""Apache's tuned and warm bookie as `./dev bench openloop` loads it, through both of its protocols."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.tools.benchmark.apache import PROTOCOLS, apache_clusters
from tests.tools.one_bookie import LoadedBookie


@contextmanager
def apache_bookies() -> Iterator[dict[str, tuple[LoadedBookie, int]]]:
    """Give the bookie once for each protocol, with the number that the load has for that, by the system's name."""
    with apache_clusters() as clusters:
        bookie = clusters.bookie("sorted")
        yield {f"Apache, {name}": (bookie, number) for name, number in PROTOCOLS.items()}
