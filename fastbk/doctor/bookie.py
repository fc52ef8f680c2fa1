"""Checks of one bookie: its directories (`Data`), and its metadata, identity and ports (`Cluster`)."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fastbk.client.placement_judge import misplaced_ledgers
from fastbk.config import is_unspecified, resolves_to_loopback_only, split_address
from fastbk.doctor import Finding, fail, ok, warn
from fastbk.errors import Error, StorageError
from fastbk.meta import open_store
from fastbk.meta.health_records import backup_age_s, unfinished_recoveries
from fastbk.meta.records import BAD_RECORD_REMEDY, collected_bad_records
from fastbk.meta.rollback import NEXT_STEP, Mark, evidence, read_hold, read_mark, when
from fastbk.meta.zookeeper.security import VARIABLE
from fastbk.model.health import ClusterFacts, OpenLedgerFacts, Reason, reasons_of_cluster
from fastbk.model.health import Verdict as HealthVerdict
from fastbk.model.ids import BookieId
from fastbk.native.disk import Disk
from fastbk.native.store import DELETED, LIMBO, Store, StoreOptions
from fastbk.safe_files import is_open_to_others
from fastbk.server.directories import LOCK_NAME
from fastbk.server.identity import Directory, content_of, known_of, places
from fastbk.storage import small_files
from fastbk.storage.directories import data_in, locations_path, log_path
from fastbk.storage.identity import NAME as IDENTITY_NAME
from fastbk.storage.identity import read_identity
from fastbk.storage.identity_check import DirectoryContent, IdentityError, Verdict, judge
from fastbk.storage.journal_files import find_files, plan_replay
from fastbk.storage.limbo import NAME as LIMBO_NAME
from fastbk.storage.limbo import read_limbo
from fastbk.storage.manifest import ManifestLost, ManifestMissing, ManifestSlots
from fastbk.storage.metadata_mark import read_newest
from fastbk.storage.rebuild import LOST_STATES
from fastbk.storage.scrub_state import FORMAT as SCRUB_FORMAT
from fastbk.storage.scrub_state import NAME as SCRUB_NAME
from fastbk.storage.scrub_state import ScrubState
from fastbk.storage.unclean import read_unclean
from fastbk.units import format_count, format_size
from fastbk.web.client import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.doctor import Check
    from fastbk.meta.api import MetadataStore, VersionedIdentity
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.storage.manifest import Manifest

_NO_MANIFEST_FIX = "restore one of the two files from a backup, or fastbk bookie rebuild-locations"
CLOCK_SLACK_S = 120
"""Files may be this much newer than now, by another machine's clock, before somebody is told."""


def holder_of(directory: str) -> int | None:
    """Return the process that holds a directory's lock, None if nobody does. Takes no lock itself."""
    try:
        inode = os.stat(os.path.join(directory, LOCK_NAME)).st_ino
        text = Path("/proc/locks").read_text()
    except OSError:
        return None
    match = re.search(rf"FLOCK\s+ADVISORY\s+WRITE\s+(-?\d+)\s+\w+:\w+:{inode}\b", text)
    return int(match[1]) if match else None


def _end_of_record(whats: list[str]) -> str:
    """Return what ends damage on record: a start does, but for states that are damaged where they lie."""
    if any(LOST_STATES.match(what) for what in whats):
        return "stop it; fastbk bookie rebuild-locations; start it; then fastbk bookie repair ID"
    return "start it again: that puts the ledgers in doubt into limbo (docs/damage.md); then fastbk bookie repair ID"


