"""All checks of one bookie, in the order in which a start would meet what they check.

`Tradeoffs` has the checks of what its configuration chose, the confinement of its processes among
them.
"""

from __future__ import annotations

import os
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.configuration import source
from fastbk.config import is_loopback, split_address
from fastbk.doctor import Finding, fail, ok, run_checks, warn
from fastbk.doctor.bookie import Cluster, Data, holder_of
from fastbk.doctor.machine import Disks, System
from fastbk.errors import ConfigError
from fastbk.meta.zookeeper.security import use_file
from fastbk.native.process import UNSUPPORTED, landlock_version
from fastbk.security.auth_files import check_files
from fastbk.security.certificates import end_s, names, passwords_of
from fastbk.security.settings import (
    authenticates,
    http_port,
    keeps_strangers_out,
    server_tls,
    tls_files,
)
from fastbk.server.configuration import bookie_file
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.doctor import Check

DAYS_LEFT_MIN = 14
"""Certificates that end sooner are told of."""
RENEW = "renew it; running bookies take the new file by themselves"


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
    use_file(config.metadata.zookeeper_file)
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
        yield "strangers", self.strangers
        yield "confinement", lambda: confinement_findings(self._config)
        if self._config.tls.certificate_file:
            yield "certificates", self.certificates
        if self._config.authentication.methods:
            yield "authentication", self.authentication
        if self._config.audit.file:
            yield "audit log", self.audit_log

    def durability(self) -> Finding:
        """Whether an acknowledged entry survives a power cut here (INV-J1)."""
        if self._config.journal.sync == "never":
            return warn(
                "[journal] sync = never: what was acknowledged may be gone after a power cut",
                'sync = "always", unless this is a test or the data can be made again',
            )
        return ok("acknowledged after the sync")

    def strangers(self) -> Iterator[Finding]:
        """Whether somebody who has not authenticated could be served from another machine."""
        config = self._config
        is_closed = authenticates(config.tls) or keeps_strangers_out(
            config.authentication, config.tls
        )
        listen = config.bookie.listen
        if is_closed or is_loopback(split_address(listen, "[bookie] listen")[0]):
            yield ok("[bookie] listen serves nobody from elsewhere who has not authenticated")
        else:
            cure = 'set [tls] mode and client_certificates = "require" (docs/tls.md), or have a firewall keep them out'
            yield warn(f"[bookie] listen = {listen} serves everybody who reaches it", cure)
        yield self._strangers_of_pages()

    def _strangers_of_pages(self) -> Finding:
        http = self._config.http
        if not http.listen:
            return ok("there are no pages")
        host, _ = split_address(http.listen, "[http] listen")
        is_permitted = self._config.bookie.allow_unauthenticated_remote
        port = http_port(http, host, self._config.authentication, is_permitted=is_permitted)
        if is_loopback(host) or (http.tls and http.client_certificates == "require"):
            return ok("[http] listen serves nobody from elsewhere who has not authenticated")
        if port.serves_strangers:
            cure = 'set [http] tls = true and client_certificates = "require" (docs/http.md), or use a firewall'
            return warn(
                f"[http] listen = {http.listen} lets everybody who reaches it delete ledgers", cure
            )
        said = " and ".join(http.public) or "nothing"
        return ok(f"[http] listen serves {said} to those from elsewhere who have not authenticated")

    def certificates(self) -> Iterator[Finding]:
        """Whether they make a server, for how long yet, and whether clients will find the host in them."""
        settings = self._config.tls
        try:
            server_tls(settings)
        except ConfigError as error:
            yield fail(
                str(error),
                "put the right files in their place; running bookies take them by themselves",
            )
            return
        for path, password_file in passwords_of(tls_files(settings)).items():
            days = (end_s(path, password_file) - time.time()) / 86_400
            if days < 0:
                yield fail(f"{path} ended {-days:.0f} days ago: clients refuse it", RENEW)
            elif days < DAYS_LEFT_MIN:
                yield warn(f"{path} ends in {days:.0f} days", RENEW)
            else:
                yield ok(f"{path} is good for {days:.0f} days")
        host = (
            self._config.bookie.advertised
            or split_address(self._config.bookie.listen, "[bookie] listen")[0]
        )
        named = names(settings.certificate_file, settings.key_password_file)
        if host not in named:
            said = ", ".join(named) or "nothing"
            cure = "have it name the host, unless clients use a name of another kind (a wildcard, verify_name=False)"
            yield warn(
                f"the certificate names {said}, and clients reach this bookie by {host}", cure
            )

    def authentication(self) -> Finding:
        """Whether a start, and a running bookie, takes keys, passwords and who is revoked."""
        try:
            check_files(self._config.authentication)
        except ConfigError as error:
            return fail(
                str(error),
                "mend the file; running bookies use what they read before, new starts fail",
            )
        return ok("the files of keys, passwords and revocations can be used")

    def audit_log(self) -> Finding:
        """Whether a start can open the audit log."""
        file = self._config.audit.file
        folder = os.path.dirname(file)
        if not os.path.isdir(folder):
            return fail(
                f"[audit] file {file}: there is no folder {folder}", f"mkdir -m 0700 {folder}"
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            return fail(
                f"[audit] file {file}: {folder} may not be written to",
                "give it to the bookie's user",
            )
        return ok(f"{file} can be written")

    def deletions(self) -> Finding:
        """Whether a wrong metadata store could have everything deleted."""
        share = self._config.gc.delete_ratio_max
        if share >= 1.0:
            return warn(
                "[gc] delete_ratio_max = 1.0: with an empty metadata store all ledgers here would be deleted",
                "take it out again; `fastbk bookie gc run --force` allows it once",
            )
        return ok(f"at most {share:.0%} of the ledgers in one cycle")


_CONFINEMENT_MARKS = {
    "NoNewPrivs": ("1", "no new privileges"),
    "Seccomp": ("2", "filtered system calls"),
}
"""Lines of /proc/PID/status: the value of a confined process, and what it means."""


def confinement_findings(config: BookieConfig) -> Iterator[Finding]:
    """Yield what a taken-over process could not do here, and whether running ones are confined."""
    if config.bookie.confinement == "off":
        cure = 'confinement = "auto"; "off" is for debuggers'
        yield warn(
            '[bookie] confinement = "off": a process that is taken over may do what its user may',
            cure,
        )
        return
    lacks = []
    if landlock_version() == UNSUPPORTED:
        lacks.append("Landlock (a process that is taken over may open any file of its user)")
    if not os.path.exists("/proc/sys/kernel/seccomp"):
        lacks.append("seccomp (it may make any system call)")
    if lacks:
        yield warn(
            f"the kernel has no {' and no '.join(lacks)}", "Linux 6.7 or later has what it takes"
        )
    else:
        yield ok(
            f"workers, journals, indexes and gc give up paths (Landlock {landlock_version()}) and system calls"
        )
    yield from _running(config)


def _running(config: BookieConfig) -> Iterator[Finding]:
    directories = config.journal.all_directories
    supervisor = holder_of(directories[0]) if directories else None
    children = {} if supervisor is None else _children_of(supervisor)
    for pid, name in children.items():
        status = _status_of(pid)
        missing = [
            text for key, (value, text) in _CONFINEMENT_MARKS.items() if status.get(key) != value
        ]
        if missing:
            cure = "look for process.not_confined in the log, or restart the bookie if it is an older version"
            yield warn(f"{name} (process {pid}) runs without {' and '.join(missing)}", cure)
    if children:
        yield ok(f"{len(children)} running processes were looked at")


def _children_of(supervisor: int) -> dict[int, str]:
    """Return the processes of a supervisor, and what each runs."""
    children = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = _status_of(int(folder.name))
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if status.get("PPid") == str(supervisor) and b"-m" in command:
            children[int(folder.name)] = command[command.index(b"-m") + 1].decode(errors="replace")
    return children


def _status_of(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}
