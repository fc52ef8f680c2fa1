"""The manifest: which files of a ledger directory count, and up to where the journal is contained in them.

Two slots, `manifest.0` and `manifest.1`. A commit overwrites the slot of the lower generation and syncs it: that is
the only commit point of a flush (INV-X3). Then the same bytes go to the other slot, before anything is unlinked or
the journal is told: from then on losing either slot loses nothing. Written by the index (its flush thread), and
once by the supervisor when a directory is born.

Whoever begins with what a slot says writes that slot again first, and syncs it (INV-X7): its last writer may have died
before the sync, or of the sync's failure, and then memory has what the disk does not.

Decisions 1 and 16.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Annotated

import msgspec

from fastbk.errors import StorageError, check_invariant
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c
from fastbk.native.process import kill_point

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

MAGIC = b"FBKMNFST"
VERSION = 3
VERSION_WITHOUT_JOURNALS = 2
"""What a manifest without journal files among its logs is written in: the content alone decides (INV-U1)."""
READABLE = (1, 2, 3)
"""1: logs without kind and age. 2: no journal files among the logs."""
HEADER = struct.Struct("<8sIIQQI24s")
HEADER_BYTES = HEADER.size + 4
BLOCK_BYTES = 4096
BODY_BYTES_MAX = 64 << 20
SLOTS = ("manifest.0", "manifest.1")
Number = Annotated[int, msgspec.Meta(ge=0)]
"""What counts files and bytes; below `NUMBER_END`, as all: native code takes no others."""
Signed = Annotated[int, msgspec.Meta(ge=-(1 << 63))]
NUMBER_END = 1 << 64
FLUSH, COMPACTION, JOURNAL = "flush", "compaction", "journal"


class LocationsEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A locations file that counts; generations are those of the flushes merged in it."""

    file_id: Number
    first_generation: Number
    last_generation: Number
    size_bytes: Number


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry log that counts, up to `durable_bytes`; `live_bytes`: of runs that locations name for living ledgers.

    `kind`: FLUSH or COMPACTION, or JOURNAL: a journal file whose runs stay in it. Its `durable_bytes` reach to the end
    of the last batch that a finished flush contains, and it is `sealed` once the mark has passed it: the journal writes
    another one. `created_s`: wall clock, 0 = by a version that did not note it.
    """

    log_id: Number
    salt: Number
    durable_bytes: Number
    live_bytes: Signed
    sealed: bool
    kind: str = FLUSH
    created_s: Signed = 0

    @property
    def is_journal_file(self) -> bool:
        """Whether it lies in the journal directory."""
        return self.kind == JOURNAL


class Damage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Acknowledged data that was found to be gone. Until it has ended in limbo (INV-X6), "no" is said of no ledger."""

    what: str
    file_id: Number
    first_sequence: Number
    last_sequence: Number
    found_s: Signed


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation. `mark`: the last journal batch contained in the files named here, 0 = none.

    `mark_file_id`, `mark_offset_bytes`: where that batch is in the journal, 0 = unknown; from version 3 on.
    """

    generation: Number
    mark: Number = 0
    next_file_id: Number = 1
    next_log_id: Number = 1
    locations: tuple[LocationsEntry, ...] = ()
    logs: tuple[LogEntry, ...] = ()
    damage: tuple[Damage, ...] = ()
    clean: bool = False
    pairs: Number = 1
    mark_file_id: Number = 0
    mark_offset_bytes: Number = 0


class ManifestMissing(StorageError):
    """Neither slot is there: this directory was never one of a bookie, or its files were removed."""


class ManifestLost(StorageError):
    """No slot holds a valid manifest, so nobody knows which files count. The bookie must not start empty."""


class CommitInDoubt(StorageError):
    """A manifest's write or sync failed: after a restart it may count or not. What it names must stay."""

    default_outcome = "unknown"


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of a slot: header, JSON body, zeros up to a block. Raises StorageError: it is too large."""
    has_journals = any(log.is_journal_file for log in manifest.logs)
    fields = msgspec.to_builtins(manifest)
    if not has_journals:
        del fields["mark_file_id"], fields["mark_offset_bytes"]
    body = msgspec.json.encode(fields)
    if len(body) > BODY_BYTES_MAX:
        raise StorageError(
            f"the manifest would have {len(body)} bytes, more than a start reads: there are {len(manifest.logs)} logs."
            " Raise `[ledgers] entry_log_size`, or set `[ledgers] adopt` to `never`"
        )
    version = VERSION if has_journals else VERSION_WITHOUT_JOURNALS
    front = HEADER.pack(MAGIC, version, 0, manifest.generation, len(body), crc32c(body), bytes(24))
    used = front + crc32c(front).to_bytes(4, "little") + body
    return used + bytes(-len(used) % BLOCK_BYTES)


def decode(raw: bytes, name: str = "manifest") -> Manifest:
    """Return the manifest in a slot's bytes. Raises CorruptDataError, FormatTooNewError."""
    if len(raw) < HEADER_BYTES:
        raise CorruptDataError(f"{name}: shorter than a header")
    front, stored_crc = raw[: HEADER.size], raw[HEADER.size : HEADER_BYTES]
    magic, version, _, generation, body_bytes, body_crc, _ = HEADER.unpack(front)
    if magic != MAGIC or int.from_bytes(stored_crc, "little") != crc32c(front):
        raise CorruptDataError(f"{name}: damaged header")
    if version not in READABLE:
        raise FormatTooNewError(
            f"{name} has format {version}, this fastbk knows {VERSION}: start the version that wrote it"
        )
    if body_bytes > min(BODY_BYTES_MAX, len(raw) - HEADER_BYTES):
        raise CorruptDataError(f"{name}: cut short")
    body = raw[HEADER_BYTES : HEADER_BYTES + body_bytes]
    if crc32c(body) != body_crc:
        raise CorruptDataError(f"{name}: damaged body")
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{name}: {error}") from None
    parts = (manifest, *manifest.locations, *manifest.logs, *manifest.damage)
    if max(map(_largest_number, parts)) >= NUMBER_END:
        raise CorruptDataError(f"{name}: it has numbers that no file has")
    if any(
        log.is_journal_file != (version > VERSION_WITHOUT_JOURNALS and log.log_id >> 63)
        for log in manifest.logs
    ):
        raise CorruptDataError(
            f"{name}: it takes journal files for other logs, or other logs for journal files"
        )
    if manifest.generation != generation:
        raise CorruptDataError(
            f"{name}: generation {manifest.generation} under a header of {generation}"
        )
    return manifest


