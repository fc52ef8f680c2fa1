"""The indexes of an Apache bookie, of both kinds, and what they add to its journals and entry logs (`Indexes`).

A location is the number of an entry log, shifted left by 32 bits, and the offset of the entry's
bytes in it, which begin behind their length. All numbers are big-endian.

`IndexFiles` reads the files of InterleavedLedgerStorage and SortedLedgerStorage:
`<hex>/<hex>/<ledger>.idx`, one a ledger.

    "BKLE" | version i32 | key's length i32 | key | state i32 | of version 1: explicit LAC's length i32 | body
    | zeros up to 1024, then a location i64 for each entry from 0 on, 0 for none

The folders are named by the last byte but one and the last byte of the ledger's id. Bit 0 of the
state: fenced. A file is as long as its highest entry wants, in pages; a crash may cut the last page
short, or the header of a new file.

`Databases` reads the two databases of DbLedgerStorage, by RocksDB itself: the package rocksdict has
it in its wheel. `locations`: ledger i64, entry i64 -> location i64; `ledgers`: ledger i64 -> a
protobuf message (1: exists, 2: fenced, 3: master key, 4: explicit LAC, 5: limbo), negative ids for
what is no ledger.

A ledger that the bookie has dropped leaves `ledgers` first; its locations go later, or never if the
bookie is killed. So locations count only of ledgers that are listed.

RocksDB, and rocksdict more so, write beside what they open, even read-only: so each is opened in a
folder of its own that has nothing but links to its files. The blocks of its files have checksums,
which RocksDB verifies.
"""

from __future__ import annotations

import array
import errno
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from fastbk.apache.importer.bookie_files import ENTRY_LOG_HEADER_BYTES, FOLDER, LENGTH, Damage
from fastbk.errors import StorageError, os_errors_as
from fastbk.model.protobuf import fields
from fastbk.safe_files import open_found
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rocksdict import Rdict

    from fastbk.apache.importer.bookie_files import ApacheDirectories, Damage, LedgerTable, Report

NOWHERE, UNKNOWN = 0, -1
"""Stand in the place of a location: the index does not name the entry; the index cannot be read there."""
FIRST_OFFSET = 1024 + LENGTH.size
"""No entry begins before it: an entry log has a header."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A ledger that an index lists.

    Attributes:
        ledger_id: 0..2^63-1.
        is_fenced, is_in_limbo: as the bookie left it; only RocksDB knows of limbo.
        master_key: what the bookie compared; empty: it had none.
        explicit_lac: the body as its writer sent it, digest included; empty: none.
    """

    ledger_id: int
    is_fenced: bool = False
    is_in_limbo: bool = False
    master_key: bytes = field(default=b"", repr=False)
    explicit_lac: bytes = b""


