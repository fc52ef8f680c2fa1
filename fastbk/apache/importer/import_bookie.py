"""Takes an Apache bookie's data into empty directories of ours, under the same bookie id.

All or nothing. Order: marks in all directories, folders and first manifests, entries, ledger states, `limbo.ids`,
identities, cookies, metadata, no marks. No bookie starts where a mark lies, and an import that was cut off begins anew;
only if metadata has heard of it already, nothing but the marks is left to remove. Apache's directories are only read.

Nobody knows whether a stopped Apache bookie still has all that it acknowledged: its files have no checksums, and it may
have run without syncs. So each ledger that may count on the bookie comes in limbo, unless it is closed and all that
metadata says is here is here. So does a ledger of which an index names an entry that no file holds.

`Content` reads everything that the bookie has stored, as entries and ledger states of ours: checked, counted, in order.
Entry logs come first, older ones before newer ones, then the journals from their mark on: of several copies of an entry
the last one counts, as it does for Apache's bookie; among those in entry logs the one that its index names, if that can
be read. A damaged copy does not count at all.

Decision 62.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.importer.bookie_files import (
    EXPLICIT_LAC,
    FENCE,
    LENGTH,
    MASTER_KEY,
    Damage,
    LedgerTable,
    read_entry_log,
    read_journal,
)
from fastbk.apache.importer.index import IndexCounts, Indexes, IndexUse
from fastbk.errors import StorageError
from fastbk.gc.limbo import shares_of
from fastbk.inspect.items import FileReader
from fastbk.meta.api import BookieIdentity, DirectoryIdentity
from fastbk.meta.records import BadRecord
from fastbk.model import cookie as cookies
from fastbk.native.disk import Disk
from fastbk.native.ledger_state import FENCED, HAS_KEY, LedgerState
from fastbk.native.process import kill_point
from fastbk.printable_text import printable
from fastbk.server.identity import Directory, content_of, places, stamp_cookies
from fastbk.server.index.gc_port import holds
from fastbk.storage import cookie_file as cookie_file
from fastbk.storage import identity, limbo
from fastbk.storage.directories import (
    DELETION_LOG_NAME,
    LOCATIONS,
    LOGS,
    free_bytes,
    make_ledger_directory,
)
from fastbk.storage.identity import Shards, even_shards, pair_of
from fastbk.storage.manifest import SLOTS
from fastbk.storage.offline_store import FLUSH_BYTES, FLUSH_ENTRIES, KEPT_FREE_BYTES, OfflineStore
from fastbk.storage.small_files import (
    ImportMark,
    read_import_mark,
    remove_import_mark,
    write_import_mark,
)
from fastbk.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fastbk.apache.importer.bookie_files import (
        ApacheDirectories,
        LedgerSummary,
        LedgerTable,
        Record,
    )
    from fastbk.apache.importer.index import Listed
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import BookieId
    from fastbk.native.ledger_state import LedgerState
    from fastbk.server.configuration.bookie_config import BookieConfig

DAMAGE_KEPT_MAX = 1000
LEFT_OUT_KEPT_MAX = 1_000_000
_LAC = slice(16, 24)
_BODY_AT = 16
_KEY_BYTES = 20


@dataclass
class Counts:
    """What was found. `entries`, `bytes`: of ledgers that metadata lists, each copy; `read_bytes`: of files."""

    files: int = 0
    read_bytes: int = 0
    entries: int = 0
    bytes: int = 0
    unproven_entries: int = 0
    """Those without a digest that could be checked."""
    damaged_entries: int = 0
    """Copies that fail their digest; another copy of the same entry may be whole."""
    damaged_places: int = 0
    """Bytes of files that say nothing, but for cut-off ends."""
    cut_off_ends: int = 0
    left_out_entries: int = 0
    """Entries of ledgers that metadata does not list: deleted ones."""
    left_out_bytes: int = 0
    left_out_ledgers: set[int] = field(default_factory=set)
    """The first `LEFT_OUT_KEPT_MAX` ones: a file may name any number."""
    damage: list[Damage] = field(default_factory=list)
    """The first ones."""
    journal_entries: int = 0
    """How many of `entries` came from journals."""
    index: IndexCounts = field(default_factory=IndexCounts)

    @property
    def log_entries(self) -> int:
        """How many of `entries` came from entry logs."""
        return self.entries - self.journal_entries

    @property
    def is_damaged(self) -> bool:
        """Whether something that was found is damaged, or something that should be here is not."""
        index = self.index
        return bool(
            self.damaged_entries
            + self.damaged_places
            + index.damaged_places
            + index.missing_entries
        )

    def note(self, damage: Damage, *, is_expected: bool) -> None:
        """Count damage of a file; `is_expected`: a crash leaves it there."""
        if is_expected:
            self.cut_off_ends += 1
        else:
            self.damaged_places += 1
        self.keep(damage)

    def keep(self, damage: Damage) -> None:
        """Keep it for people."""
        if len(self.damage) < DAMAGE_KEPT_MAX:
            self.damage.append(damage)


@dataclass(slots=True)
class _Ledger:
    highest: int = -1
    lac: int = -1
    flags: int = 0
    key: bytes | None = None


class Content:
    """What lies in an Apache bookie's directories. Read `entries` to its end, then `states` and `doubtful`."""

    def __init__(
        self, directories: ApacheDirectories, known: LedgerTable, use: IndexUse = IndexUse.USE
    ) -> None:
        self.counts = Counts()
        self._directories = directories
        self._known = known
        self._use = use
        self._ledgers: dict[int, _Ledger] = {}
        self._in_limbo: set[int] = set()

    def entries(self) -> Iterator[Record]:
        """Yield the entries of ledgers that metadata lists. Raises StorageError.

        Of several copies of an entry that are yielded the last one counts.
        """
        counts = self.counts
        with closing(Indexes(self._directories, self._use, counts.index, counts.damage)) as indexes:
            listed = list(indexes.listed(self._known))
            yield from self._in_logs(indexes)
            yield from self._in_journals(indexes)
            for one in listed:
                self._add_listed(one)
            indexes.find_missing(self._known)

    def doubtful(self) -> set[int]:
        """Return the ledgers of which the indexes say that something is missing, or that they were in limbo before."""
        return self._in_limbo | self.counts.index.missing_ledgers

    def _in_logs(self, indexes: Indexes) -> Iterator[Record]:
        for path in self._directories.entry_logs():
            number, index = int(path.stem, 16) << 32, indexes.of(path)
            with FileReader(path) as source:

                def on_log(damage: Damage) -> None:
                    # A log is only closed when it is full: the newest one of each directory, at least, is not.
                    self.counts.note(damage, is_expected=damage.is_tail)

                records = read_entry_log(source, self._known, on_log)
                for record in self._of(source, records):
                    if indexes.counts_in_log(index, record[0], record[1], number | record[3]):
                        yield record
                self._unreadable(source)

    def _in_journals(self, indexes: Indexes) -> Iterator[Record]:
        for part in self._directories.journal_parts(self._on_mark):
            is_newest = part.is_newest
            with FileReader(part.path) as source:

                def on_journal(damage: Damage, is_newest: bool = is_newest) -> None:
                    self.counts.note(damage, is_expected=damage.is_tail and is_newest)

                records = read_journal(source, part.from_bytes, self._known, on_journal)
                for record in self._of(source, records):
                    self.counts.journal_entries += 1
                    indexes.note_copy(record[0], record[1])
                    yield record
                self._unreadable(source)

    def _on_mark(self, damage: Damage) -> None:
        self.counts.note(damage, is_expected=False)

    def states(self) -> list[LedgerState]:
        """Return the states of all ledgers that were met, ascending; fenced where they are not closed."""
        states = []
        for ledger_id, ledger in sorted(self._ledgers.items()):
            known = self._known.get(ledger_id)
            assert known is not None, "only those are noted"
            key = known.master_key or ledger.key
            flags = ledger.flags | (0 if known.is_closed else FENCED) | (HAS_KEY if key else 0)
            states.append(
                LedgerState(
                    ledger_id,
                    ledger.highest,
                    ledger.lac,
                    flags=flags,
                    master_key=key or bytes(_KEY_BYTES),
                )
            )
        return states

    def _of(self, source: FileReader, records: Iterator[Record]) -> Iterator[Record]:
        counts = self.counts
        counts.files += 1
        before_bytes = counts.read_bytes
        for record in records:
            ledger_id, entry_id, raw, _ = record
            counts.read_bytes += len(raw) + LENGTH.size
            known = self._known.get(ledger_id)
            if known is None:
                if entry_id >= 0:
                    counts.left_out_entries += 1
                    counts.left_out_bytes += len(raw)
                if len(counts.left_out_ledgers) < LEFT_OUT_KEPT_MAX:
                    counts.left_out_ledgers.add(ledger_id)
                continue
            ledger = self._ledgers.get(ledger_id)
            if ledger is None:
                ledger = self._ledgers[ledger_id] = _Ledger()
            if entry_id < 0:
                self._note(ledger, known, record)
            elif not known.is_right(raw):
                counts.damaged_entries += 1
                reason = f"entry {entry_id} of ledger {ledger_id} fails its digest"
                counts.keep(Damage(source.path, -1, len(raw), reason))
            else:
                counts.entries += 1
                counts.bytes += len(raw)
                counts.unproven_entries += not known.is_provable
                ledger.highest = max(ledger.highest, entry_id)
                ledger.lac = max(ledger.lac, int.from_bytes(raw[_LAC], "big", signed=True))
                yield record
        counts.read_bytes = before_bytes + source.size_bytes

    def _add_listed(self, listed: Listed) -> None:
        """Take in what an index says of a ledger."""
        ledger_id, key = listed.ledger_id, listed.master_key
        known = self._known.get(ledger_id)
        assert known is not None, "only those are taken"
        if listed.is_in_limbo:
            self._in_limbo.add(ledger_id)
        if known.master_key is not None and key and key != known.master_key:
            self.counts.index.other_keys += 1
            self.counts.index.report(
                f"the key of ledger {ledger_id} in its index is not that of the password in metadata, which counts"
            )
        lac = known.lac_in(ledger_id, listed.explicit_lac) if listed.explicit_lac else -1
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if not listed.is_fenced and lac < 0:
                return  # nothing of it is here, and nothing would be said by naming it
            ledger = self._ledgers[ledger_id] = _Ledger()
        ledger.flags |= FENCED if listed.is_fenced else 0
        ledger.lac = max(ledger.lac, lac)
        if len(key) == _KEY_BYTES:
            ledger.key = ledger.key or key

    @staticmethod
    def _note(ledger: _Ledger, known: LedgerSummary, record: Record) -> None:
        ledger_id, kind, raw, _ = record
        body = raw[_BODY_AT + LENGTH.size :]
        if kind == FENCE:
            ledger.flags |= FENCED
        elif kind == MASTER_KEY and len(body) == _KEY_BYTES:
            ledger.key = ledger.key or body
        elif kind == EXPLICIT_LAC:
            ledger.lac = max(ledger.lac, known.lac_in(ledger_id, body))

    def _unreadable(self, source: FileReader) -> None:
        for offset_bytes in source.unreadable:
            damage = Damage(source.path, offset_bytes, 4096, "the disk fails to read here")
            self.counts.note(damage, is_expected=False)


