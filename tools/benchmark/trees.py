"""A bookie and a client of fastbk's own, of this tree or of another commit's.

The load on one bookie is always this tree's, in C, whoever's the bookie is. The client library is the tree's own: it
runs in a program (`client_load.py`) with that tree's Python.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from fastbk.devcluster import processes as devcluster_bookie
from fastbk.doctor.machine import disk_of, interrupts_of
from fastbk.server.configuration.bookie_config import BookieConfig
from tools import ROOT, background_work, bench_restart
from tools.benchmark import bookie_loads
from tools.benchmark.cases import (
    Append,
    BesideC,
    CompactionDuringWrites,
    DiskBytes,
    LedgerCalls,
    Load,
    Read,
    Replicated,
    Restart,
    StreamTail,
    StreamToArrow,
    TailRead,
)
from tools.benchmark.run import Figures
from tools.benchmark.system import Measure, System, answer_of
from tools.one_bookie import one_bookie
from tools.part import scratch

Settings = Mapping[str, Mapping[str, object]]
CLIENT_LOAD = Path(__file__).with_name("client_load.py")
COMPACTION_MIB = 1024
ARROW_ROUNDS = 3
SPIN = "300us"
FLUSH_INTERVAL_S = 2
"""Where all is to be written soon after the load's end. During it caches are full before that."""
LAP_ENTRIES = 40_000
"""More than an add ring holds: its pages are there from the second lap on. Other systems are warm, too."""


class Tree(System):
    """One bookie of a tree, fresh for each measurement; or the tree's client on three."""

    def __init__(
        self, name: str, tree: Path = ROOT, *, protocol: int = 0, settings: Settings | None = None
    ) -> None:
        """`protocol`: what the load speaks, as `LoadOptions` has it."""
        self.name = name
        self._tree = tree
        self._protocol = protocol
        self._settings = settings

    def measures(self) -> Mapping[type, Measure]:
        return {
            **{kind: self._on_one_bookie for kind in bookie_loads.ON_ONE_BOOKIE},
            CompactionDuringWrites: self._during_compaction,
            Restart: self._restart,
            Replicated: lambda load, seconds: self._client("append", load.window, seconds),
            BesideC: lambda load, _: self._client("beside", load.pairs),
            LedgerCalls: lambda load, _: self._client("ledgers", load.count),
            StreamToArrow: lambda load, _: self._client("arrow", load.mib, ARROW_ROUNDS),
            StreamTail: self._stream_tail,
        }

    def can(self, load: Load) -> bool:
        """Whether it differs from the same tree by our protocol and without settings."""
        if self._protocol or self._settings:
            has_batches = self._protocol != 3 or not (
                isinstance(load, Read) and load.entries_a_read > 1
            )
            return isinstance(load, Append | Read) and has_batches
        # The stream's two processes and the compaction are driven by parts of this tree.
        is_other = self._tree != ROOT
        return super().can(load) and not (
            is_other and isinstance(load, StreamTail | CompactionDuringWrites)
        )

    def _on_one_bookie(self, load: Load, seconds: float) -> Figures:
        settings = self._settings
        if isinstance(load, DiskBytes):
            settings = {"ledgers": {"flush_interval": f"{FLUSH_INTERVAL_S}s"}}
        with (
            scratch() as folder,
            bookies_of(self._tree),
            one_bookie(folder / "cluster", settings) as bookie,
        ):
            bookie.protocol = self._protocol
            if isinstance(load, DiskBytes):
                bookie.flush_interval_s = FLUSH_INTERVAL_S
            if isinstance(load, Append | TailRead):
                bookie.write(bookie.create_ledger(), LAP_ENTRIES)
                bookie_loads.until_disk_rests(bookie)
            return bookie_loads.ON_ONE_BOOKIE[type(load)](bookie, load, seconds)

    def _during_compaction(self, load: CompactionDuringWrites, seconds: float) -> Figures:
        with (
            scratch() as folder,
            one_bookie(folder / "cluster", background_work.COMPACTED) as bookie,
        ):
            background_work.make_half_dead(bookie, COMPACTION_MIB)
            bookie.restart()  # what was deleted is counted as dead from its last flush on
            with background_work.compaction(bookie) as written_bytes:
                before = written_bytes()
                figures = bookie_loads.append(bookie, Append(load.window), seconds)
                behind = (written_bytes() - before) / 1e6 / seconds
        return {**figures, "behind_mb_per_s": behind}

    def _restart(self, load: Restart, _: float) -> Figures:
        with scratch() as folder, bookies_of(self._tree), contextlib.redirect_stdout(io.StringIO()):
            found = bench_restart.much(folder / "cluster", load.mib / 1024)
        return {
            "first_write_s": found["first_write_s"],
            "bookie_cpu_s": found["bookie_cpu_s"],
            "memory_mb": found["memory_mb"],
        }

    def _client(self, what: str, *numbers: float) -> Figures:
        python = self._tree / ".venv/bin/python"
        environment = {**os.environ, "PYTHONPATH": str(self._tree)}
        command = [python, "-P", CLIENT_LOAD, what, *numbers]
        return answer_of(command, f"the client of {self.name}", environment)

    def _stream_tail(self, load: StreamTail, seconds: float) -> Figures:
        command = [
            self._tree / ".venv/bin/python",
            "-m",
            "tools.benchmark.stream_tail",
            "once",
            load.rate_per_s,
            seconds,
        ]
        return answer_of(
            command, "a stream's tailing reader", {**os.environ, "PYTHONPATH": str(self._tree)}
        )


@contextlib.contextmanager
def bookies_of(tree: Path) -> Iterator[None]:
    """Have bookies that are started inside run that tree's code, with its Python."""
    if tree == ROOT:
        yield
        return
    plain_environment = devcluster_bookie.environment

    def command(module: str, *arguments: str) -> list[str]:
        return [str(tree / ".venv/bin/python"), "-P", "-s", "-m", module, *arguments]

    def environment() -> dict[str, str]:
        return {**plain_environment(), "PYTHONPATH": str(tree)}

    with (
        mock.patch.object(devcluster_bookie, "command", command),
        mock.patch.object(devcluster_bookie, "environment", environment),
    ):
        yield


def pinned_settings() -> Settings | None:
    """Return settings that keep workers and journals where the disk interrupts, and spin; None: not known where."""
    disk = disk_of(str(ROOT))
    counts = interrupts_of(Path("/proc/interrupts").read_text(), disk[1]) if disk else {}
    if not counts:
        return None
    settings: dict[str, object] = {
        "processors": [max(counts, key=lambda processor: counts[processor])]
    }
    bookie_settings = type(BookieConfig().bookie)
    if "spin_us" in bookie_settings.__struct_fields__:
        settings["spin"] = SPIN
    return {"bookie": settings}
