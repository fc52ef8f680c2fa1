"""`./dev load`: locust, headless or with its web interface, against a cluster of its own or an existing one.

loadtest/README.md describes the variables. Locust has an environment of its own, `.venv-load`, made
on first use from requirements/load.txt.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import fastbk.sync
from fastbk.errors import Error
from fastbk.testing import LocalCluster
from loadtest import chaos, kept, report, thresholds
from loadtest.run import NOT_DONE, Plan
from tools import ROOT
from tools.environments import ensure_environment

VENV = ".venv-load"
LOCUSTFILE = ROOT / "loadtest/locustfile.py"
REQUIREMENTS = (ROOT / "requirements/load.txt", ROOT / "requirements/run.txt")
LOST = 4
USAGE = 2
SETTINGS = {
    "gc": {"interval": "1s", "unconfirmed_age": "1min", "minor_interval": "10s"},
    "ledgers": {"entry_log_size": "256MiB"},
}
"""Users delete full ledgers. The space is free within seconds, and a soak does not fill the disk."""
PATIENCE_S = 120
"""Beyond the run's own seconds: locust's start and end."""
KINDS = (
    "SmallAppends", "MediumAppends", "LargeAppends", "BatchAppends", "StreamAppends", "ProducerAppends", "Tailing",
    "CatchUp", "RandomReads", "LedgerChurn", "Cursors",
)  # fmt: skip


@dataclass
class Wish:
    """The variables of a run."""

    seconds: float = 30.0
    users: int = 10
    processes: int = 1
    shape: str = ""
    kinds: list[str] = field(default_factory=list)
    thresholds: str = ""
    chaos: str = ""
    metadata: str = ""
    with_apache: bool = False
    tls: bool = False
    with_page: bool = False
    keep: bool = False
    step_s: float = 10.0
    port: int = 8089

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Wish:
        """Return the variables of an environment. Raises ValueError that says which one is wrong."""
        seconds = float(given.get("SECONDS", "30"))
        wish = cls(
            seconds=seconds,
            users=int(given.get("USERS", "10")),
            processes=int(given.get("PROCESSES", "1")),
            shape=given.get("SHAPE", ""),
            kinds=[one.strip() for one in given.get("ONLY", "").split(",") if one.strip()],
            thresholds=given.get("THRESHOLDS", ""),
            chaos=given.get("CHAOS", ""),
            metadata=given.get("METADATA", ""),
            with_apache=given.get("APACHE", "") == "1",
            tls=given.get("TLS", "") == "1",
            with_page=given.get("UI", "") == "1",
            keep=given.get("KEEP", "") == "1",
            step_s=float(given.get("STEP_SECONDS", "10")),
            port=int(given.get("PORT", "8089")),
        )
        if wish.chaos == "1":
            wish.chaos = chaos.usual(seconds)
        wish.check()
        return wish

    def check(self) -> None:
        """Raise ValueError that says which variable is wrong."""
        if self.seconds <= 0 or self.users < 1 or not 1 <= self.processes <= 64:
            raise ValueError("SECONDS, USERS and PROCESSES are above 0, PROCESSES at most 64")
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"ONLY={','.join(unknown)}: kinds are {', '.join(KINDS)}")
        Plan(self.shape).check()
        thresholds.parse(self.thresholds)
        chaos.parse(self.chaos, self.bookies)
        if self.chaos and (self.metadata or self.with_apache):
            raise ValueError(
                "CHAOS is for the cluster that ./dev load starts, not with METADATA or APACHE"
            )
        if self.tls and (self.metadata or self.with_apache):
            raise ValueError(
                "TLS is for the cluster that ./dev load starts; elsewhere FASTBK_TLS_CA_FILE is"
            )

    @property
    def bookies(self) -> int:
        """How many bookies run. With a fourth, a new ledger finds three while one is down."""
        return 4 if self.chaos else 3


@contextlib.contextmanager
def cluster_of(wish: Wish) -> Iterator[tuple[str, LocalCluster | None]]:
    """Yield the cluster's URI, and the cluster if it was started here."""
    if wish.metadata:
        yield wish.metadata, None
    elif wish.with_apache:
        # Only this case needs Apache's jars.
        from tools.benchmark.apache import apache_clusters

        with apache_clusters() as clusters:
            yield clusters.three("sorted").metadata_uri, None
    else:
        with LocalCluster(wish.bookies, settings=SETTINGS, tls=wish.tls) as cluster:
            # Locust, its clients and the audit have it by the environment.
            variables = cluster.tls_options.environment() if cluster.tls_options else {}
            with mock.patch.dict(os.environ, variables):
                yield cluster.metadata_uri, cluster


