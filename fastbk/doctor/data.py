"""What lies in a bookie's directories: who uses them, how they were left, whether what the manifest names is there."""

from __future__ import annotations

import contextlib
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.doctor.report import Finding, fail, ok, warn
from fastbk.native.disk import Disk
from fastbk.native.store import DELETED, LIMBO, Store, StoreOptions
from fastbk.private_files import is_open_to_others
from fastbk.server.directories import LOCK_NAME
from fastbk.server.identity import places
from fastbk.storage import small_files
from fastbk.storage.directories import data_in, locations_path, log_path
from fastbk.storage.identity import read_identity
from fastbk.storage.journal_files import find_files, plan_replay
from fastbk.storage.limbo import NAME as LIMBO_NAME
from fastbk.storage.limbo import read_limbo
from fastbk.storage.manifest import ManifestLost, ManifestMissing, ManifestSlots
from fastbk.storage.rebuild import LOST_STATES
from fastbk.storage.scrub_state import FORMAT as SCRUB_FORMAT
from fastbk.storage.scrub_state import NAME as SCRUB_NAME
from fastbk.storage.scrub_state import ScrubState
from fastbk.storage.unclean import read_unclean
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.doctor.report import Check
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
    found = re.search(rf"FLOCK\s+ADVISORY\s+WRITE\s+(-?\d+)\s+\w+:\w+:{inode}\b", text)
    return int(found[1]) if found else None


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
            yield "manifest", partial(self.manifest, ledgers)
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

    def manifest(self, directory: str) -> Iterator[Finding]:
        """Both slots, what they name, and damage on record."""
        manifest, finding = _manifest(directory)
        yield finding
        if manifest is None:
            return
        yield from _named_files(directory, manifest)
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
            found = find_files(disk, journal, lock=False)
            plan = plan_replay(found, manifest.mark, identity.incarnation_number)
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


def _named_files(directory: str, manifest: Manifest) -> Iterator[Finding]:
    """Every file that counts is there and as long as it was."""
    wanted = [(log_path(directory, log.log_id), log.durable_bytes) for log in manifest.logs]
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
"""Of caches that nothing is read into."""


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
