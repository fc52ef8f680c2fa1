"""Reads the two databases of DbLedgerStorage, by RocksDB itself: the package rocksdict has it in its wheel.

`locations`: ledger i64, entry i64 -> location i64; `ledgers`: ledger i64 -> a protobuf message (1: exists, 2: fenced,
3: master key, 4: explicit LAC, 5: limbo), negative ids for what is no ledger. Numbers are big-endian.

A ledger that the bookie has dropped leaves `ledgers` first; its locations go later, or never if the bookie is killed.
So locations count only of ledgers that are listed.

RocksDB, and rocksdict more so, write beside what they open, even read-only: so each is opened in a folder of its own
that has nothing but links to its files. The blocks of its files have checksums, which RocksDB verifies.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fastbk.apache.importer.directories import FOLDER
from fastbk.apache.importer.index import NOWHERE, UNKNOWN, Listed, is_location
from fastbk.apache.importer.records import Damage
from fastbk.errors import StorageError, os_errors_as
from fastbk.model.protobuf import fields
from fastbk.private_files import open_found
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rocksdict import Rdict

    from fastbk.apache.importer.records import Report

LOCATIONS, LEDGERS = "locations", "ledgers"
CACHE_BYTES = 64 * MIB
FILES_OPEN_MAX = 256
FAILURES_MAX = 100
"""So many look-ups that fail are reported; behind them the database is not asked any more."""
OPEN_S = 300.0
"""How long RocksDB may take to open a database; what a killed bookie left in its log is read then."""
_TRIAL = "import sys; from fastbk.apache.importer.rocksdb import open_links; open_links(sys.argv[1]).close()"
_DATABASE_FILE = re.compile(
    r"CURRENT|IDENTITY|(?:MANIFEST|OPTIONS)-[0-9]{1,20}|[0-9]{1,20}\.(?:sst|ldb|log|blob)"
)
"""What RocksDB reads; files by which rocksdict would be told otherwise, and those of others, are left out."""
_PAIR = struct.Struct(">qq")
_INT = struct.Struct(">q")


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
            (ledger_id,) = _INT.unpack(key) if len(key) == _INT.size else (-1,)
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
        value = _INT.unpack(raw)[0] if len(raw) == _INT.size else UNKNOWN
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
                if entry_id >= 0 and len(value) == _INT.size and is_location(*_INT.unpack(value)):
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


def is_there(index: Path) -> bool:
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
