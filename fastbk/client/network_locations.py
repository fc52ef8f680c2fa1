"""Where bookies are, as this client's configuration or a script of the operator's says it.

The script gets hosts as arguments and prints one location for each, in order: `/region/rack`. It runs in batches,
with a deadline, and its answers are kept. A script that fails is a problem of its own: bookies then are where they
say themselves, or at the default location; the failure is counted, told once, and the script is run again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fastbk.errors import ConfigError
from fastbk.model.ids import BookieId
from fastbk.observe.library_log import LibraryLog
from fastbk.placement.topology import Topology, locations_printed

_log = LibraryLog("fastbk.client")

BATCH_HOSTS_MAX = 100
OUTPUT_BYTES_MAX = 1 << 20
HOSTS_KEPT_MAX = 10_000

# Never an option of the script's: a host comes from the metadata store, where any bookie can write it.
_HOST = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:\-\[\]%]{0,254}")


class TopologyScript:
    """A script that tells locations. Its calls block and may come from any thread; one runs at a time."""

    def __init__(
        self,
        path: str | Path,
        *,
        timeout_s: float = 10.0,
        batch_hosts: int = BATCH_HOSTS_MAX,
        retry_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make it; nothing is run yet.

        Args:
            path: an executable file.
            timeout_s: longest run of one batch; above 0, at most an hour. It is killed then, with all it started.
            batch_hosts: most hosts in one run, 1..1000.
            retry_s: hosts that a run had no location for are asked for again after this.
            clock: seconds, for `retry_s`.
        """
        if not os.access(path, os.X_OK) or not Path(path).is_file():
            raise ConfigError(f"topology script {path}: it is no executable file")
        if not 0 < timeout_s <= 3600 or retry_s < 0:
            raise ConfigError(
                f"topology script: timeout_s={timeout_s}: must be above 0, up to 3600"
            )
        if not 1 <= batch_hosts <= 1000:
            raise ConfigError(f"topology script: batch_hosts={batch_hosts}: must be 1..1000")
        self.path = Path(path)
        self.runs = 0
        """Runs so far."""
        self.failures = 0
        """Runs that ended badly, ran out of time or printed something else."""
        self._timeout_s = timeout_s
        self._batch_hosts = batch_hosts
        self._retry_s = retry_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._unknown_until_s: dict[str, float] = {}
        self._has_told = False

    def location_of(self, host: str) -> str | None:
        """Return what is known of `host` by now; never runs anything."""
        return self._known.get(host)

    def learn(self, hosts: Collection[str]) -> None:
        """Ask the script for those of `hosts` that are not known; returns when all were asked. Raises nothing."""
        with self._lock:
            now_s = self._clock()
            wanted = [
                host
                for host in dict.fromkeys(hosts)
                if host not in self._known
                and self._unknown_until_s.get(host, now_s) <= now_s
                and _HOST.fullmatch(host)
            ]
            for first in range(0, len(wanted), self._batch_hosts):
                batch = wanted[first : first + self._batch_hosts]
                found = self._ask(batch)
                self._keep(batch, found)

    def _ask(self, hosts: Sequence[str]) -> dict[str, str]:
        self.runs += 1
        try:
            found = locations_printed(self._run(hosts), hosts)
        except (OSError, ValueError) as error:
            self.failures += 1
            if not self._has_told:
                _log.warning(
                    "client.topology_script_failed", script=str(self.path), reason=str(error)
                )
                self._has_told = True
            return {}
        if self._has_told:
            _log.info("client.topology_script_recovered", script=str(self.path))
            self._has_told = False
        return found

    def _run(self, hosts: Sequence[str]) -> str:
        """Return what the script prints. OSError, ValueError with the reason."""
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                [str(self.path.absolute()), *hosts],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = child.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                raise ValueError(f"it did not end within {self._timeout_s:g} s") from None
            finally:
                # What it started and left behind goes with it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            if code != 0:
                raise ValueError(f"it ended with code {code}")
            output.seek(0)
            printed = output.read(OUTPUT_BYTES_MAX + 1)
        if len(printed) > OUTPUT_BYTES_MAX:
            raise ValueError(f"it printed more than {OUTPUT_BYTES_MAX} bytes")
        return printed.decode("utf-8", "replace")

    def _keep(self, hosts: Sequence[str], found: dict[str, str]) -> None:
        self._known.update(found)
        until_s = self._clock() + self._retry_s
        for host in hosts:
            self._unknown_until_s.pop(host, None)
            if host not in found:
                self._unknown_until_s[host] = until_s
        for kept in (self._known, self._unknown_until_s):
            while len(kept) > HOSTS_KEPT_MAX:
                del kept[next(iter(kept))]


class BookieLocations:
    """Both sources together: the table goes before the script."""

    def __init__(
        self, topology: Topology | None = None, script: TopologyScript | None = None
    ) -> None:
        self.topology = topology if topology is not None else Topology()
        self.script = script

    @classmethod
    def of(cls, table: Mapping[str, str], script: str | None = None) -> BookieLocations:
        """Return those of a configuration. ConfigError names what is wrong with it."""
        return cls(Topology.of(table), None if script is None else TopologyScript(script))

    def location_of(self, bookie_id: BookieId, host: str) -> str | None:
        """Return where a bookie is as far as it is known by now; blocks for nothing. Goes into `view_of`."""
        location = self.topology.location_of(bookie_id, host)
        if location is None and self.script is not None:
            location = self.script.location_of(host)
        return location

    def learn_blocking(self, bookies: Collection[tuple[BookieId, str]]) -> None:
        """Run the script for the hosts that the table says nothing of; (bookie id, host) each."""
        if self.script is not None:
            self.script.learn(
                [
                    host
                    for bookie_id, host in bookies
                    if host and self.topology.location_of(bookie_id, host) is None
                ]
            )

    async def learn(self, bookies: Collection[tuple[BookieId, str]]) -> None:
        """Like `learn_blocking`, in a thread; a cancelled call lets the script end by itself."""
        if self.script is not None:
            await asyncio.to_thread(self.learn_blocking, bookies)
