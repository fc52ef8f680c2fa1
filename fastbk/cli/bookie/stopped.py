"""The verbs about a stopped bookie: `check`, `rebuild-locations`, `unadopt`, `expand`, `move-shards` and `import`.

`check` and `rebuild-locations` verify or mend its directories. Exit codes: 0 whole, or done; 1 damage was found; 2 it
could not look, and nobody knows more than before. With --json stdout holds one document in each case; in the last one
{"error": text}. `unadopt` is the way back to an older fastbk. `expand` gives it more directories, `move-shards` says
what lives where. `import` takes what a stopped bookie of Apache's has stored into a new bookie of the same id.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fastbk.cli.options import add_config, add_json, need_linux, note, print_answer, print_json
from fastbk.cli.progress import ProgressLine, rate_and_left, rate_of
from fastbk.cli.terminal import painted
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.limits import RateLimit
from fastbk.units import format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator, Sequence

    from fastbk.apache.importer.bookie_files import ApacheDirectories
    from fastbk.apache.importer.import_bookie import Counts, Imported
    from fastbk.cli.options import Verb
    from fastbk.native.disk import Disk
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.supervision.metadata_services import ReadLedgers
    from fastbk.storage.check import Checked, TypesOf
    from fastbk.storage.digest_check import KnownDigest
    from fastbk.storage.identity import Identity
    from fastbk.storage.rebuild import Rebuilt
    from fastbk.storage.unadopt import Unadopted

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
    _report_checked(options, checked)
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


def _report_checked(options: argparse.Namespace, checked: Checked) -> None:
    from fastbk.storage.check import worst

    seconds = max(1e-9, time.monotonic() - checked.began_s)
    answer: dict[str, object] = {
        name: value
        for name, value in msgspec.to_builtins(checked).items()
        if name not in ("findings", "began_s", "total_bytes")
    }
    answer["bytes_per_s"] = round(checked.read_bytes / seconds)
    shown = worst(checked.findings, SHOWN_MAX)
    if options.json:
        answer["findings"] = [msgspec.structs.asdict(finding) for finding in checked.findings]
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
                pair.journal_disk,
                pair.journal_directory,
                pair.incarnation,
                pair=pair.number,
                on_progress=lambda now: line.at(lambda: f"{now.logs} logs, {now.runs:,} runs"),
            )
            run.survey()
            if options.dry_run:
                reports.append(run.report)
                continue
            reports.append(run.run(lambda: _named(config)))
            line.end()
    if options.json:
        print_json([asdict(report) for report in reports])
    else:
        for report in reports:
            _report_rebuilt(report, dry_run=options.dry_run)
    return 0


def _need_own(config: Path, pairs: list[Pair]) -> None:
    """Nothing is changed in a directory of another bookie, life, role or place. Raises StorageError."""
    for pair in pairs:
        if pair.strange:
            directory, why = pair.strange[0]
            raise StorageError(
                f"{directory}: {why}: nothing was changed; see what `fastbk doctor --config {config}` says"
            )


def _report_rebuilt(report: Rebuilt, *, dry_run: bool) -> None:
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


def add_unadopt(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `unadopt`."""
    add_config(parser)
    add_json(parser)


@_reporting_errors
def unadopt(options: argparse.Namespace) -> int:
    """Move what lives in journal files into entry logs; 2 if that can't be done."""
    need_linux("fastbk bookie unadopt")
    from fastbk.native.disk import Disk
    from fastbk.storage.offline_store import OfflineStore
    from fastbk.storage.unadopt import Unadopt

    reports = []
    line = ProgressLine()
    with _locked(options.config) as (config, pairs), ExitStack() as stack:
        _need_own(options.config, pairs)
        runs = []
        for pair in pairs:
            reader_disk = stack.enter_context(Disk(pair.directory, "plain"))
            opened = OfflineStore(
                pair.disk,
                reader_disk,
                pair.directory,
                pair.journal_directory,
                pair.incarnation,
                pair.number,
            )
            stack.callback(opened.close)
            run = Unadopt(
                opened,
                pair.journal_disk,
                pair.journal_directory,
                pair.incarnation,
                on_progress=lambda now: line.at(lambda: _moved_text(now)),
            )
            run.check()
            runs.append(run)
        # no pair is changed unless all can be
        for run in runs:
            reports.append(run.run())
            line.end()
    if options.json:
        print_json(msgspec.to_builtins(reports))
    else:
        for report in reports:
            print(
                f"{report.directory}: {report.logs} journal files were logs; {report.entries:,} entries"
                f" ({format_size(report.moved_bytes)}) moved into entry logs, {report.bad_entries:,} of them damaged"
                f" before; {report.removed_files} journal files removed ({format_size(report.removed_bytes)})"
            )
    if config.ledgers.adopt != "never":
        note(
            'before you start this version again, set `[ledgers] adopt = "never"`: else new journal files stay as logs'
        )
    return 0