class Data:
    """The content of one configuration's directories."""

    def __init__(self, config: BookieConfig) -> None:
        self._bookie_id = config.bookie.id or config.bookie.listen
        self._metadata_uri = config.metadata.uri
        found = list(places(config))
        self._directories = [directory for directory, _ in found]
        journals = [directory for directory, place in found if place.role == "journal"]
        ledgers = [directory for directory, place in found if place.role == "ledger"]
        self._pairs = list(zip(journals, ledgers, strict=False))

    def checks(self) -> Iterator[Check]:
        """Yield all looks at what lies there."""
        yield "running", self.running
        for journal, ledgers in self._pairs:
            yield "manifest", partial(self.manifest, journal, ledgers)
            yield "last stop", partial(self.last_stop, ledgers)
            yield "quarantine", partial(self.quarantine, ledgers)
            yield "limbo", partial(limbo, ledgers, self._bookie_id)
            yield "journal to replay", partial(self.replay, journal, ledgers)
        yield "times of files", self.times
        yield "rights", self.rights

    def running(self) -> Finding:
        """Whether a bookie has the directories now."""
        holders = {holder_of(directory) for directory in self._directories} - {None}
        if holders:
            return ok(f"a bookie has the directories (process {', '.join(map(str, holders))})")
        return ok("nobody has the directories")

    def manifest(self, journal: str, directory: str) -> Iterator[Finding]:
        """Both slots, what they name, and damage on record."""
        manifest, finding = _manifest(directory)
        yield finding
        if manifest is None:
            return
        yield from _named_files(journal, directory, manifest)
        if manifest.damage:
            whats = "; ".join(one.what for one in manifest.damage[:3])
            yield fail(
                f'{directory}: {whats}: the bookie says "cannot tell" where it would say "no"',
                _end_of_record([one.what for one in manifest.damage]),
                "damage on record",
            )
        else:
            yield ok(f"none in {directory}", "damage on record")

    def last_stop(self, directory: str) -> Finding:
        """How the last life ended."""
        if holder_of(directory) is not None:
            return ok("it runs")
        if not os.path.isdir(directory):
            return ok("it was never started")
        if os.path.exists(f"{directory}/{LIMBO_NAME}"):
            return warn(
                f"{directory}/{LIMBO_NAME}: a rebirth after lost data waits for its first start",
                "start it; then fastbk bookie recover or repair brings back what it held",
            )
        with Disk(Path(directory), "plain") as disk:
            unclean = read_unclean(disk, directory)
        if unclean is None:
            return ok("it was a clean one")
        if unclean.has_lost:
            return warn(
                "unclean, of a bookie that acknowledged before it had synced: its ledgers go into limbo at the start",
                'start it; then fastbk bookie repair ID. For data that matters: [journal] sync = "always"',
            )
        return ok("not a clean one; what was acknowledged is replayed")

    def quarantine(self, directory: str) -> Finding:
        """What the scrub has found damaged and nobody has healed, or has come with wrong digests."""
        path = f"{directory}/{SCRUB_NAME}"
        if not os.path.exists(path):
            return ok(f"nothing was scrubbed in {directory} yet")
        with Disk(Path(directory), "plain") as disk:
            state = small_files.decode(disk.read_file(path), ScrubState, SCRUB_FORMAT, path)
        if state.bad_digests and not state.quarantined:
            bad = state.bad_digests[0]
            return warn(
                f"{directory}: {format_count(len(state.bad_digests), 'range')} of entries came with a wrong digest, as"
                f" of ledger {bad.ledger_id} from entry {bad.first}: no reader takes these copies",
                "look for the client or network that sent them so: docs/damage.md",
            )
        if not state.quarantined:
            return ok(f"empty in {directory}, after {format_count(state.cycles, 'cycle')}")
        first = state.quarantined[0]
        return warn(
            f"{directory}: {format_count(len(state.quarantined), 'range')} of entries damaged, as of ledger"
            f" {first.ledger_id} from entry {first.first}: {first.reason}",
            "fastbk bookie repair ID while the bookie runs",
        )

    def replay(self, journal: str, ledgers: str) -> Finding:
        """What a start would read from the journal, and whether all of it is there."""
        manifest, _ = _manifest(ledgers)
        if manifest is None or not os.path.isdir(journal):
            return ok("none")
        if holder_of(journal) is not None:
            return ok("it runs: not looked at")
        with Disk(Path(journal), "plain") as disk:
            identity = read_identity(disk, journal)
            if identity is None:
                return ok("none")
            files = find_files(disk, journal, lock=False)
            plan = plan_replay(files, manifest.mark, identity.incarnation_number)
        if plan.damage:
            return fail(
                f"{journal}: {'; '.join(one.reason for one in plan.damage[:3])}",
                f"fastbk inspect journal {journal} --summary; put missing files back before the bookie is started",
            )
        size_bytes = sum(plan.sizes[file.file_id] for file in plan.files)
        return ok(f"at most {format_size(size_bytes)} in {format_count(len(plan.files), 'file')}")

    def times(self) -> Finding:
        """Files from the future: the clock went back, or the disk comes from another machine."""
        now_s = time.time()
        for directory in self._directories:
            if not os.path.isdir(directory):
                continue
            with os.scandir(directory) as entries:
                ahead = [
                    each.name for each in entries if each.stat().st_mtime > now_s + CLOCK_SLACK_S
                ]
            if ahead:
                return warn(
                    f"{directory}/{ahead[0]} was written in the future: the clock went back",
                    "timedatectl; set the clock before the bookie is started",
                )
        return ok("none is in the future")

    def rights(self) -> Finding:
        """Whether others may read data, or metadata with ledgers' passwords."""
        paths = [*self._directories, self._metadata_uri.removeprefix("sqlite:")]
        for path in paths:
            with contextlib.suppress(OSError):
                if is_open_to_others(path):
                    return warn(
                        f"every user of this machine may read or list {path}",
                        f"chmod o-rwx {path}; a bookie does so when it starts, if it owns it",
                    )
        return ok("directories and metadata are closed to other users")


def _manifest(directory: str) -> tuple[Manifest | None, Finding]:
    """Return the manifest that counts, if any, and what is to be said of it."""
    if not os.path.isdir(directory):
        return None, ok(f"none: {directory} is not there yet")
    with Disk(Path(directory), "plain") as disk:
        slots = ManifestSlots(disk, directory)
        try:
            manifest = slots.load()
        except ManifestMissing:
            if held := data_in(disk, directory):
                why = f"none in {directory}, which holds {', '.join(held[:2])}: the bookie can't start"
                return None, fail(why, _NO_MANIFEST_FIX)
            return None, ok(f"none in {directory}: never started, or wiped (see `identity`)")
        except ManifestLost as error:
            return None, fail(str(error), _NO_MANIFEST_FIX)
    generation = f"generation {manifest.generation}"
    if slots.complaints:
        why = f"{generation}; {'; '.join(slots.complaints)}"
        return manifest, warn(why, "nothing after a crash: the next flush writes both")
    return manifest, ok(f"{generation} in both slots of {directory}")


