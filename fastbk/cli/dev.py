"""`fastbk dev`: a whole service on this machine, in one folder, until Ctrl-C.

Not `./dev`, the script for those who work on fastbk: its `./dev run` is the demo, in `demo/`.
"""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_json, need_linux, note, print_json
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.safe_files import opener, replaced
from fastbk.server.supervision.lifecycle import RestartBudget
from fastbk.units import format_count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fastbk.devcluster import Bookie, DevCluster, DevMetadata, DevService

DATA_DEFAULT = "fastbk-data"
RESTARTS_MAX = 5
"""Times a minute that a bookie whose supervisor was killed is started again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--bookies", type=int, default=3, metavar="N", help="how many (3)")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(DATA_DEFAULT),
        metavar="DIR",
        help=f"where everything is kept (./{DATA_DEFAULT}); the same folder gives the same ledgers",
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="PATH",
        help="gets the metadata URI, by a rename, once writes are taken",
    )
    parser.add_argument(
        "--port-base", type=int, default=0, metavar="PORT", help="bookie n listens on PORT + n - 1"
    )
    parser.add_argument(
        "--http-port-base", type=int, default=0, metavar="PORT", help="the same for /metrics"
    )
    parser.add_argument(
        "--zookeeper",
        nargs="?",
        const="local",
        metavar="URI",
        help="metadata in ZooKeeper instead of a file: in the one at URI, else in one that is started here;"
        " a folder keeps what it began with",
    )
    parser.add_argument(
        "--tls",
        action="store_true",
        help="encrypt and authenticate: a trial authority in DIR/tls signs for bookies and clients, and bookies"
        " refuse whom it has not signed for",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Start, say so, wait for Ctrl-C or SIGTERM, stop."""
    need_linux("fastbk dev")
    if options.ready_file is not None:
        # First of all: a file of an earlier run must not be taken for this one's.
        options.ready_file.unlink(missing_ok=True)
    from fastbk.devcluster import DevCluster, DevMetadata, DevTls, dev_services

    for name in ("port_base", "http_port_base"):
        base = getattr(options, name)
        if base and not 1024 <= base <= 65_535 - options.bookies:
            raise ConfigError(f"--{name.replace('_', '-')} {base} is not between 1024 and 65000")
    began_s = time.monotonic()
    metadata = DevMetadata(options.data, options.zookeeper)
    alone = _alone(options.data)
    os.umask(0o077)  # also for what ZooKeeper makes
    stopping = _catch_signals()
    try:
        tls = DevTls(options.data / "tls") if options.tls else None
        cluster = DevCluster(
            options.data,
            options.bookies,
            port_base=options.port_base,
            http_port_base=options.http_port_base,
            metadata_uri=metadata.start(),
            tls=tls,
        )
        services = dev_services(options.data, cluster.metadata_uri, tls)
        try:
            return _run(options, cluster, metadata, services, stopping, began_s)
        finally:
            _stop(services)
    finally:
        metadata.stop()
        os.close(alone)


