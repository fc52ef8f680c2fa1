"""`fastbk bookie check` and `fastbk bookie rebuild-locations`: a stopped bookie's directories, verified or mended.

Exit codes: 0 whole, or done; 1 damage was found; 2 it could not look, and nobody knows more than before. With --json
stdout holds one document in each case; in the last one {"error": text}.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_config, add_json, need_linux, note, print_json
from fastbk.cli.progress import ProgressLine, rate_and_left, rate_of
from fastbk.cli.terminal import painted
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.rate_limit import RateLimit
from fastbk.units import format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from fastbk.cli.options import Verb
    from fastbk.native.disk import Disk
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.storage.check import Checked
    from fastbk.storage.identity import Identity
    from fastbk.storage.rebuild import Rebuilt

COULD_NOT_LOOK = 2
LOCK_WAIT_S = 1.0
SHOWN_MAX = 100


@dataclass
class Pair:
    """The directories of one journal/index pair, with a disk each and what their identities say."""

    number: int
    directory: str
    journal_directory: str
    disk: Disk
    journal_disk: Disk
    identities: dict[str, Identity | None]
    problems: list[tuple[str, str]]
    """Directory and what is wrong with its identity or cookie."""
    strange: list[tuple[str, str]] = field(default_factory=list)
    """The same, where it says that this is not the directory that was configured."""

    @property
    def incarnation(self) -> int:
        """What file headers must carry. Raises StorageError where no identity says so."""
        for identity in self.identities.values():
            if identity is not None:
                return identity.incarnation_number
        raise StorageError(
            f"neither {self.directory} nor {self.journal_directory} has a readable identity.json: nobody can say whose"
            " data this is; restore one of them"
        )


def add_check(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `check`."""
    add_config(parser)
    parser.add_argument(
        "--rate", metavar="SIZE", default="0", help="bytes read a second (no limit)"
    )
    parser.add_argument(
        "--metadata",
        metavar="URI",
        help="look at entries' own digests, too, by what this cluster's metadata says of their ledgers",
    )
    add_json(parser)