def _named_files(journal: str, directory: str, manifest: Manifest) -> Iterator[Finding]:
    """Every file that counts is there and as long as it was, journal files that stay as logs included."""
    wanted = [
        (log_path(directory, log.log_id, journal), log.durable_bytes) for log in manifest.logs
    ]
    wanted += [
        (locations_path(directory, location.file_id), location.size_bytes)
        for location in manifest.locations
    ]
    bad = []
    for path, size_bytes in wanted:
        try:
            has_bytes = os.stat(path).st_size
        except FileNotFoundError:
            bad.append(f"{path} is missing")
            continue
        if has_bytes < size_bytes:
            bad.append(f"{path} has {has_bytes} of {size_bytes} bytes")
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        yield fail(
            f'{"; ".join(bad[:3])}{more}: entries in them are answered "cannot tell"',
            "put the files back while the bookie is stopped; else fastbk bookie repair ID",
            "files of the manifest",
        )
    else:
        yield ok(f"all {len(wanted)} are there", "files of the manifest")


_STORE_BYTES = 1 << 20
"""Bytes of caches that nothing is read into."""


def limbo(directory: str, bookie_id: str) -> Finding:
    """Count the ledgers of which the bookie says "cannot tell" where it would say "no" (INV-X4), with what ends it.

    Raises StorageError, OSError.
    """
    if not os.path.isdir(directory):
        return ok("it was never started")
    with Disk(Path(directory), "plain", only_reads=True) as disk:
        identity = read_identity(disk, directory)
        if identity is None:
            return ok("it was never started")
        try:
            manifest = ManifestSlots(disk, directory).load()
        except ManifestLost:
            return ok(f"not looked at: the manifest in {directory} is lost")
        incarnation = identity.incarnation_number
        ids, since_s = _flushed(disk, directory, incarnation, identity.pair, manifest)
        if os.path.exists(f"{directory}/{LIMBO_NAME}"):
            waiting = read_limbo(disk, directory, incarnation)
            ids.update(waiting)
            if waiting:
                since_s = min(since_s or time.time(), os.stat(f"{directory}/{LIMBO_NAME}").st_mtime)
    if not ids or since_s is None:
        return ok(f"no ledger in {directory}")
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(since_s))
    few = ", ".join(map(str, sorted(ids)[:3]))
    return warn(
        f"{directory}: {format_count(len(ids), 'ledger')} in limbo ({few}{', ...' if len(ids) > 3 else ''}), since"
        f" {since} or longer: the bookie may have lost entries or a fence of them. It ends for each when it is closed"
        " and whole here, when metadata names others in this bookie's place, or when it is deleted",
        f"while the bookie runs: fastbk bookie repair {bookie_id}; for those that nobody will close: fastbk ledger"
        " recover LEDGER",
    )


def _flushed(
    disk: Disk, directory: str, incarnation: int, pair: int, manifest: Manifest
) -> tuple[set[int], float | None]:
    """Return what is in limbo by the files that the manifest names, and when the oldest that says so was written."""
    options = StoreOptions(
        incarnation=incarnation,
        pair=pair,
        read_cache_size_bytes=_STORE_BYTES,
        block_cache_size_bytes=_STORE_BYTES,
    )
    ids: set[int] = set()
    since_s: float | None = None
    store = Store(directory, disk, disk, options)
    try:
        for entry in manifest.locations:  # of equal ledgers the newest file's counts
            if store.add(entry.file_id):
                continue  # damaged: the checks of what the manifest names say so
            for state in store.states(entry.file_id):
                if state.flags & LIMBO and not state.flags & DELETED:
                    ids.add(state.ledger_id)
                    if since_s is None:
                        since_s = os.stat(locations_path(directory, entry.file_id)).st_mtime
                else:
                    ids.discard(state.ledger_id)
    finally:
        store.destroy()
    return ids, since_s


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
            addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            return fail(f"{host}: {error.strerror}", "correct [bookie] advertised, or DNS")
        address = addresses[0][4][0]
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
                misplaced=misplaced_ledgers(store),
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
            newest = read_newest(
                (stack.enter_context(Disk(Path(path), "plain")), path)
                for path in self._config.ledgers.all_directories
                if os.path.isdir(path)
            )
        if newest is None:
            return ok("this bookie has stored nothing to compare it with yet")
        stored = Mark(age=newest.age, highest_id=newest.highest_id)
        if why := evidence(stored, read_mark(store)):
            return fail(f"{why}: it was restored from an older copy", NEXT_STEP)
        return ok(f"it knows of all that this bookie has stored, ledger {newest.highest_id}")

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