def _largest_number(part: msgspec.Struct) -> int:
    return max(value for value in msgspec.structs.astuple(part) if isinstance(value, int))


class ManifestSlots:
    """The two slots of one ledger directory. One thread, but for `next_generation`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._generations = [-1, -1]
        """Generations of the valid content of each slot; -1 = missing, damaged, or in doubt."""
        self._present = [False, False]
        """Whether each slot's name is durable."""
        self._found = [False, False]
        """Whether each slot had a name at `load`."""
        self._believed: tuple[int, bytes] | None = None
        """The slot that `load` took for the one that counts, and its bytes, as long as it may not be durable."""
        self._attempted = -1
        self._given = -1
        """The highest generation ever given out."""
        self._lock = threading.Lock()
        self.complaints: list[str] = []
        """What was wrong with a slot at `load`, for the log; a torn one is ordinary after a crash."""

    def load(self) -> Manifest:
        """Return the valid manifest of the higher generation.

        Raises ManifestMissing, ManifestLost, FormatTooNewError (even if the other slot is older and
        readable: going back would lose data), OSError.
        """
        best: Manifest | None = None
        for slot, name in enumerate(SLOTS):
            path = f"{self._directory}/{name}"
            try:
                raw = self._disk.read_file(path)
            except FileNotFoundError:
                self.complaints.append(f"{path}: missing")
                continue
            except OSError as error:
                self._found[slot] = True
                self.complaints.append(f"{path}: {error}")
                continue
            self._found[slot] = True
            try:
                found = decode(raw, path)
            except CorruptDataError as error:
                self.complaints.append(str(error))
                continue
            self._generations[slot] = found.generation
            # Of equal ones the second: a commit begins with the first.
            if best is None or found.generation >= best.generation:
                best = found
                self._believed = slot, raw
        if best is not None:
            self._attempted = best.generation
            return best
        if not any(self._found):
            raise ManifestMissing(
                f"{self._directory} holds no manifest; if it ever did, put one of {' and '.join(SLOTS)} back, or run"
                " `fastbk bookie rebuild-locations`"
            )
        raise ManifestLost(
            f"no readable manifest in {self._directory} ({'; '.join(self.complaints)}): which files count is"
            " unknown, so nothing is served from here; restore one of the two files, or run"
            " `fastbk bookie rebuild-locations`, or replace this bookie"
        )

    def settle(self) -> None:
        """Make durable what `load` returned; `commit` does it by itself. Once is enough. Raises OSError.

        For whoever relies on it without a commit of its own. The other slot is left alone: it may be the only one that
        the disk has.
        """
        if self._believed is not None:
            slot, raw = self._believed
            self._disk.write_again(f"{self._directory}/{SLOTS[slot]}", raw)
            self._present = self._found  # it synced the directory
            self._believed = None

    def next_generation(self) -> int:
        """Return a generation that no slot can hold yet, and that is never returned again. Any thread."""
        with self._lock:
            self._given = max(self._given, self._attempted) + 1
            return self._given

    def commit(self, manifest: Manifest) -> bool:
        """Make `manifest` the one that counts, in both slots; return whether the second was written, too.

        False: it counts, but losing that one slot would lose it; the next commit begins with the other.
        Raises CommitInDoubt when the first slot failed: after a restart either manifest may count. Or when what was
        loaded could not be made durable: then nothing was written.
        """
        check_invariant(
            manifest.generation > self._attempted,
            "INV-X3 a generation is never written twice with different content",
        )
        raw = encode(manifest)
        try:
            self.settle()
        except OSError as error:
            # As good as a commit that failed: what counts after a restart is what counted before, in doubt or not.
            raise CommitInDoubt(f"what {self._directory} had: {error}") from error
        first = 0 if self._generations[0] <= self._generations[1] else 1
        self._attempted = manifest.generation
        # Whatever happens to it now, this slot no longer holds the old generation for sure.
        self._generations[first] = -1
        kill_point("index.manifest_before_commit")
        try:
            self._write(first, raw)
        except OSError as error:
            raise CommitInDoubt(f"{SLOTS[first]} in {self._directory}: {error}") from error
        kill_point("index.manifest_before_mirror")
        self._generations[first] = manifest.generation
        self._generations[1 - first] = -1
        try:
            self._write(1 - first, raw)
        except OSError as error:
            self.complaints.append(f"{SLOTS[1 - first]} in {self._directory}: {error}")
            return False
        self._generations[1 - first] = manifest.generation
        kill_point("index.manifest_after_mirror")
        return True

    def _write(self, slot: int, raw: bytes) -> None:
        path = f"{self._directory}/{SLOTS[slot]}"
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            file = self._disk.open(path, create=True)
            self._present[slot] = False
        try:
            self._disk.write_all(file, raw)
            kill_point("index.manifest_before_sync")
            self._disk.sync(file)
        finally:
            self._disk.close(file)
        if not self._present[slot]:
            self._disk.sync_directory(self._directory)
            self._present[slot] = True