class Index(Protocol):
    """One index, open for reading. Nothing here raises for damage: it is reported, and what it hides is `UNKNOWN`."""

    name: str
    """The index's kind and path, for people."""

    def covers(self, log: Path) -> bool:
        """Return whether this index is that of an entry log."""

    def ledgers(self) -> Iterator[Listed]:
        """Yield the ledgers that it lists."""

    def location(self, ledger_id: int, entry_id: int) -> int:
        """Return where an entry counts, `NOWHERE`, or `UNKNOWN`."""

    def entries(self, is_wanted: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
        """Yield ledger and entry of all that it names, ascending in each ledger; of ledgers that are wanted."""

    def close(self) -> None:
        """Close it."""


def is_location(value: int) -> bool:
    """Return whether a number may be a location."""
    return value > 0 and value & 0xFFFFFFFF >= FIRST_OFFSET


ENDING, MOVED_ENDING = ".idx", ".idx.rloc"
"""The second one: it was being moved to another directory. Apache's bookie takes it when there is no other."""
MAGIC = b"BKLE"
HEADER_BYTES = 1024
VERSIONS = (0, 1)
FENCED_BIT = 1
LAC_BYTES_MIN = 16
PAGES_KEPT = 1024
_PAGE_BYTES = 8192
_PIECE_BYTES = 1 << 20
_LOCATION_BYTES = 8
_INT = struct.Struct(">i")
_HEXADECIMAL = set("0123456789abcdef")


def read_header(raw: bytes, ledger_id: int) -> Listed:
    """Return what the first `HEADER_BYTES` of an index file say; ValueError with the reason if they make no sense.

    EOFError: they are cut short.
    """
    at = 0

    def take(size_bytes: int) -> bytes:
        nonlocal at
        if size_bytes < 0 or at + size_bytes > HEADER_BYTES:
            raise ValueError(f"a length of {size_bytes} in its header")
        if at + size_bytes > len(raw):
            raise EOFError("its header is cut short")
        at += size_bytes
        return raw[at - size_bytes : at]

    def number() -> int:
        return int(_INT.unpack(take(_INT.size))[0])

    if take(len(MAGIC)) != MAGIC:
        raise ValueError("no header of an index file")
    version = number()
    if version not in VERSIONS:
        raise ValueError(f"an index file of version {version}, {VERSIONS[-1]} is known")
    key = take(number())
    state = number()
    lac = take(number()) if version >= 1 else b""
    if 0 < len(lac) < LAC_BYTES_MIN:
        raise ValueError(f"an explicit LAC of {len(lac)} bytes")
    return Listed(ledger_id, bool(state & FENCED_BIT), master_key=key, explicit_lac=lac)


class IndexFiles:
    """All index files of a bookie. Memory: some 100 bytes a ledger, and `PAGES_KEPT` pages."""

    def __init__(self, directories: Sequence[Path], report: Report) -> None:
        """Find them. Raises StorageError where a directory cannot be read.

        Args:
            directories: the index directories, those that have `current`.
            report: told of damage; at the end of a file it is what a crash leaves.
        """
        self.name = "index files in " + ", ".join(map(str, directories))
        self._report = report
        self._folders = [directory / FOLDER for directory in directories]
        self._found: dict[int, int] = {}
        """Ledger -> its folder's number, doubled, and 1 more if the file was being moved."""
        self._pages: OrderedDict[tuple[int, int], bytes | None] = OrderedDict()
        for index in range(len(self._folders)):
            self._scan(index)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._found)

    def covers(self, log: Path) -> bool:
        """Return True: all entry logs of a bookie are numbered in one row."""
        return bool(self._found)

    def ledgers(self) -> Iterator[Listed]:
        """Yield what the headers say; of a damaged one, that the ledger is there."""
        for ledger_id in sorted(self._found):
            path = self._path(ledger_id)
            try:
                yield read_header(self._read(path, 0, HEADER_BYTES), ledger_id)
                continue
            except EOFError as error:
                damage = Damage(path, 0, 0, str(error), is_tail=True)
            except (OSError, ValueError) as error:
                damage = Damage(path, 0, HEADER_BYTES, str(error))
            self._report(damage)
            yield Listed(ledger_id)

    def location(self, ledger_id: int, entry_id: int) -> int:
        """Return where an entry counts, `NOWHERE`, or `UNKNOWN`. Damage is reported by `entries`, not here."""
        if ledger_id not in self._found:
            return NOWHERE
        number, at = divmod(entry_id * _LOCATION_BYTES, _PAGE_BYTES)
        page = self._page(ledger_id, number)
        if page is None:
            return UNKNOWN
        raw = page[at : at + _LOCATION_BYTES]
        value = int.from_bytes(raw, "big", signed=True) if len(raw) == _LOCATION_BYTES else NOWHERE
        return value if value == NOWHERE or is_location(value) else UNKNOWN

    def entries(self, is_wanted: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
        """Yield ledger and entry of all that they name; report positions that make no sense, and cut off ends."""
        for ledger_id in sorted(self._found):
            if is_wanted(ledger_id):
                path = self._path(ledger_id)
                try:
                    for entry_id in self._entries(path):
                        yield ledger_id, entry_id
                except OSError as error:
                    self._report(Damage(path, HEADER_BYTES, 0, f"cannot be read: {error}"))

    def close(self) -> None:
        """Forget the pages."""
        self._pages.clear()

    def _entries(self, path: str) -> Iterator[int]:
        file = open_found(path)
        try:
            size_bytes = os.fstat(file).st_size
            at, wrong, first_wrong = HEADER_BYTES, 0, 0
            # Files of ledgers whose other entries are on other bookies have holes, which are not read.
            while (at := _data_from(file, at)) >= 0:
                piece = os.pread(file, _PIECE_BYTES, at)
                whole_bytes = len(piece) - len(piece) % _LOCATION_BYTES
                if not whole_bytes:
                    break
                if piece.count(0) != len(piece):
                    values = array.array("q", piece[:whole_bytes])
                    if sys.byteorder == "little":
                        values.byteswap()
                    first = (at - HEADER_BYTES) // _LOCATION_BYTES
                    for entry_id, value in enumerate(values, first):
                        if value:
                            if is_location(value):
                                yield entry_id
                            else:
                                first_wrong = first_wrong if wrong else entry_id
                                wrong += 1
                at += whole_bytes
            if wrong:
                offset_bytes = HEADER_BYTES + first_wrong * _LOCATION_BYTES
                reason = f"{wrong} positions, that of entry {first_wrong} first, are none"
                self._report(Damage(path, offset_bytes, wrong * _LOCATION_BYTES, reason))
            if over := max(0, size_bytes - HEADER_BYTES) % _LOCATION_BYTES:
                reason = "the end is cut short"
                self._report(Damage(path, size_bytes - over, over, reason, is_tail=True))
        finally:
            os.close(file)

    def _page(self, ledger_id: int, number: int) -> bytes | None:
        key = ledger_id, number
        if key in self._pages:
            self._pages.move_to_end(key)
            return self._pages[key]
        page: bytes | None = None
        offset_bytes = HEADER_BYTES + number * _PAGE_BYTES
        try:
            # The kernel knows no offsets above that; no file has an entry there.
            page = b""
            if offset_bytes < 1 << 62:
                page = self._read(self._path(ledger_id), offset_bytes, _PAGE_BYTES)
        except OSError:
            page = None
        self._pages[key] = page
        if len(self._pages) > PAGES_KEPT:
            self._pages.popitem(last=False)
        return page

    @staticmethod
    def _read(path: str, offset_bytes: int, size_bytes: int) -> bytes:
        file = open_found(path)
        try:
            return os.pread(file, size_bytes, offset_bytes)
        finally:
            os.close(file)

    def _path(self, ledger_id: int) -> str:
        index, is_moved = divmod(self._found[ledger_id], 2)
        return (
            f"{self._folders[index]}/{_relative(ledger_id)}{MOVED_ENDING if is_moved else ENDING}"
        )

    def _scan(self, index: int) -> None:
        root = str(self._folders[index])
        for upper in _folders_in(root):
            for lower in _folders_in(f"{root}/{upper}"):
                for name in _names(f"{root}/{upper}/{lower}"):
                    self._note(index, f"{upper}/{lower}/{name}")

    def _note(self, index: int, relative: str) -> None:
        is_moved = relative.endswith(MOVED_ENDING)
        ending = MOVED_ENDING if is_moved else ENDING
        stem = relative.rpartition("/")[2].removesuffix(ending)
        if not relative.endswith(ending) or not stem or set(stem) - _HEXADECIMAL:
            return
        ledger_id = int(stem, 16)
        if ledger_id >= 1 << 63 or relative != _relative(ledger_id) + ending:
            reason = "an index file in a place where its ledger's is not looked for"
            self._report(Damage(f"{self._folders[index]}/{relative}", 0, 0, reason))
        elif not is_moved or ledger_id not in self._found:
            self._found[ledger_id] = index * 2 + is_moved


def _relative(ledger_id: int) -> str:
    """Return the path of a ledger's index file without its ending."""
    return f"{ledger_id >> 8 & 0xFF:x}/{ledger_id & 0xFF:x}/{ledger_id:x}"


def _data_from(file: int, offset_bytes: int) -> int:
    """Return where the next location lies that may not be in a hole, -1: there is none."""
    try:
        found = os.lseek(file, offset_bytes, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return -1
        if error.errno == errno.EINVAL:
            return offset_bytes  # this file system knows nothing of holes
        raise
    return max(found - (found - HEADER_BYTES) % _LOCATION_BYTES, offset_bytes)


def _folders_in(path: str) -> list[str]:
    return [name for name in _names(path) if len(name) <= 2 and not set(name) - _HEXADECIMAL]


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except NotADirectoryError:
        return []
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error


LOCATIONS, LEDGERS = "locations", "ledgers"
CACHE_BYTES = 64 * MIB
FILES_OPEN_MAX = 256
FAILURES_MAX = 100
"""So many look-ups that fail are reported; behind them the database is not asked any more."""
OPEN_S = 300.0
"""How long RocksDB may take to open a database; what a killed bookie left in its log is read then."""
_TRIAL = "import sys; from fastbk.apache.importer.index import open_links; open_links(sys.argv[1]).close()"
_DATABASE_FILE = re.compile(
    r"CURRENT|IDENTITY|(?:MANIFEST|OPTIONS)-[0-9]{1,20}|[0-9]{1,20}\.(?:sst|ldb|log|blob)"
)
"""What RocksDB reads; files by which rocksdict would be told otherwise, and those of others, are left out."""
_PAIR = struct.Struct(">qq")
_ID = struct.Struct(">q")


class NoReaderError(Exception):
    """The package that reads RocksDB is not installed; the text says how to have it."""


class Databases:
    """Both databases of one ledger directory.

    Memory: `CACHE_BYTES`, and what the bookie had not yet moved from RocksDB's own log into its files: 512 MiB at most
    as Apache configures it, and next to nothing behind a clean stop.
    """

    def __init__(self, ledgers: Path, index: Path, report: Report) -> None:
        """Open them. Raises NoReaderError, and StorageError with the reason if they cannot be opened.

        Args:
            ledgers: the directory with the entry logs that they are about.
            index: the one they lie in; both have a folder `current`.
            report: told of damage.
        """
        self.name = f"RocksDB in {index}"
        self._logs = ledgers / FOLDER
        self._folder = index / FOLDER
        self._report = report
        self._failures = 0
        self._listed: set[int] = set()
        with ExitStack() as stack:
            self._ledgers = _open(self._folder / LEDGERS, stack)
            self._locations = _open(self._folder / LOCATIONS, stack)
            self._get = self._locations.get
            self._close = stack.pop_all()

    def covers(self, log: Path) -> bool:
        """Return whether an entry log lies in their directory: each numbers its logs by itself."""
        return log.parent == self._logs

    def ledgers(self) -> Iterator[Listed]:
        """Yield the ledgers; of a damaged record, that the ledger is there."""
        for key, value in self._all(LEDGERS, self._ledgers):
            (ledger_id,) = _ID.unpack(key) if len(key) == _ID.size else (-1,)
            if ledger_id < 0:
                continue
            try:
                listed = _parse(ledger_id, value)
            except ValueError as error:
                self._damaged(LEDGERS, f"the record of ledger {ledger_id}: {error}")
                listed = Listed(ledger_id)
            if listed is not None:
                self._listed.add(ledger_id)
                yield listed

    def location(self, ledger_id: int, entry_id: int) -> int:
        """Return where an entry counts, `NOWHERE`, or `UNKNOWN`. `ledgers` has been read to its end before."""
        if ledger_id not in self._listed:
            return NOWHERE
        if self._failures >= FAILURES_MAX:
            return UNKNOWN
        try:
            raw = self._get(_PAIR.pack(ledger_id, entry_id))
        except Exception as error:  # noqa: BLE001 - rocksdict has no class of its own for what RocksDB says
            self._failures += 1
            self._damaged(LOCATIONS, f"entry {entry_id} of ledger {ledger_id}: {error}")
            return UNKNOWN
        if raw is None:
            return NOWHERE
        value = _ID.unpack(raw)[0] if len(raw) == _ID.size else UNKNOWN
        return value if is_location(value) else UNKNOWN

    def entries(self, is_wanted: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
        """Yield ledger and entry of all that they name, of ledgers that are listed."""
        before, is_taken, wrong = -1, False, 0
        for key, value in self._all(LOCATIONS, self._locations):
            if len(key) != _PAIR.size:
                wrong += 1
                continue
            ledger_id, entry_id = _PAIR.unpack(key)
            if ledger_id != before:
                before, is_taken = ledger_id, ledger_id in self._listed and is_wanted(ledger_id)
            if is_taken:
                if entry_id >= 0 and len(value) == _ID.size and is_location(*_ID.unpack(value)):
                    yield ledger_id, entry_id
                else:
                    wrong += 1
        if wrong:
            self._damaged(LOCATIONS, f"{wrong} records that make no sense")

    def close(self) -> None:
        """Close both, and remove the links."""
        self._close.close()

    def _all(self, name: str, database: Rdict) -> Iterator[tuple[bytes, bytes]]:
        """Yield all records, up to damage."""
        try:
            at = database.iter()
            at.seek_to_first()
            while at.valid():
                yield at.key(), at.value()
                at.next()
            at.status()
        except Exception as error:  # noqa: BLE001 - as above
            self._damaged(name, f"cannot be read further: {error}")

    def _damaged(self, name: str, reason: str) -> None:
        self._report(Damage(str(self._folder / name), 0, 0, reason))


def has_databases(index: Path) -> bool:
    """Return whether an index directory has the databases."""
    return (index / FOLDER / LOCATIONS / "CURRENT").exists()


def _open(path: Path, stack: ExitStack) -> Rdict:
    """Open a database without a write to its folder."""
    try:
        import rocksdict  # noqa: F401 -- whether it is there
    except ImportError as error:
        raise NoReaderError(
            "the package rocksdict is not installed, which reads RocksDB: pip install 'fastbk[import]'"
        ) from error
    links = stack.enter_context(tempfile.TemporaryDirectory(prefix="fastbk-import-"))
    with os_errors_as(StorageError, path):
        names = [name for name in os.listdir(path) if _DATABASE_FILE.fullmatch(name)]
    for name in names:
        with os_errors_as(StorageError, path / name):
            # A link would be followed out of the directory, and a pipe waited for without end.
            os.close(open_found(path / name))
            os.symlink(path.resolve() / name, f"{links}/{name}")
    _check_opens(links, path)
    try:
        database = open_links(links)
    except Exception as error:
        raise StorageError(f"{path}: {error}") from error
    stack.callback(database.close)
    return database


def _check_opens(links: str, path: Path) -> None:
    """Open it in a process of its own first: RocksDB runs in circles, or may end, at files that somebody changed."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL, links], check=False, capture_output=True, timeout=OPEN_S
        )
    except subprocess.TimeoutExpired as error:
        raise StorageError(
            f"{path}: RocksDB did not open it within {OPEN_S:g} s: it is damaged"
        ) from error
    if done.returncode < 0:
        raise StorageError(
            f"{path}: RocksDB ended by signal {-done.returncode} when it opened it: it is damaged"
        )


def open_links(links: str) -> Rdict:
    """Open the database whose files a folder of ours links to. Raises what RocksDB says."""
    from rocksdict import AccessType, BlockBasedOptions, Cache, Options, Rdict

    table = BlockBasedOptions()
    table.set_block_cache(Cache(CACHE_BYTES // 2))
    table.set_cache_index_and_filter_blocks(True)
    options = Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_block_based_table_factory(table)
    options.set_max_open_files(FILES_OPEN_MAX)
    options.set_skip_stats_update_on_db_open(True)
    options.set_db_log_dir(links)
    # False: a killed bookie's last records are in RocksDB's own log, which is read into memory.
    return Rdict(links, options=options, access_type=AccessType.read_only(False))


def _parse(ledger_id: int, raw: bytes) -> Listed | None:
    """Return what a record says, None for a ledger that is there no more. Raises ValueError."""
    found = {field.number: field for field in fields(raw)}
    if 1 in found and not found[1].integer():
        return None
    return Listed(
        ledger_id,
        is_fenced=2 in found and bool(found[2].integer()),
        is_in_limbo=5 in found and bool(found[5].integer()),
        master_key=found[3].content() if 3 in found else b"",
        explicit_lac=found[4].content() if 4 in found else b"",
    )


# What the indexes of an Apache bookie add to what its journals and entry logs say.
#

KEPT_MAX = 1000


class IndexUse(Enum):
    """Whether indexes are looked at: not at all, those that can be read, or all of them or no import."""

    IGNORE = "ignore"
    USE = "use"
    REQUIRE = "require"


@dataclass
class IndexCounts:
    """What indexes say, and where they and the files disagree. Entries: of ledgers that metadata lists, whole ones."""

    read: list[str] = field(default_factory=list)
    """The indexes that are used."""
    not_read: list[str] = field(default_factory=list)
    """Those that are not, with reasons."""
    ledgers: int = 0
    unlisted_ledgers: int = 0
    """How many of `ledgers` metadata does not list: deleted ones."""
    entries: int = 0
    """That they name."""
    in_place: int = 0
    """Copies in entry logs where an index says that they are; the others are these:"""
    elsewhere: int = 0
    """The index names another place: what compaction or a second add has left behind."""
    not_named: int = 0
    """The index does not name the entry: it was written shortly before the bookie ended, or dropped."""
    not_checked: int = 0
    """No index was there, or it could not be read at this entry."""
    other_keys: int = 0
    """Ledgers whose key is not that of the password in metadata, which counts."""
    missing_entries: int = 0
    """That an index names, and no file holds whole."""
    missing_ledgers: set[int] = field(default_factory=set)
    damaged_places: int = 0
    cut_off_ends: int = 0
    told: list[str] = field(default_factory=list)
    """Missing entries and keys that disagree, the first ones, for people."""

    def report(self, text: str) -> None:
        """Keep it for people."""
        if len(self.told) < KEPT_MAX:
            self.told.append(text)


class Indexes:
    """All indexes of a bookie. Memory: a bit for each entry and some bytes for each ledger, beside their own."""

    def __init__(
        self,
        directories: ApacheDirectories,
        use: IndexUse,
        counts: IndexCounts,
        damage: list[Damage],
    ) -> None:
        """Open them. Raises StorageError where `use` says that one has to be read and it cannot be.

        Args:
            directories: of the bookie.
            use: see there.
            counts: what is found is counted there.
            damage: what is damaged is added to it, up to `KEPT_MAX`.
        """
        self._use = use
        self._counts = counts
        self._damage = damage
        self._indexes: list[Index] = []
        self._seen = EntryBitmap()
        if use is not IndexUse.IGNORE:
            try:
                self._open(directories)
            except BaseException:
                self.close()
                raise

    def of(self, log: Path) -> Index | None:
        """Return the index that an entry log belongs to."""
        return next((index for index in self._indexes if index.covers(log)), None)

    def listed(self, known: LedgerTable) -> Iterator[Listed]:
        """Yield the ledgers that they list and metadata, too. To be read to its end before entries are judged."""
        for index in self._indexes:
            for listed in index.ledgers():
                self._counts.ledgers += 1
                if known.get(listed.ledger_id) is None:
                    self._counts.unlisted_ledgers += 1
                else:
                    yield listed

    def counts_in_log(
        self, index: Index | None, ledger_id: int, entry_id: int, location: int
    ) -> bool:
        """Return whether a copy in an entry log, which is whole, counts for more than what came before it.

        A copy elsewhere than the index says counts only as long as that one has not come, or was not whole.
        """
        counts = self._counts
        named = UNKNOWN if index is None else index.location(ledger_id, entry_id)
        if named == location:
            counts.in_place += 1
        elif named == UNKNOWN:
            counts.not_checked += 1
        elif named == NOWHERE:
            counts.not_named += 1
        else:
            counts.elsewhere += 1
            # Logs come in the order of their numbers, so the other copy is behind us.
            if named < location and self._seen.has(ledger_id, entry_id):
                return False
        self.note_copy(ledger_id, entry_id)
        return True

    def note_copy(self, ledger_id: int, entry_id: int) -> None:
        """Note that a whole copy is there."""
        if self._indexes:
            self._seen.add(ledger_id, entry_id)

    def find_missing(self, known: LedgerTable) -> None:
        """Count what they name and no copy was seen of. Raises StorageError for damage if they are required."""
        for index in self._indexes:
            first = last = ledger = -1
            for ledger_id, entry_id in index.entries(lambda one: known.get(one) is not None):
                self._counts.entries += 1
                if self._seen.has(ledger_id, entry_id):
                    continue
                if (ledger_id, entry_id) != (ledger, last + 1):
                    self._missing(index, ledger, first, last)
                    ledger, first = ledger_id, entry_id
                last = entry_id
            self._missing(index, ledger, first, last)
        if self._use is IndexUse.REQUIRE and self._counts.damaged_places:
            raise StorageError(
                f"indexes are damaged in {self._counts.damaged_places} places, and are to be whole: {self._damage[-1]}."
                " Say --index use to go on with what can be read of them"
            )

    def close(self) -> None:
        """Close them."""
        for index in self._indexes:
            index.close()

    def _missing(self, index: Index, ledger_id: int, first: int, last: int) -> None:
        if ledger_id >= 0:
            self._counts.missing_entries += last - first + 1
            self._counts.missing_ledgers.add(ledger_id)
            which = f"entry {first}" if first == last else f"entries {first} to {last}"
            self._counts.report(
                f"{index.name}: {which} of ledger {ledger_id} should be here, and no file has a whole copy"
            )

    def _open(self, directories: ApacheDirectories) -> None:
        covered = []
        if len(directories.indexes) == len(directories.ledgers):
            for ledgers, index in zip(directories.ledgers, directories.indexes, strict=True):
                if has_databases(index):
                    covered.append(ledgers)
                    try:
                        self._add(Databases(ledgers, index, self._report))
                    except NoReaderError as error:
                        self._not_read(f"RocksDB in {index}: {error}")
                    except StorageError as error:
                        self._counts.damaged_places += 1
                        self._not_read(f"RocksDB in {index}: {error}")
        try:
            files = IndexFiles(directories.indexes, self._report)
        except StorageError as error:
            self._counts.damaged_places += 1
            self._not_read(str(error))
            return
        if len(files):
            self._add(files)
        elif any(
            _has_records(log) for log in directories.entry_logs() if log.parents[1] not in covered
        ):
            places = ", ".join(map(str, directories.indexes))
            self._not_read(f"there is none in {places}; is it elsewhere (indexDirectories)?")

    def _add(self, index: Index) -> None:
        self._indexes.append(index)
        self._counts.read.append(index.name)

    def _not_read(self, reason: str) -> None:
        if self._use is IndexUse.REQUIRE:
            raise StorageError(f"an index is to be read and cannot be: {reason}")
        self._counts.not_read.append(reason)

    def _report(self, damage: Damage) -> None:
        if damage.is_tail:
            self._counts.cut_off_ends += 1
        else:
            self._counts.damaged_places += 1
        if len(self._damage) < KEPT_MAX:
            self._damage.append(damage)


def _has_records(log: Path) -> bool:
    """Return whether an entry log has more than its header: what is in no log yet is in no index."""
    try:
        return log.stat().st_size > ENTRY_LOG_HEADER_BYTES
    except OSError:
        return True


PIECE_ENTRIES = 4096


class EntryBitmap:
    """A set of entries, for there may be hundreds of millions: a bit each, 250 bytes for each piece of a ledger."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int], int] = {}

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Take an entry in."""
        key = ledger_id, entry_id // PIECE_ENTRIES
        self._pieces[key] = self._pieces.get(key, 0) | 1 << entry_id % PIECE_ENTRIES

    def has(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether it was seen."""
        piece = self._pieces.get((ledger_id, entry_id // PIECE_ENTRIES), 0)
        return bool(piece >> entry_id % PIECE_ENTRIES & 1)
