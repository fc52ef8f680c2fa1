"""All checks of one bookie, in the order in which a start would meet what they look at."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from fastbk.apache.configuration import source
from fastbk.doctor.cluster import Cluster
from fastbk.doctor.data import Data
from fastbk.doctor.disks import Disks
from fastbk.doctor.report import fail, ok, take
from fastbk.doctor.system import System
from fastbk.doctor.tradeoffs import Choices
from fastbk.errors import ConfigError
from fastbk.server.configuration import bookie_file
from fastbk.server.configuration import process_config as server_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastbk.doctor.report import Finding


def examine(path: Path | None) -> Iterator[Finding]:
    """Look over the bookie that the file at `path` configures; without one only the machine. Raises nothing."""
    if path is None:
        yield from take(System(server_config.BookieConfig()).checks())
        return
    try:
        config = bookie_file.load(path)
        server_config.check(config)
    except ConfigError as error:
        cure = "fastbk bookie --example prints a file with every key"
        if source.is_apache(path):
            cure = f"fastbk config check {path} says what becomes of each of its keys"
        yield fail("configuration", str(error), cure)
        yield from take(System(server_config.BookieConfig()).checks())
        return
    yield ok("configuration", f"{path} makes sense")
    parts = (System(config), Choices(config), Disks(config), Data(config), Cluster(config))
    yield from take(chain.from_iterable(part.checks() for part in parts))