def _alone(data: Path) -> int:
    """Return the descriptor of the folder's lock. Raises ConfigError where another one runs there.

    Its bookies would be found running one by one, after seconds, and their files written anew by then.
    """
    path = data / "dev.lock"
    try:
        lock = opener(os.fspath(path), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise StorageError(f"{path}: cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise ConfigError(
            f"{data} is in use by another fastbk dev (process {holder or 'unknown'}): stop that one, use it,"
            " or give this one a folder of its own by --data"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _run(
    options: argparse.Namespace,
    cluster: DevCluster,
    metadata: DevMetadata,
    services: Sequence[DevService],
    stopping: _Stopping,
    began_s: float,
) -> int:
    """Start the bookies, say so, watch them, and stop them."""
    try:
        cluster.start(should_stop=lambda: bool(stopping.number), reads_only_too=True)
        if not stopping.number:
            for service in services:
                service.start()
            if options.ready_file is not None:
                for bookie in cluster.bookies:
                    bookie.remove_at_end(options.ready_file)
                if any(bookie.is_ready for bookie in cluster.bookies):
                    with replaced(options.ready_file) as draft:
                        draft.write_text(cluster.metadata_uri, encoding="utf-8")
            _announce(options, cluster, services, time.monotonic() - began_s)
            _serve(cluster, metadata, services, stopping, options.ready_file)
    finally:
        _stop(services)
        clean = cluster.stop()
        if options.ready_file is not None:
            options.ready_file.unlink(missing_ok=True)
    if not clean:
        note(f"fastbk dev: not every bookie stopped cleanly; see the logs in {cluster.data}")
    return 0 if clean else 1


class _Stopping:
    """Which signal asked us to stop (0: none yet), and a descriptor that is readable from then on."""

    def __init__(self) -> None:
        self.number = 0
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def request(self, number: int, _frame: object) -> None:
        self.number = number
        os.eventfd_write(self.bell, 1)


def _catch_signals() -> _Stopping:
    stopping = _Stopping()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopping.request)
    # Whoever started us with nohup wants us to outlive the terminal.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, stopping.request)
    return stopping


def _serve(
    cluster: DevCluster,
    metadata: DevMetadata,
    services: Sequence[DevService],
    stopping: _Stopping,
    ready_file: Path | None,
) -> None:
    """Tell of bookies that break down and come back; start a killed one again, within bounds."""
    ready = {bookie.name: bookie.boots for bookie in cluster.bookies}
    names = [*(bookie.name for bookie in cluster.bookies), *(one.name for one in services)]
    budgets = {name: RestartBudget(RESTARTS_MAX, 60.0) for name in names}
    given_up: set[str] = set()
    reads_only: set[str] = set()
    while not stopping.number:
        watched = [s.fileno() for b in cluster.bookies if (s := b.watched()) is not None]
        select.select([stopping.bell, *watched], [], [], 1.0)
        cluster.refresh()
        _keep_zookeeper(metadata)
        for service in services:
            if not service.is_running and service.name not in given_up:
                _restart(service, budgets[service.name], given_up)
        for bookie in cluster.bookies:
            _tell_of_reads_only(bookie, reads_only)
            if bookie.is_ready and bookie.boots != ready[bookie.name]:
                ready[bookie.name] = bookie.boots
                note(f"{bookie.name}: ready again after {bookie.start_s:.1f} s")
            if bookie.is_running or stopping.number or bookie.name in given_up:
                continue
            reason = bookie.reason or "its supervisor was killed"
            bookie.wait_gone()
            if budgets[bookie.name].died(time.monotonic()) is None:
                given_up.add(bookie.name)
                note(f"{bookie.name}: down: {reason}; that is too often: it stays down")
            else:
                note(f"{bookie.name}: down: {reason}; starting it again")
                bookie.spawn()
                if ready_file is not None:
                    # At once: it may take writes, and this process be killed, before we know.
                    bookie.remove_at_end(ready_file)


def _restart(service: DevService, budget: RestartBudget, given_up: set[str]) -> None:
    """Start the janitor or AutoRecovery again, within bounds: the bookies do without."""
    if budget.died(time.monotonic()) is None:
        given_up.add(service.name)
        note(f"{service.name}: down, too often: it stays down; see {service.directory}")
    else:
        note(f"{service.name}: down; starting it again; see {service.directory}")
        service.start()


def _stop(services: Sequence[DevService]) -> None:
    for service in services:
        service.stop()


def _keep_zookeeper(metadata: DevMetadata) -> None:
    """Start our ZooKeeper again if it is gone; bookies and clients go on without it meanwhile."""
    if metadata.server is not None and not metadata.server.is_running:
        note("zookeeper: down; starting it again")
        try:
            metadata.server.start()
        except Error as error:
            note(f"zookeeper: {error}")


def _tell_of_reads_only(bookie: Bookie, known: set[str]) -> None:
    """Say once that a crash loop left this bookie with reads only; it runs, and is left alone."""
    if not bookie.reads_only:
        known.discard(bookie.name)
    elif bookie.name not in known:
        known.add(bookie.name)
        note(
            f"{bookie.name}: reads only: {bookie.reads_only}; see {bookie.log_path},"
            " repair it, then stop this and start it again"
        )


def _announce(
    options: argparse.Namespace, cluster: DevCluster, services: Sequence[DevService], seconds: float
) -> None:
    from fastbk.devcluster.cluster import ENVIRONMENT_NAME

    scheme = "https" if options.tls else "http"
    environment_file = cluster.data / "tls" / ENVIRONMENT_NAME if options.tls else None
    if options.json:
        print_json(
            {
                "metadata": cluster.metadata_uri,
                "data": str(cluster.data),
                "seconds": round(seconds, 3),
                **{one.name: one.pid for one in services},
                **{f"{one.name}_http": f"{scheme}://127.0.0.1:{one.http_port}" for one in services},
                **({"environment_file": str(environment_file)} if environment_file else {}),
                "bookies": [
                    {
                        "id": bookie.name,
                        "address": f"127.0.0.1:{bookie.port}",
                        "http": f"{scheme}://127.0.0.1:{bookie.http_port}",
                        "pid": bookie.pids["supervisor"],
                        "state": f"reads only: {bookie.reads_only}"
                        if bookie.reads_only
                        else "ready",
                    }
                    for bookie in cluster.bookies
                ],
            }
        )
    else:
        bookies = format_count(len(cluster.bookies), "bookie")
        print(f"{bookies} ready in {seconds:.1f} s, data in {cluster.data}")
        for bookie in cluster.bookies:
            print(
                f"  {bookie.name}  127.0.0.1:{bookie.port}"
                f"  {scheme}://127.0.0.1:{bookie.http_port}/metrics"
                + ("  READS ONLY" if bookie.reads_only else "")
            )
        for service in services:
            print(f"  {service.name}  {scheme}://127.0.0.1:{service.http_port}/metrics")
        print(f"metadata: {cluster.metadata_uri}")
        print("in another terminal:")
        print(f"  {_export(cluster.metadata_uri)}")
        if environment_file:
            print(f"  . {shlex.quote(str(environment_file))}")
        print(f"  seq 1000 | {_program()} ledger write")
        print("Ctrl-C stops it; the data stays.")
    sys.stdout.flush()


def _export(uri: str) -> str:
    """Return the shell's line that names the cluster: `;` separates ZooKeeper's servers, and a shell's commands."""
    return f"export FASTBK_METADATA={shlex.quote(uri)}"


def _program() -> str:
    """Return how this program was called, for commands to be copied: it need not be on PATH."""
    called = sys.argv[0]
    return shlex.quote(called) if Path(called).name == "fastbk" else "fastbk"