def run_locust(
    metadata_uri: str, wish: Wish, out: Path, folder: Path, faults: chaos.Chaos | None = None
) -> int:
    """Run locust until it ends, with its results in `out` and its notes in `folder`. Return its exit code."""
    users, seconds = str(wish.users), f"{wish.seconds:g}s"
    command = [
        str(ensure_environment(VENV, *REQUIREMENTS)),
        "-m",
        "locust",
        "-f",
        str(LOCUSTFILE),
    ]
    if wish.with_page:
        command += ["--web-host", "127.0.0.1", "--web-port", str(wish.port)]
        url = f"http://localhost:{wish.port}"
        print(f"locust: {url}   exact figures: {url}/exact   Ctrl-C ends it", flush=True)
    else:
        command += ["--headless", "--only-summary", "--loglevel", "WARNING"]
    if not wish.shape:
        command += ["--users", users, "--spawn-rate", users, "--run-time", seconds]
    if wish.processes > 1:
        command += ["--processes", str(wish.processes), "--master-bind-host", "127.0.0.1"]
        port = str(free_port())
        command += ["--master-bind-port", port, "--master-port", port]
    events, events_of_locust = os.pipe()
    environment = {
        **os.environ,
        "FASTBK_METADATA": metadata_uri,
        "FASTBK_LOAD_OUT": str(out),
        "FASTBK_LOAD_NOTES": str(folder),
        "FASTBK_LOAD_EVENTS": str(events_of_locust),
        "FASTBK_LOAD_SHAPE": wish.shape,
        "FASTBK_LOAD_SECONDS": str(wish.seconds),
        "FASTBK_LOAD_USERS": users,
        "FASTBK_LOAD_STEP_S": str(wish.step_s),
        "FASTBK_LOAD_THRESHOLDS": wish.thresholds,
        "FASTBK_LOAD_KEEP": str(int(wish.keep)),
        "PYTHONPATH": str(ROOT),
    }
    out.unlink(missing_ok=True)
    limit_s = None if wish.with_page else wish.seconds + PATIENCE_S
    with (
        ctrl_c_ends_only_locust(),
        subprocess.Popen(
            [*command, *wish.kinds],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,  # its tables are rounded, and the report has them
            pass_fds=[events_of_locust],
        ) as locust,
    ):
        os.close(events_of_locust)
        with open(events) as lines:
            follower = threading.Thread(target=follow, args=(lines, faults))
            follower.start()
            try:
                return locust.wait(limit_s)
            except BaseException:
                locust.kill()
                raise
            finally:
                follower.join()


def follow(lines: TextIO, faults: chaos.Chaos | None) -> None:
    """Read the starts and ends of locust's runs until it ends, and inject faults meanwhile."""
    if faults is None:
        lines.read()
    else:
        faults.follow(lines)


def check_port(port: int) -> None:
    """Raise ValueError unless locust's web interface can have this port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"PORT={port} cannot be had: {error}. Choose another.") from error


def free_port() -> int:
    """Return a port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextlib.contextmanager
def ctrl_c_ends_only_locust() -> Iterator[None]:
    """A terminal sends Ctrl-C to all processes. Locust ends then, and the audit follows all the same."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def load(wish: Wish, folder: Path) -> tuple[int, dict[str, Any] | None]:
    """Run a load test. Return the exit code, and the results if there are any.

    Raises Error if the cluster does not answer.
    """
    out = folder / "load.json"
    with (
        tempfile.TemporaryDirectory(prefix="fastbk-load-") as name,
        cluster_of(wish) as (metadata_uri, cluster),
    ):
        if cluster is None:
            with fastbk.sync.connect(metadata_uri):
                pass  # it answers, so a load may begin
        notes = Path(name)
        faults = None
        if cluster is not None:
            schedule = chaos.parse(wish.chaos, wish.bookies)
            faults = chaos.Chaos(cluster, schedule, notes / chaos.LOG)
        code = run_locust(metadata_uri, wish, out, notes, faults)
        if not out.exists():
            return code or NOT_DONE, None
        results: dict[str, Any] = json.loads(out.read_text())
        log = chaos.read_log(notes / chaos.LOG)
        results["faults"] = [one for one in log if one[0] >= results["began_s"]]
        written = kept.read_notes(notes)
        with fastbk.sync.connect(metadata_uri) as client:
            found = kept.audit(client, written)
            if not wish.keep:
                kept.delete(client, written)
    results["audit"] = asdict(found)
    out.write_text(json.dumps(results, indent=1) + "\n")
    (folder / "load.html").write_text(report.page(results))
    return LOST if found.lost else code, results


def main() -> int:
    try:
        wish = Wish.of(os.environ)
        if wish.with_page:
            check_port(wish.port)
    except ValueError as error:
        print(f"load: {error}", file=sys.stderr)
        return USAGE
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    try:
        code, results = load(wish, build)
    except Error as error:
        print(f"load: {error}", file=sys.stderr)
        return NOT_DONE
    if results is not None:
        print("\n".join(report.lines(results)))
        print("\nwritten: build/load.json and build/load.html")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