def add_rebuild(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rebuild-locations`."""
    add_config(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what is lost and would be in doubt"
    )
    add_json(parser)


def _reporting_errors(work: Verb) -> Verb:
    """Have a verb return 2 where it raises: then nobody knows more than before."""

    def reporting(options: argparse.Namespace) -> int:
        try:
            return work(options)
        except Error as error:
            text = " ".join(str(error).split())
            if options.json:
                print_json({"error": text})
            note(f"fastbk: {text}")
            return COULD_NOT_LOOK

    return reporting


@_reporting_errors
def check(options: argparse.Namespace) -> int:
    """Verify everything; 1 if something is damaged, 2 if that can't be found out."""
    need_linux("fastbk bookie check")
    from fastbk.cli.bookie.digests import types_by
    from fastbk.storage.check import Checked, DirectoryCheck

    rate = rate_of(options.rate)
    limit = RateLimit(rate) if rate else None
    line = ProgressLine()
    checked = Checked()
    is_strange = False
    with (
        _locked(options.config, only_reads=True) as (_, pairs),
        types_by(options.metadata) as types_of,
    ):
        for pair in pairs:
            for directory, problem in pair.problems:
                checked.add("damage", directory, problem)
            is_strange = is_strange or bool(pair.problems)
            _note_small_files(checked, pair)
            DirectoryCheck(
                pair.disk,
                pair.directory,
                pair.journal_disk,
                pair.journal_directory,
                pair.incarnation,
                pair=pair.number,
                checked=checked,
                types_of=types_of,
                on_progress=lambda now: line.at(lambda: _text(now)),
                pause=lambda size_bytes: limit.spend(size_bytes) if limit else None,
            ).run()
    line.end()
    _say_checked(options, checked)
    if is_strange:
        note(
            "identities or cookies are not as they should be: before anything else, see what"
            f" `fastbk doctor --config {options.config}` says of them"
        )
    elif checked.damage_count > checked.bad_digest_ranges:
        note(
            "start the bookie and run `fastbk bookie repair ID`: it copies what is damaged from other bookies"
            " (damaged locations and manifests first need `fastbk bookie rebuild-locations`)"
        )
    if checked.bad_digest_ranges:
        note(
            "what came with a wrong digest is stored as it came: readers take other bookies' copies, and a repair"
            " leaves it as it is (docs/damage.md)"
        )
    return 0 if checked.is_whole else 1


def _note_small_files(checked: Checked, pair: Pair) -> None:
    """Say what the bookie itself remembers of its last stop, and of damage."""
    from fastbk.storage.limbo import read_limbo
    from fastbk.storage.scrub_state import read_scrub_state
    from fastbk.storage.unclean import read_unclean

    unclean = read_unclean(pair.disk, pair.directory)
    if unclean is not None:
        after = (
            "; its ledgers will be in limbo" if unclean.has_lost else "; replay will have it all"
        )
        checked.add("note", pair.directory, f"the last stop was no clean one{after}")
    try:
        if waiting := len(read_limbo(pair.disk, pair.directory, pair.incarnation)):
            checked.add("note", pair.directory, f"the next start puts {waiting} ledgers in limbo")
    except Error as error:
        checked.add("damage", pair.directory, str(error))
    state = read_scrub_state(pair.disk, pair.directory, pair.incarnation)
    if state.quarantined:
        found = f"its scrub has {len(state.quarantined)} ranges of entries in quarantine"
        checked.add("note", pair.directory, found)


def _say_checked(options: argparse.Namespace, checked: Checked) -> None:
    from fastbk.storage.check import worst

    seconds = max(1e-9, time.monotonic() - checked.began_s)
    answer: dict[str, object] = {
        name: value
        for name, value in asdict(checked).items()
        if name not in ("findings", "began_s", "total_bytes")
    }
    answer["bytes_per_s"] = round(checked.read_bytes / seconds)
    shown = worst(checked.findings, SHOWN_MAX)
    if options.json:
        answer["findings"] = [asdict(finding) for finding in checked.findings]
        print_json(answer)
        return
    for one in shown:
        print(f"{painted(f'{one.severity:<6}')} {one.path}: {one.text}")
    if len(checked.findings) > len(shown):
        print(f"... and {len(checked.findings) - len(shown)} more; --json shows all")
    print(
        f"{'whole' if checked.is_whole else f'damaged in {checked.damage_count} places'}: {checked.entries:,} entries"
        f" in {checked.runs:,} runs of {checked.logs} logs, {checked.locations_files} locations files,"
        f" {checked.journal_batches:,} journal batches; {format_size(checked.read_bytes)} read in {seconds:.1f} s"
    )
    if (digests := checked.digests) is not None:
        print(
            f"digests of {digests.checked:,} entries computed, {digests.bad:,} wrong; not looked at: {digests.keyed:,}"
            f" with an HMAC and no password in metadata, {digests.unknown:,} of ledgers that metadata does not name"
        )
    print(
        f"live {format_size(checked.live_bytes)}, dead {format_size(checked.dead_bytes)}, of no manifest"
        f" {format_size(checked.orphan_bytes)}"
    )


def _text(checked: Checked) -> str:
    rate = rate_and_left(
        checked.read_bytes, checked.total_bytes, time.monotonic() - checked.began_s
    )
    return (
        f"checked {format_size(checked.read_bytes)} of about {format_size(checked.total_bytes)}, {rate},"
        f" {checked.damage_count} places damaged"
    )


@_reporting_errors
def rebuild(options: argparse.Namespace) -> int:
    """Make all locations files anew; 2 if that can't be done."""
    need_linux("fastbk bookie rebuild-locations")
    from fastbk.storage.rebuild import Rebuild

    reports = []
    line = ProgressLine()
    with _locked(options.config, only_reads=options.dry_run) as (config, pairs):
        _need_own(options.config, pairs)
        for pair in pairs:
            run = Rebuild(
                pair.disk,
                pair.directory,
                pair.incarnation,
                pair=pair.number,
                on_progress=lambda now: line.at(lambda: f"{now.logs} logs, {now.runs:,} runs"),
            )
            run.survey()
            if options.dry_run:
                reports.append(run.report)
                continue
            reports.append(run.run(_mark(pair), lambda: _named(config)))
            line.end()
    if options.json:
        print_json([asdict(report) for report in reports])
    else:
        for report in reports:
            _say_rebuilt(report, dry_run=options.dry_run)
    return 0


def _need_own(config: Path, pairs: list[Pair]) -> None:
    """Nothing is changed in a directory of another bookie, life, role or place. Raises StorageError."""
    for pair in pairs:
        if pair.strange:
            directory, why = pair.strange[0]
            raise StorageError(
                f"{directory}: {why}: nothing was changed; see what `fastbk doctor --config {config}` says"
            )


def _say_rebuilt(report: Rebuilt, *, dry_run: bool) -> None:
    for doubt in report.doubts:
        print(f"in doubt: {doubt}")
    if dry_run:
        print("all ledgers would be in limbo" if report.doubts else "no ledger states are lost")
        return
    print(
        f"{report.files} locations files of {report.runs:,} runs ({report.entries:,} entries, {report.ledgers:,}"
        f" ledgers) in {report.logs} logs; {report.damaged_runs} runs and {report.damaged_entries} entries are damaged"
    )
    if report.aside:
        print(f"the old files are in {report.aside}")
    if report.doubts:
        print(
            f"{report.limbo:,} ledgers are in limbo: start the bookie and run `fastbk bookie repair ID`; ledgers leave"
            " limbo as they are found whole"
        )


def _named(config: BookieConfig) -> list[int]:
    """Return the ledgers that metadata names this bookie for: any of them may have lost something here."""
    from fastbk.meta import open_store
    from fastbk.meta.zookeeper.security import use_file
    from fastbk.model.ids import BookieId
    from fastbk.server.identity import ledgers_of

    use_file(config.metadata.zookeeper_file)
    bookie_id = BookieId(config.bookie.id or config.bookie.listen)
    with closing(open_store(config.metadata.uri, 30.0)) as store:
        return ledgers_of(store, bookie_id, or_in_recovery=True)


def _mark(pair: Pair) -> int:
    """Return the last batch that is surely in entry logs where no manifest says so: files behind the mark alone are
    recycled (INV-J3).
    """
    from fastbk.storage.journal_files import find_files

    found = find_files(pair.journal_disk, pair.journal_directory, lock=False)
    used = [file for file in found if file.is_used]
    return used[0].header.predecessor_sequence if used else 0


@contextmanager
def _locked(path: Path, *, only_reads: bool) -> Iterator[tuple[BookieConfig, list[Pair]]]:
    """Read the configuration, lock the directories, open disks. Raises ConfigError, StorageError."""
    from fastbk.native.disk import Disk
    from fastbk.server.configuration import bookie_file
    from fastbk.server.directories import lock_all

    config = bookie_file.load(path)
    folders = list(zip(config.journal.all_directories, config.ledgers.all_directories, strict=True))
    for folder in (folder for pair in folders for folder in pair):
        if not Path(folder).is_dir():
            raise ConfigError(f"{path}: {folder} is no directory")
    with ExitStack() as stack:
        locks = lock_all([folder for pair in folders for folder in pair], LOCK_WAIT_S)
        for lock in locks:
            stack.callback(lock.close)
        pairs = []
        for number, (journal, ledgers) in enumerate(folders):
            disks = [Disk(one, "plain", only_reads=only_reads) for one in (ledgers, journal)]
            for disk in disks:
                stack.callback(disk.destroy)
            pair = Pair(number, ledgers, journal, disks[0], disks[1], {}, [])
            _identify(pair, config.bookie.id or config.bookie.listen)
            pairs.append(pair)
        yield config, pairs


def _identify(pair: Pair, bookie_id: str) -> None:
    """Read identities and cookies, and compare them with each other and with what is configured."""
    from fastbk.storage.cookie_file import CookieError, read_cookie
    from fastbk.storage.identity import read_identity

    for role, directory, disk in (
        ("ledger", pair.directory, pair.disk),
        ("journal", pair.journal_directory, pair.journal_disk),
    ):
        pair.identities[role] = None
        try:
            identity = read_identity(disk, directory)
            pair.identities[role] = identity
            if identity is None:
                pair.problems.append((directory, "there is no identity.json"))
            elif identity.bookie_id != bookie_id:
                why = f"belongs to bookie {identity.bookie_id!r}, configured is {bookie_id!r}"
                pair.strange.append((directory, why))
            elif identity.role != role:
                pair.strange.append((directory, f"is a {identity.role} directory"))
            elif identity.pair != pair.number:
                why = f"is that of pair {identity.pair}, configured for pair {pair.number}"
                pair.strange.append((directory, why))
            read_cookie(disk, directory)
        except (Error, CookieError) as error:
            pair.problems.append((directory, str(error)))
    known = [one for one in pair.identities.values() if one is not None]
    if len({(one.bookie_id, one.incarnation) for one in known}) > 1:
        why = "its identity differs from the journal directory's"
        pair.strange.append((pair.directory, why))
    pair.problems += pair.strange