def _moved_text(now: Unadopted) -> str:
    return f"{format_size(now.moved_bytes)} of {format_size(now.total_bytes)} moved from {now.journal_directory}"


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


@contextmanager
def _locked(path: Path, *, only_reads: bool = False) -> Iterator[tuple[BookieConfig, list[Pair]]]:
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


# Which digests ledgers have, for commands that look at a stopped bookie: read from metadata as it
# goes, and kept.

LEDGERS_MAX = 65_536
"""Whose types are kept: some 10 MiB, 4 more where all have HMACs."""
READ_AT_ONCE_MAX = 256
METADATA_TIMEOUT_S = 30.0


class MetadataTypes:
    """`TypesOf` by a metadata store."""

    def __init__(self, read: ReadLedgers, ledgers_max: int = LEDGERS_MAX) -> None:
        """`read`: gives several ledgers' metadata."""
        from fastbk.storage.digest_check import KnownTypes

        self._read = read
        self._types = KnownTypes(ledgers_max)

    def __call__(self, ledger_ids: Collection[int]) -> dict[int, KnownDigest]:
        """Return the types of these ledgers, without those whose metadata is damaged. Raises Error."""
        from fastbk.server.supervision.metadata_services import read_digests
        from fastbk.storage.digest_check import NO_TYPE

        known = {one: self._types.get(one) for one in ledger_ids}
        found = {ledger_id: kind for ledger_id, kind in known.items() if kind is not None}
        missing = sorted(ledger_id for ledger_id, kind in known.items() if kind is None)
        for at in range(0, len(missing), READ_AT_ONCE_MAX):
            some = missing[at : at + READ_AT_ONCE_MAX]
            for ledger_id, kind in read_digests(self._read, some).items():
                found[ledger_id] = NO_TYPE if kind is None else kind
                self._types.put(ledger_id, found[ledger_id])
        return found


@contextmanager
def types_by(uri: str | None) -> Iterator[TypesOf | None]:
    """Open the metadata at `uri`; None without one. Raises ConfigError, Error."""
    if uri is None:
        yield None
        return
    from fastbk.meta import open_store

    with closing(open_store(uri, METADATA_TIMEOUT_S, may_make=False)) as store:
        yield MetadataTypes(store.read_ledgers)


# `fastbk bookie expand` and `fastbk bookie move-shards`: more directories for a stopped bookie,
# what lives where.

SHARDS = 64


