"""What lies outside of the machine, and at its border: metadata, identity, ports."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fastbk.config import is_unspecified, resolves_to_loopback_only, split_address
from fastbk.doctor.data import holder_of
from fastbk.doctor.report import Finding, fail, ok, warn
from fastbk.errors import Error, StorageError
from fastbk.meta import open_store
from fastbk.meta.hold import NEXT_STEP, read_hold, when
from fastbk.meta.last_backup import backup_age_s
from fastbk.meta.records import BAD_RECORD_REMEDY, collected_bad_records
from fastbk.meta.rollback_mark import Mark, evidence, read_mark
from fastbk.meta.unfinished_recoveries import unfinished_recoveries
from fastbk.meta.zookeeper.security import VARIABLE
from fastbk.model.health import ClusterFacts, OpenLedgerFacts, Reason, reasons_of_cluster
from fastbk.model.health import Verdict as HealthVerdict
from fastbk.model.ids import BookieId
from fastbk.native.disk import Disk
from fastbk.server.identity import Directory, content_of, known_of, places
from fastbk.storage.identity import NAME as IDENTITY_NAME
from fastbk.storage.identity import read_identity
from fastbk.storage.identity_check import DirectoryContent, IdentityError, Verdict, judge
from fastbk.storage.metadata_mark import read_newest
from fastbk.web.client import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.doctor.report import Check
    from fastbk.meta.api import MetadataStore, VersionedIdentity
    from fastbk.server.configuration.bookie_config import BookieConfig

METADATA_TIMEOUT_S = 5.0
SLOW_METADATA_S = 0.25
SKEW_MAX_S = 5.0

PAGE_TIMEOUT_S = 3.0
PAGE_BYTES_MAX = 1 << 20


class _Reason(msgspec.Struct):
    verdict: str
    text: str
    next_step: str


class _Readiness(msgspec.Struct):
    verdict: str = ""
    verdict_reasons: list[_Reason] = []


VERDICTS = {
    Verdict.KNOWN: "directories, cookies and metadata agree",
    Verdict.NEW: "nobody knows this id and the directories are empty: a new bookie",
    Verdict.BORN_HALFWAY: "a first start was cut short; the next one finishes it",
}


class Cluster:
    """The metadata store and the addresses of one configuration."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._is_running = any(holder_of(path) is not None for path, _ in places(config))

    def checks(self) -> Iterator[Check]:
        """Yield all looks outwards."""
        yield "port", self.port
        yield "HTTP port", self.http_port
        yield "advertised host", self.advertised
        yield "metadata", self.metadata
        if self._is_running and self._config.http.listen and not self._config.http.tls:
            yield "health", self.health

    def port(self) -> Finding:
        """The listener's."""
        return self._bindable("[bookie] listen", self._config.bookie.listen)

    def http_port(self) -> Finding:
        """The admin page's."""
        listen = self._config.http.listen
        if not listen:
            return ok("no HTTP is configured")
        return self._bindable("[http] listen", listen)

    def health(self) -> Iterator[Finding]:
        """What the bookie that runs here says of itself, in the words of `fastbk cluster status`."""
        host, port = split_address(self._config.http.listen, "[http] listen")
        if not port:
            yield ok("not asked: [http] listen names no port")
            return
        where = "localhost" if is_unspecified(host) else host
        with closing(HttpConnection(where, port, tls=None, bytes_max=PAGE_BYTES_MAX)) as page:
            page.connect(PAGE_TIMEOUT_S)
            answer = msgspec.json.decode(page.exchange("GET", "/readyz", {}).body, type=_Readiness)
        for reason in answer.verdict_reasons:
            yield _judged(reason)
        if not answer.verdict_reasons:
            yield ok(
                f"the bookie that runs here is {answer.verdict or 'older, and gives no verdict'}"
            )

    def advertised(self) -> Finding:
        """Whether what clients are told is an address."""
        host = (
            self._config.bookie.advertised or split_address(self._config.bookie.listen, "listen")[0]
        )
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            return fail(f"{host}: {error.strerror}", "correct [bookie] advertised, or DNS")
        address = found[0][4][0]
        is_shared = self._config.metadata.uri.startswith("zk")
        if self._config.bookie.advertised and is_shared and resolves_to_loopback_only(host):
            return warn(
                f"{host} is {address} on this machine: no other one reaches that",
                "ask for the name on another machine; where it is the same there, correct DNS or [bookie] advertised",
            )
        return ok(f"{host} is {address}")

    def metadata(self) -> Iterator[Finding]:
        """Whether it answers, how fast, and whether it knows this bookie as its directories do."""
        uri = self._config.metadata.uri
        path = uri.removeprefix("sqlite:")
        if path != uri and not os.path.exists(path):
            if os.access(os.path.dirname(path) or ".", os.W_OK):
                yield ok(f"{path} is not there yet; the first start makes it")
            else:
                yield fail(f"{path} is not there and cannot be made", "correct [metadata] uri")
            return
        began_s = time.monotonic()
        try:
            with closing(open_store(uri, METADATA_TIMEOUT_S)) as store:
                yield from self._of_store(store, began_s)
        except Error as error:
            file = self._config.metadata.zookeeper_file
            variable = f"{VARIABLE}={file} " if file else ""
            yield fail(str(error), f"{variable}fastbk metadata show --metadata {uri}")

    def _of_store(self, store: MetadataStore, began_s: float) -> Iterator[Finding]:
        instance_id = store.instance_id()
        took_s = time.monotonic() - began_s
        why = (
            f"cluster {instance_id or 'without an id'}, asked and answered in {took_s * 1e3:.0f} ms"
        )
        host, port = split_address(self._config.bookie.listen, "[bookie] listen")
        bookie_id = self._config.bookie.id or f"{host}:{port}"
        if self._is_running and not _is_registered(store, bookie_id):
            fix = (
                "wait if it is starting; else read its log: ZooKeeper that was restored from an older copy answers"
                " others, and refuses the session of a bookie that runs"
            )
            yield warn(f"{why}; but the bookie that runs here is not registered", fix)
        elif took_s > SLOW_METADATA_S:
            yield warn(why, "look at the load and disks of the metadata servers")
        else:
            yield ok(why)
        read = store.read_identity(BookieId(bookie_id))
        yield replace(self._age(store), name="metadata's age")
        for finding in self._health_of_cluster(store):
            yield replace(finding, name="health of the cluster")
        identity = self._identity(bookie_id, read, instance_id)
        yield replace(identity, name="identity")
        if read is not None:
            yield replace(self._skew(read), name="clock and metadata's")

    def _health_of_cluster(self, store: MetadataStore) -> Iterator[Finding]:
        """What metadata says at once of the cluster, in the words of `fastbk cluster status`."""
        with collected_bad_records() as bad:
            facts = ClusterFacts(
                backup_age_s=backup_age_s(store, time.time_ns() // 1_000_000),
                ledgers=OpenLedgerFacts(unfinished=unfinished_recoveries(store)),
            )
        yield from map(_judged, reasons_of_cluster(facts))
        for one in bad:
            yield warn(f"record {one.path} of metadata is damaged: {one.reason}", BAD_RECORD_REMEDY)

    def _age(self, store: MetadataStore) -> Finding:
        """Compare what the ledger directories store of metadata with what it is now (INV-M2)."""
        hold = read_hold(store)
        if hold is not None:
            return fail(f"metadata is on hold since {when(hold)}: {hold}", NEXT_STEP)
        with ExitStack() as stack:
            found = read_newest(
                (stack.enter_context(Disk(Path(path), "plain")), path)
                for path in self._config.ledgers.all_directories
                if os.path.isdir(path)
            )
        if found is None:
            return ok("this bookie has stored nothing to compare it with yet")
        stored = Mark(age=found.age, highest_id=found.highest_id)
        if why := evidence(stored, read_mark(store)):
            return fail(f"{why}: it was restored from an older copy", NEXT_STEP)
        return ok(f"it knows of all that this bookie has stored, ledger {found.highest_id}")

    def _skew(self, read: VersionedIdentity) -> Finding:
        """Compare this machine's clock with the metadata servers': at the last start both wrote the count of starts."""
        if read.written_s is None:
            return ok("they are the same clock")
        written_s = []
        for directory, _ in places(self._config):
            path = f"{directory}/{IDENTITY_NAME}"
            if os.path.exists(path):
                with Disk(Path(directory), "plain") as disk:
                    identity = read_identity(disk, directory)
                if identity is not None and identity.starts == read.identity.starts:
                    written_s.append(os.stat(path).st_mtime)
        if not written_s:
            return ok("nothing to compare them by")
        skew_s = max(written_s) - read.written_s
        why = f"at the last start this machine's was {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}"
        if abs(skew_s) > SKEW_MAX_S:
            fix = "timedatectl on both; keep clocks synchronised (nothing, if the directories were copied since)"
            return warn(why, fix)
        return ok(why)

    def _identity(
        self, bookie_id: str, read: VersionedIdentity | None, instance_id: str
    ) -> Finding:
        """Ask the start rules, without starting (INV-D1)."""
        known = None if read is None else known_of(read.identity)
        try:
            verdict = judge(bookie_id, self._found(), known, instance_id=instance_id)
        except IdentityError as error:
            what, _, next_step = str(error).partition(" Likely ")
            return fail(what, f"Likely {next_step}" if next_step else "")
        except StorageError as error:
            return fail(str(error), "restore that file from a backup of the directory")
        starts = f", start {known.starts + 1} is the next" if known is not None else ""
        return ok(f"bookie {bookie_id!r}: {VERDICTS[verdict]}{starts}")

    def _found(self) -> list[DirectoryContent]:
        with ExitStack() as stack:
            found = []
            for path, place in places(self._config):
                if not os.path.isdir(path):
                    found.append(DirectoryContent(path, place, None))
                    continue
                disk = stack.enter_context(Disk(Path(path), "plain"))
                found.append(content_of(Directory(path, place, disk)))
            return found

    def _bindable(self, setting: str, address: str) -> Finding:
        host, port = split_address(address, setting)
        if not port:
            return ok(f"{address}: any free one")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((host, port))
            except OSError as error:
                if self._is_running:
                    return ok(f"{address} is taken; the bookie of these directories runs")
                fix = f"ss -ltnp 'sport = :{port}'; stop what has it, or change {setting}"
                return fail(f"{address}: {error.strerror}", fix)
        return ok(f"{address} is free")


def _judged(reason: Reason | _Reason) -> Finding:
    """Return a reason as a finding; a remark is none of something wrong."""
    verdict = reason.verdict if isinstance(reason.verdict, str) else reason.verdict.text
    if verdict == HealthVerdict.WELL.text:
        return replace(ok(f"{reason.text}: {reason.next_step}"), verdict=verdict)
    found = warn if verdict == HealthVerdict.DEGRADED.text else fail
    return replace(found(reason.text, reason.next_step), verdict=verdict)


def _is_registered(store: MetadataStore, bookie_id: str) -> bool:
    return any(bookie.service.bookie_id == bookie_id for bookie in store.list_bookies())
