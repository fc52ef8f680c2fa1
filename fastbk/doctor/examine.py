"""All checks of one bookie, in the order in which a start would meet what they look at."""

from __future__ import annotations

import os
import time
from itertools import chain
from typing import TYPE_CHECKING

from fastbk.apache.configuration import source
from fastbk.config import is_loopback, split_address
from fastbk.doctor.cluster import Cluster
from fastbk.doctor.confinement import confinement_findings
from fastbk.doctor.data import Data
from fastbk.doctor.disks import Disks
from fastbk.doctor.report import Finding, fail, ok, run_checks, warn
from fastbk.doctor.system import System
from fastbk.errors import ConfigError
from fastbk.meta.zookeeper_security import use_file
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
    from pathlib import Path

    from fastbk.doctor.report import Check
    from fastbk.server.configuration.bookie_config import BookieConfig

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