def add_expand(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `expand`."""
    add_config(parser)
    add_json(parser)


def add_move(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `move-shards`."""
    add_config(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--even", action="store_true", help="as few as go, until all pairs have as many"
    )
    where.add_argument("--to", type=int, metavar="PAIR", help="where the --shards go, from 0 on")
    parser.add_argument("--shards", metavar="LIST", help="of 0 to 63, such as 0,5,8-15")
    add_json(parser)


def expand(options: argparse.Namespace) -> int:
    """Add the directories that are new in the configuration."""
    need_linux("fastbk bookie expand")
    from fastbk.meta.uri import open_store
    from fastbk.meta.zookeeper.security import use_file
    from fastbk.server.offline import end_move
    from fastbk.server.offline import expand as expand_bookie

    with _locked_config(options.config) as config:
        use_file(config.metadata.zookeeper_file)
        end_move(config)
        with closing(open_store(config.metadata.uri)) as store:
            added = expand_bookie(config, store, config.bookie.id or config.bookie.listen)
    if added and not options.json:
        note(
            "no ledger lives there yet: `fastbk bookie move-shards --even` moves some, new bookies have them by birth"
        )
    text = (
        f"added: {', '.join(added)}"
        if added
        else "nothing to add: all directories are the bookie's"
    )
    return print_answer(options, {"added": added}, text)


def move(options: argparse.Namespace) -> int:
    """Move shards from pair to pair."""
    need_linux("fastbk bookie move-shards")
    from fastbk.server.offline import end_move, move_evenly, move_shards

    if (options.to is None) == (options.shards is not None):
        raise ConfigError("give --to PAIR and --shards LIST, or --even")
    line = ProgressLine()
    copied_bytes = 0

    def on_bytes(size_bytes: int) -> None:
        nonlocal copied_bytes
        copied_bytes += size_bytes
        line.at(lambda: f"{format_size(copied_bytes)} copied")

    with _locked_config(options.config) as config:
        done = end_move(config)
        if done:
            note(f"an earlier move was cut off; it is {done}")
        if options.even:
            moved = move_evenly(config, on_bytes)
        else:
            moved = move_shards(config, shards_of(options.shards), options.to, on_bytes)
    line.end()
    lines = [
        f"pair {one.source} to pair {one.target}: {len(one.shards)} shards, {one.ledgers} ledgers,"
        f" {one.entries} entries"
        for one in moved
    ]
    return print_answer(
        options, [msgspec.structs.asdict(one) for one in moved], *(lines or ["nothing to move"])
    )


def shards_of(text: str) -> list[int]:
    """Return the shards that a list such as `0,5,8-15` names. Raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise ConfigError(f"--shards {text}: {part!r} is no shard and no range of shards")
        found += range(int(first), int(last if dash else first) + 1)
    if not found or max(found) >= SHARDS:
        raise ConfigError(f"--shards {text}: shards are 0 to {SHARDS - 1}")
    return sorted(set(found))


@contextmanager
def _locked_config(path: Path) -> Iterator[BookieConfig]:
    """Read the configuration and lock its directories. Raises ConfigError, StorageError: the bookie runs."""
    from fastbk.server.configuration import bookie_file
    from fastbk.server.configuration.checks import check
    from fastbk.server.directories import locked_pairs

    config = bookie_file.load(path)
    check(config)
    with locked_pairs(config.journal.all_directories, config.ledgers.all_directories, LOCK_WAIT_S):
        yield config


# `fastbk bookie import`: what a stopped bookie of Apache's has stored, into a new bookie of the
# same id.

IMPORT_SHOWN_MAX = 20


def add_import(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = "the file of the bookie that it becomes: same id, same metadata, empty directories of its own"
    add_config(parser, text)
    parser.add_argument(
        "--from-conf",
        type=Path,
        metavar="FILE",
        help="Apache's bk_server.conf, which names the directories to read; BK_ variables go before it",
    )
    parser.add_argument(
        "--journal",
        action="append",
        default=[],
        metavar="DIR",
        help="in its place: a journal directory, the one that has `current`; again for each, in the order of the file",
    )
    parser.add_argument(
        "--ledgers",
        action="append",
        default=[],
        metavar="DIR",
        help="a ledger directory; again for each",
    )
    parser.add_argument(
        "--indexes",
        action="append",
        default=[],
        metavar="DIR",
        help="an index directory, where they are others than the ledger directories; again for each, in the same order",
    )
    parser.add_argument(
        "--index",
        choices=["use", "ignore", "require"],
        default="use",
        help="use: what indexes add, where they can be read (the default); require: no import unless all can; ignore",
    )
    parser.add_argument(
        "--replace-cookie",
        action="store_true",
        help="take the place of Apache's cookie in the metadata: its directories start no Apache bookie any more",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="read and check everything, write nothing"
    )
    add_json(parser)


def import_apache(options: argparse.Namespace) -> int:
    """Import; 1 if something that was found is damaged."""
    need_linux("fastbk bookie import")
    from fastbk.apache.importer import import_bookie
    from fastbk.apache.importer.import_bookie import Rate
    from fastbk.apache.importer.index import IndexUse
    from fastbk.meta.uri import open_store
    from fastbk.meta.zookeeper.security import use_file
    from fastbk.model.ids import BookieId
    from fastbk.server.configuration import bookie_file
    from fastbk.server.configuration.checks import check
    from fastbk.server.directories import locked_pairs

    apache = _source(options)
    config = bookie_file.load(options.config)
    check(config)
    _check_apart(config, apache)
    bookie_id = BookieId(config.bookie.id or config.bookie.listen)
    plan = import_bookie.ImportPlan(
        bookie_id, apache, options.replace_cookie, IndexUse(options.index)
    )
    line, rate = ProgressLine(), Rate()

    def on_bytes(counts: Counts) -> None:
        line.at(
            lambda: (
                f"{format_size(counts.read_bytes)} read, {format_size(rate.of(counts.read_bytes))}/s,"
                f" {counts.entries:,} entries"
            )
        )

    use_file(config.metadata.zookeeper_file)
    store = open_store(config.metadata.uri)
    try:
        if options.dry_run:
            done = import_bookie.survey(plan, store, on_bytes)
        else:
            journals, ledgers = config.journal.all_directories, config.ledgers.all_directories
            with locked_pairs(journals, ledgers, LOCK_WAIT_S):
                done = import_bookie.run(config, store, plan, on_bytes)
    finally:
        line.end()
        store.close()
    _print_imported(options, done, rate.of(done.counts.read_bytes))
    return 1 if done.counts.is_damaged else 0


def _source(options: argparse.Namespace) -> ApacheDirectories:
    from fastbk.apache.configuration import source
    from fastbk.apache.importer import bookie_files

    journals, ledgers, indexes = options.journal, options.ledgers, options.indexes
    if options.from_conf is not None:
        if journals or ledgers or indexes:
            raise ConfigError("give --from-conf, or --journal, --ledgers and --indexes")
        read = source.read(options.from_conf, os.environ)
        journals = read.items("journalDirectories") or read.items("journalDirectory")[:1]
        ledgers = read.items("ledgerDirectories")
        indexes = read.items("indexDirectories")
    if not journals or not ledgers:
        raise ConfigError(
            "give --from-conf FILE, or each --journal and --ledgers directory of the bookie that is to be imported"
        )
    return bookie_files.find_directories(journals, ledgers, indexes)


def _check_apart(config: BookieConfig, apache: ApacheDirectories) -> None:
    """Raise ConfigError when a directory of ours is one of Apache's, or one lies in the other."""
    theirs = [path.resolve() for path in (*apache.journals, *apache.ledgers, *apache.indexes)]
    for name in (*config.journal.all_directories, *config.ledgers.all_directories):
        ours = Path(name).resolve()
        for other in theirs:
            if ours == other or ours in other.parents or other in ours.parents:
                raise ConfigError(
                    f"{name} is to be a directory of the new bookie, and {other} is one of Apache's: name others in the"
                    " new bookie's file, which are empty. Apache's stay as they are"
                )


def _print_imported(options: argparse.Namespace, done: Imported, bytes_per_s: int) -> None:
    counts = done.counts
    index = counts.index
    if options.json:
        counted = {name: value for name, value in vars(index).items() if name != "told"}
        answer = {
            **vars(counts),
            "dry_run": options.dry_run,
            "was_finished": done.was_finished,
            "ledgers": done.ledgers,
            "in_limbo": done.in_limbo,
            "open_ledgers": done.open_ledgers,
            "left_out_ledgers": len(counts.left_out_ledgers),
            "bytes_per_s": bytes_per_s,
            "index": {**counted, "missing_ledgers": len(index.missing_ledgers)},
            "damage": [str(one) for one in counts.damage],
            "told": index.told,
        }
        print_json(answer)
        return
    if done.was_finished:
        print("the import was done before, but for its marks; they are gone: start the bookie")
        return
    print(_import_text(done, "found" if options.dry_run else "imported"))
    _note_damage(
        [*(f"not read: {one}" for one in index.not_read), *index.told, *map(str, counts.damage)]
    )


def _import_text(done: Imported, what: str) -> str:
    counts = done.counts
    lines = [
        f"{what}: {done.ledgers:,} ledgers, {counts.entries:,} entries, {format_size(counts.bytes)}",
        f"left out, for metadata does not list them: {_left_out(counts)} ledgers,"
        f" {counts.left_out_entries:,} entries, {format_size(counts.left_out_bytes)}",
        f"damaged: {counts.damaged_entries:,} entries, {counts.damaged_places:,} places in files;"
        f" ends that were cut off: {counts.cut_off_ends:,}",
        f"without a digest that could be checked: {counts.unproven_entries:,} entries",
        *_index_text(counts),
        f"in limbo: {done.in_limbo:,} ledgers, of which {done.open_ledgers:,} are not closed and the others not whole",
    ]
    if what == "found":
        lines[-1] = (
            f"metadata counts on the bookie for {done.in_limbo:,} ledgers; {done.open_ledgers:,} of them are not"
            " closed, and would be fenced and in limbo: best close them first"
        )
    return "\n".join(lines)


def _left_out(counts: Counts) -> str:
    from fastbk.apache.importer.import_bookie import LEFT_OUT_KEPT_MAX

    found = len(counts.left_out_ledgers)
    return f"{found:,}" if found < LEFT_OUT_KEPT_MAX else f"{found:,} or more"


def _index_text(counts: Counts) -> list[str]:
    index = counts.index
    lines = [
        f"whole copies: {counts.journal_entries:,} in journals, {counts.log_entries:,} in entry logs"
    ]
    if index.read:
        lines[0] += (
            f"; of these {index.in_place:,} where the index has them, {index.elsewhere:,} elsewhere,"
            f" {index.not_named:,} that it does not name, {index.not_checked:,} not looked up"
        )
        lines += [
            f"the index lists {index.ledgers:,} ledgers, {index.unlisted_ledgers:,} of them not in metadata; of the"
            f" others it names {index.entries:,} entries, of which {index.missing_entries:,} of"
            f" {len(index.missing_ledgers):,} ledgers are missing",
            f"ledgers whose key in the index is another: {index.other_keys:,}; places where the index is damaged:"
            f" {index.damaged_places:,}",
        ]
    return lines


def _note_damage(damage: Sequence[str]) -> None:
    for one in damage[:IMPORT_SHOWN_MAX]:
        note(one)
    if len(damage) > IMPORT_SHOWN_MAX:
        note(f"... and {len(damage) - IMPORT_SHOWN_MAX} more; --json lists them")
