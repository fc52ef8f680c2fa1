"""All checks of one bookie, in the order in which a start would meet what they look at."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from fastbk.apache.configuration import source
from fastbk.doctor.cluster import Cluster
from fastbk.doctor.data import Data
from fastbk.doctor.disks import Disks
from fastbk.doctor.report import Finding, fail, ok, run_checks, warn
from fastbk.doctor.system import System
from fastbk.errors import ConfigError
from fastbk.server.configuration import bookie_file
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastbk.doctor.report import Check
    from fastbk.server.configuration.bookie_config import BookieConfig

def examine(path: Path | None) -> Iterator[Finding]:
    """Look over the bookie that the file at `path` configures; without one only the machine. Raises nothing."""
    if path is None:
        yield from run_checks(System(BookieConfig()).checks())
        return
    try:
        config = bookie_file.load(path)
        check(config)
    except ConfigError as error:
        cure = "fastbk bookie --example prints a file with every key"
        if source.is_apache(path):
            cure = f"fastbk config check {path} says what becomes of each of its keys"
        yield fail(str(error), cure, "configuration")
        yield from run_checks(System(BookieConfig()).checks())
        return
    yield ok(f"{path} makes sense", "configuration")
    parts = (System(config), Tradeoffs(config), Disks(config), Data(config), Cluster(config))
    yield from run_checks(chain.from_iterable(part.checks() for part in parts))


class Tradeoffs:
    """What one configuration chose."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config

    def checks(self) -> Iterator[Check]:
        """Yield all looks at choices."""
        yield "durability", self.durability
        yield "deletions", self.deletions

    def durability(self) -> Finding:
        """Whether an acknowledged entry survives a power cut here (INV-J1)."""
        if self._config.journal.sync == "never":
            return warn(
                "[journal] sync = never: what was acknowledged may be gone after a power cut",
                'sync = "always", unless this is a test or the data can be made again',
            )
        return ok("acknowledged after the sync")

    def deletions(self) -> Finding:
        """Whether a wrong metadata store could have everything deleted."""
        share = self._config.gc.delete_ratio_max
        if share >= 1.0:
            return warn(
                "[gc] delete_ratio_max = 1.0: with an empty metadata store all ledgers here would be deleted",
                "take it out again; `fastbk bookie gc run --force` allows it once",
            )
        return ok(f"at most {share:.0%} of the ledgers in one cycle")