class Rate:
    """Bytes a second since it was made."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def of(self, size_bytes: int) -> int:
        """Return the rate of so many bytes."""
        return int(size_bytes / max(time.monotonic() - self._began_s, 1e-3))


LEDGERS_AT_ONCE = 1000
SHOWN_MAX = 300
OWN_FILES = (*SLOTS, DELETION_LOG_NAME, limbo.NAME, identity.NAME)


@dataclass
class Imported:
    """What an import did. `ledgers`: of which something is here now; `in_limbo`: of those that count on the bookie."""

    counts: Counts = field(default_factory=Counts)
    ledgers: int = 0
    in_limbo: int = 0
    open_ledgers: int = 0
    """How many of the ledgers that count on the bookie are open: they come fenced."""
    was_finished: bool = False
    """It was done before, but for the removal of its marks."""


@dataclass(frozen=True)
class ImportPlan:
    """What to import, and as whom. `replace_cookie`: a person's word that Apache's bookie of that id is no more."""

    bookie_id: BookieId
    apache: ApacheDirectories
    replace_cookie: bool = False
    index_use: IndexUse = IndexUse.USE


def survey(plan: ImportPlan, store: MetadataStore, on_bytes: Callable[[Counts], None]) -> Imported:
    """Read everything and write nothing; like `run`. `in_limbo` counts as if nothing were whole."""
    check_source(plan, store)
    known = LedgerTable(store, plan.bookie_id)
    content = Content(plan.apache, known, plan.index_use)
    for count, _ in enumerate(content.entries(), 1):
        if count % FLUSH_ENTRIES == 0:
            on_bytes(content.counts)
    in_limbo = content.doubtful().union(known.named())
    return Imported(content.counts, len(content.states()), len(in_limbo), known.open_count())


def check_source(plan: ImportPlan, store: MetadataStore) -> bytes | None:
    """Raise StorageError unless the data is this bookie's and lies still; return Apache's cookie in metadata."""
    if any(bookie.service.bookie_id == plan.bookie_id for bookie in store.list_bookies()):
        raise StorageError(
            f"bookie {plan.bookie_id!r} is registered: it runs, or was killed a moment ago. Stop it, or wait until its"
            " registration has run out"
        )
    plan.apache.check_is_stopped()
    instance_id = store.instance_id()
    in_metadata = store.foreign_cookie(plan.bookie_id)
    found = [(str(path), cookie) for path, cookie in plan.apache.cookies()]
    if in_metadata is not None:
        found.append(
            ("the cookie in metadata", cookies.decode(in_metadata, "the cookie in metadata"))
        )
    for where, cookie in found:
        if cookie.bookie_id != plan.bookie_id:
            theirs = repr(printable(cookie.bookie_id, SHOWN_MAX))
            raise StorageError(
                f"{where} is that of bookie {theirs}, not of {plan.bookie_id!r}. Set [bookie] id to"
                f" {theirs}, which its ledgers name, or name other directories"
            )
        if instance_id and cookie.instance_id and cookie.instance_id != instance_id:
            raise StorageError(
                f"{where} is of the cluster with the instance id {printable(cookie.instance_id, SHOWN_MAX)},"
                f" the metadata store of {instance_id}. Correct metadata.uri"
            )
    return in_metadata


def run(
    config: BookieConfig, store: MetadataStore, plan: ImportPlan, on_bytes: Callable[[Counts], None]
) -> Imported:
    """Import everything.

    Args:
        config: of the bookie that it becomes; its directories are locked, and empty or an import's that was cut off.
        store: of the cluster.
        plan: see there.
        on_bytes: told now and then of what was found so far.

    Raises StorageError (nothing counts then), MetadataConflict, MetadataUnavailable, OSError.
    """
    with ExitStack() as stack:
        directories = [
            Directory(path, place, stack.enter_context(Disk(Path(path), "plain")))
            for path, place in places(config)
        ]
        if _is_finished(directories, store, plan.bookie_id):
            _remove_marks(directories)
            return Imported(was_finished=True)
        old_cookie = check_source(plan, store)
        if old_cookie is not None and not plan.replace_cookie:
            raise StorageError(
                f"metadata has a cookie of Apache's for bookie {plan.bookie_id!r}. Once it is replaced, its directories"
                " start no Apache bookie any more. Say --replace-cookie if that is what you want"
            )
        incarnation = identity.new_incarnation()
        _clear(directories, plan.bookie_id, incarnation)
        known = LedgerTable(store, plan.bookie_id)
        done, doubtful = _import_all(directories, store, plan, known, incarnation, on_bytes)
        if done.in_limbo > config.limits.ledgers_max or done.ledgers > config.limits.ledgers_max:
            raise StorageError(
                f"there are {max(done.in_limbo, done.ledgers)} ledgers: raise [limits] ledgers_max above that"
            )
        kill_point("import.after_entries")
        for each in directories:
            if each.place.role == "ledger":
                limbo.write_limbo(each.disk, each.path, doubtful, incarnation)
        born = _stamp(directories, plan.bookie_id, incarnation)
        stamp_cookies(directories, born.cookie(store.instance_id()))
        kill_point("import.before_metadata")
        store.write_identity(born, None, replaced_cookie=old_cookie)
        kill_point("import.after_metadata")
        _remove_marks(directories)
        return done


def _import_all(
    directories: Sequence[Directory],
    store: MetadataStore,
    plan: ImportPlan,
    known: LedgerTable,
    incarnation: int,
    on_bytes: Callable[[Counts], None],
) -> tuple[Imported, list[int]]:
    """Store everything, durably; return what was done and the ledgers that go in limbo."""
    journals = {each.place.pair: each.path for each in directories if each.place.role == "journal"}
    with ExitStack() as stack:
        pairs = []
        for each in directories:
            if each.place.role == "ledger":
                make_ledger_directory(each.disk, each.path)
                reader = stack.enter_context(Disk(Path(each.path), "plain"))
                pair = each.place.pair
                opened = OfflineStore(
                    each.disk, reader, each.path, journals[pair], incarnation, pair
                )
                stack.callback(opened.close)
                pairs.append(opened)
        shards = even_shards(len(pairs))
        content = Content(plan.apache, known, plan.index_use)
        _put_entries(pairs, shards, content.entries(), lambda: on_bytes(content.counts))
        states = content.states()
        _put_states(pairs, shards, states)
        incomplete = _doubtful(pairs, shards, store, plan.bookie_id, known.named())
        doubtful = sorted(content.doubtful().union(incomplete))
        return Imported(content.counts, len(states), len(doubtful), known.open_count()), doubtful


def _put_entries(
    pairs: Sequence[OfflineStore],
    shards: Shards,
    records: Iterable[Record],
    on_part: Callable[[], None],
) -> None:
    """Store entries a part at a time, in the order of the records: newer files are asked first."""
    parts: list[dict[tuple[int, int], bytes]] = [{} for _ in pairs]
    sizes_bytes = [0] * len(pairs)
    limit_bytes = FLUSH_BYTES // len(pairs)

    def flush(pair: int) -> None:
        part, parts[pair] = parts[pair], {}
        _check_room(pairs[pair].directory, sizes_bytes[pair])
        sizes_bytes[pair] = 0
        pairs[pair].add([(*ids, raw) for ids, raw in part.items()])
        kill_point("import.after_part")
        on_part()

    for ledger_id, entry_id, raw, _ in records:
        pair = pair_of(ledger_id, shards)
        parts[pair][ledger_id, entry_id] = raw
        sizes_bytes[pair] += len(raw)
        if sizes_bytes[pair] >= limit_bytes or len(parts[pair]) >= FLUSH_ENTRIES:
            flush(pair)
    for pair, part in enumerate(parts):
        if part:
            flush(pair)


def _put_states(
    pairs: Sequence[OfflineStore], shards: Shards, states: Iterable[LedgerState]
) -> None:
    mine: list[list[LedgerState]] = [[] for _ in pairs]
    for state in states:
        mine[pair_of(state.ledger_id, shards)].append(state)
    for opened, some in zip(pairs, mine, strict=True):
        for start in range(0, len(some), FLUSH_ENTRIES):
            opened.add((), some[start : start + FLUSH_ENTRIES])


def _doubtful(
    pairs: Sequence[OfflineStore],
    shards: Shards,
    store: MetadataStore,
    bookie_id: BookieId,
    named: Sequence[int],
) -> list[int]:
    """Return those of the ledgers that are not closed, or of which something is not here."""
    doubtful = []
    for start in range(0, len(named), LEDGERS_AT_ONCE):
        some = named[start : start + LEDGERS_AT_ONCE]
        for ledger_id, read in zip(some, store.read_ledgers(some), strict=True):
            if read is None:
                continue  # deleted meanwhile
            opened = pairs[pair_of(ledger_id, shards)]
            if (
                isinstance(read, BadRecord)
                or not read.metadata.is_closed
                or not holds(opened.store, ledger_id, shares_of(bookie_id, read.metadata))
            ):
                doubtful.append(ledger_id)
    return doubtful


def _check_room(directory: str, size_bytes: int) -> None:
    free = free_bytes(directory)
    if free < size_bytes + KEPT_FREE_BYTES:
        raise StorageError(
            f"{directory} has {format_size(free)} left, too little for the copies and the"
            f" {format_size(KEPT_FREE_BYTES)} that are kept. Make room there, and run the import again"
        )


def _is_finished(
    directories: Sequence[Directory], store: MetadataStore, bookie_id: BookieId
) -> bool:
    """Return whether an import was cut off behind its last step. Raises StorageError where metadata knows another."""
    read = store.read_identity(bookie_id)
    if read is None:
        return False
    marks = [read_import_mark(each.disk, each.path) for each in directories]
    if any(
        mark is not None and int(mark.incarnation, 16) == read.identity.incarnation
        for mark in marks
    ):
        return True
    raise StorageError(
        f"the metadata store knows {bookie_id!r} as a bookie of fastbk's: there is nothing to import for it any more"
    )


def _clear(directories: Sequence[Directory], bookie_id: str, incarnation: int) -> None:
    """Have a mark in all directories, and nothing else. Raises StorageError where something else lies."""
    marked = [read_import_mark(each.disk, each.path) is not None for each in directories]
    for each, is_marked in zip(directories, marked, strict=True):
        if not is_marked and not (content := content_of(each)).is_empty:
            held = (
                ", ".join([*content.data[:3], *(["a cookie"] if content.cookie else [])])
                or "an identity"
            )
            raise StorageError(
                f"{each.path} is not empty: it holds {held}. Name empty directories for the bookie; those of the Apache"
                " bookie stay as they are"
            )
    for each in directories:
        write_import_mark(
            each.disk,
            each.path,
            ImportMark(bookie_id=bookie_id, incarnation=f"{incarnation:016x}"),
        )
    for each, is_marked in zip(directories, marked, strict=True):
        if is_marked:
            _empty(each)
    kill_point("import.after_marks")


def _empty(directory: Directory) -> None:
    """Remove what an import made that was cut off."""
    disk, path = directory.disk, directory.path
    names = set(disk.list(path))
    paths = [f"{path}/{name}" for name in OWN_FILES if name in names]
    if cookie_file.FOLDER in names and _has_cookie(disk, path):
        paths.append(f"{path}/{cookie_file.NAME}")
    for files in (LOGS, LOCATIONS):
        if files.folder in names:
            paths += [files.path(path, one) for one in files.ids_in(disk, path)]
    for one in paths:
        disk.unlink(one)
    for folder in {one.rpartition("/")[0] for one in paths}:
        disk.sync_directory(folder)


def _has_cookie(disk: Disk, directory: str) -> bool:
    """Return whether there is a cookie, whole or not."""
    name = cookie_file.NAME.rpartition("/")[2]
    return name in disk.list(f"{directory}/{cookie_file.FOLDER}")


def _stamp(
    directories: Sequence[Directory], bookie_id: BookieId, incarnation: int
) -> BookieIdentity:
    """Give every directory its identity; return what metadata is to know."""
    pairs = 1 + max(each.place.pair for each in directories)
    listed = []
    for each in directories:
        role, pair = each.place
        own = identity.new_identity(bookie_id, incarnation, role, int(time.time()), pair, pairs)
        identity.write_identity(each.disk, each.path, own)
        listed.append(DirectoryIdentity(own.directory_id, own.role, own.pair))
    return BookieIdentity(bookie_id, incarnation, tuple(listed))


def _remove_marks(directories: Sequence[Directory]) -> None:
    for each in directories:
        remove_import_mark(each.disk, each.path)
