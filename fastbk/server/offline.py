"""Changes of a stopped bookie: shards in another pair, more directories, another id. All directories are locked.

Each change is made in an order in which it may be cut off anywhere:

- `move_shards` (INV-D3): record, copy, record says moved, identities, drop at the source, no record. `end_move` undoes
  or finishes at the next start what is left, before anybody reads the identities.
- `expand` adds empty journal/index pairs: folders and first manifest, identities and cookies of the new directories,
  metadata, the identities of the old ones. It is done again, and until then no start succeeds with the new
  configuration. No shard moves by itself. `fastbk.storage.identity_check` decides which directories may be added.
- `rename`, as when a host is known by a name instead of an address: metadata learns the new id, with the same
  incarnation and directories; then each directory's identity and cookie; then metadata forgets the old one. It is done
  again: before the first directory is changed the bookie still starts under its old id, after the last one under its
  new id, and between the two not at all (INV-D1). Ledgers go on naming the old id until somebody changes that
  (`fastbk.admin.bookie_identity`). That has to be before the bookie starts: one that metadata does not name for a
  ledger counts as a copy too many.

Decision 46.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta.api import DirectoryIdentity
from fastbk.model.ids import BookieId, check_bookie_id
from fastbk.native.disk import Disk
from fastbk.native.ffi import CorruptDataError
from fastbk.native.ledger_state import DELETED
from fastbk.native.process import kill_point
from fastbk.native.segment import PAIRS_MAX, SHARD_COUNT
from fastbk.observe import logs
from fastbk.server.identity import (
    LEDGERS_NAMED,
    Directory,
    content_of,
    known_of,
    ledgers_of,
    places,
    refuse_imports,
    stamp_cookies,
)
from fastbk.storage.cookie_file import write_cookie
from fastbk.storage.directories import make_ledger_directory, settle_names
from fastbk.storage.identity import Identity, evened, new_identity, read_identity, write_identity
from fastbk.storage.identity_check import (
    DirectoryContent,
    IdentityError,
    Verdict,
    configured_pairs,
    judge,
)
from fastbk.storage.small_files import SealedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.meta.api import MetadataStore, VersionedIdentity
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.storage.identity import Shards
    from fastbk.storage.offline_store import OfflineStore

MOVE_NAME = "move.json"
"""The record of a move, in the first pair's ledger directory, from before the first byte is copied until all is done.

Whoever finds it when the bookie is started or moved next, undoes the move (`COPYING`: the map still names the source)
or finishes it (`MOVED`: the target holds everything durably; some identities may name the source still). So writing
`MOVED` is the one step in which the shards change their pair, for all directories at once.
"""
FORMAT = 1
COPYING, MOVED = "copying", "moved"


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Shards on their way from the pair `source` to the pair `target`; `incarnation`: hex, of the bookie."""

    incarnation: str
    source: int
    target: int
    shards: tuple[int, ...]
    phase: str = COPYING
    format: int = FORMAT

    def applied_to(self, shards: Shards) -> Shards:
        """Return the map as it is after the move. Again is harmless."""
        return tuple(
            self.target if shard in self.shards else pair for shard, pair in enumerate(shards)
        )


def _check(move: Move, name: str) -> None:
    pairs_are_right = move.source != move.target and all(
        0 <= pair < PAIRS_MAX for pair in (move.source, move.target)
    )
    shards_are_right = all(0 <= shard < SHARD_COUNT for shard in move.shards)
    if not pairs_are_right or not shards_are_right or move.phase not in (COPYING, MOVED):
        raise CorruptDataError(f"{name}: says what cannot be")


_FILE = SealedFile(MOVE_NAME, Move, FORMAT, _check)
decode_move, read_move, write_move, remove_move = (
    _FILE.decode,
    _FILE.read,
    _FILE.write,
    _FILE.remove,
)


class Moved(msgspec.Struct, frozen=True):
    """What one move did."""

    source: int
    target: int
    shards: tuple[int, ...]
    ledgers: int
    entries: int


class Pairs:
    """All directories of a stopped bookie, locked by the caller, with a disk each.

    What their small files say is durable.
    """

    def __init__(self, config: BookieConfig, stack: ExitStack) -> None:
        self.journals = config.journal.all_directories
        self.ledgers = config.ledgers.all_directories
        self.disks = {
            path: stack.enter_context(Disk(Path(path), "plain"))
            for path in (*self.journals, *self.ledgers)
        }
        for path, disk in self.disks.items():
            settle_names(disk, path)

    @property
    def first(self) -> tuple[Disk, str]:
        """Where the record of a move lies."""
        return self.disks[self.ledgers[0]], self.ledgers[0]

    def identities(self) -> list[tuple[str, Identity | None]]:
        """Return every directory's identity, journals first. Raises CorruptDataError."""
        return [(path, read_identity(disk, path)) for path, disk in self.disks.items()]

    @contextmanager
    def opened(self, pair: int, incarnation: int) -> Iterator[OfflineStore]:
        """Open what a pair has stored."""
        # Every start checks for a move that was cut off; only one that was needs what opens stores.
        from fastbk.storage.offline_store import OfflineStore

        path = self.ledgers[pair]
        with Disk(Path(path), "plain") as reader_disk:
            opened = OfflineStore(
                self.disks[path], reader_disk, path, self.journals[pair], incarnation, pair
            )
            try:
                yield opened
            finally:
                opened.close()


def end_move(config: BookieConfig) -> str:
    """Undo or finish a move that was cut off; return what was done, empty for nothing.

    Every start does this first: what small files say is durable from then on (INV-X7). The directories exist and are
    locked. Where they are not those of the move (one is not mounted, say) nothing is done: the rules of the start
    refuse them, with the reason. Raises StorageError, OSError.
    """
    with Disk.of_small_files() as disk:  # as a rule there is none, and a start waits for this
        for path in (*config.journal.all_directories, *config.ledgers.all_directories):
            settle_names(disk, path)
        move = read_move(disk, config.ledgers.all_directories[0])
    if move is None:
        return ""
    with ExitStack() as stack:
        pairs = Pairs(config, stack)
        if not _are_those_of(pairs, move):
            return ""
        if move.phase == COPYING:
            _undo(pairs, move)
            done = "undone: the shards are where they were"
        else:
            _finish(pairs, move)
            done = "finished"
        logs.warning("bookie.move_ended", source=move.source, target=move.target, done=done)
        return done


def move_evenly(config: BookieConfig, on_bytes: Callable[[int], None]) -> list[Moved]:
    """Move the fewest shards after which all pairs have as many, but for one; like `move_shards`."""
    with ExitStack() as stack:
        shards = _agreed(Pairs(config, stack)).shards
    wanted: dict[tuple[int, int], list[int]] = {}
    for shard, target in evened(shards, len(config.journal.all_directories)):
        wanted.setdefault((shards[shard], target), []).append(shard)
    return [
        each
        for (_, target), some in sorted(wanted.items())
        for each in move_shards(config, some, target, on_bytes)
    ]


def move_shards(
    config: BookieConfig, shards: Sequence[int], target: int, on_bytes: Callable[[int], None]
) -> list[Moved]:
    """Move shards to the pair `target`, from whichever pairs they are in; those that are there already stay.

    The directories are locked, and no earlier move is unfinished (`end_move`).

    Args:
        shards: 0..63.
        on_bytes: told of the bytes of entries that were copied since the last call.

    Raises StorageError: a journal holds what is not flushed, or something cannot be read; nothing was moved then but
    for the sources that were done before. ConfigError: there is no such pair. OSError.
    """
    if not 0 <= target < len(config.journal.all_directories):
        raise ConfigError(
            f"there is no pair {target}: the configuration names {len(config.journal.all_directories)}"
        )
    with ExitStack() as stack:
        pairs = Pairs(config, stack)
        identity = _agreed(pairs)
        done = []
        for source in range(PAIRS_MAX):
            some = tuple(s for s in sorted(set(shards)) if identity.shards[s] == source != target)
            if some:
                move = Move(
                    incarnation=identity.incarnation, source=source, target=target, shards=some
                )
                done.append(_move(pairs, move, on_bytes))
        return done


def _move(pairs: Pairs, move: Move, on_bytes: Callable[[int], None]) -> Moved:
    incarnation = int(move.incarnation, 16)
    with (
        pairs.opened(move.source, incarnation) as source,
        pairs.opened(move.target, incarnation) as target,
    ):
        for pair, opened in ((move.source, source), (move.target, target)):
            path = pairs.journals[pair]
            opened.check_is_flushed(pairs.disks[path], path)
        path = pairs.journals[move.source]
        source.check_can_give(pairs.disks[path], path)
        write_move(*pairs.first, move)
        kill_point("move.after_record")
        states = sorted(source.states(move.shards).values(), key=lambda state: state.ledger_id)
        living = [state for state in states if not state.flags & DELETED]
        try:
            entries = target.take(
                states,
                (entry for state in living for entry in source.entries(state.ledger_id)),
                on_bytes,
            )
        except StorageError:
            target.drop(move.shards, _undone(move))
            remove_move(*pairs.first)
            raise
    kill_point("move.before_moved")
    moved = msgspec.structs.replace(move, phase=MOVED)
    write_move(*pairs.first, moved)
    kill_point("move.after_moved")
    _finish(pairs, moved)
    return Moved(move.source, move.target, move.shards, len(living), entries)


def _finish(pairs: Pairs, move: Move) -> None:
    for path, identity in pairs.identities():
        assert identity is not None
        after = msgspec.structs.replace(identity, shards=move.applied_to(identity.shards))
        if after != identity:
            write_identity(pairs.disks[path], path, after)
            kill_point("move.after_identity")
    with pairs.opened(move.source, int(move.incarnation, 16)) as source:
        source.drop(move.shards, f"moved to pair {move.target}")
    kill_point("move.after_drop")
    remove_move(*pairs.first)
    kill_point("move.after_end")


def _undo(pairs: Pairs, move: Move) -> None:
    with pairs.opened(move.target, int(move.incarnation, 16)) as target:
        target.drop(move.shards, _undone(move))
    kill_point("move.after_undo")
    remove_move(*pairs.first)


def _undone(move: Move) -> str:
    return f"a move from pair {move.source} was undone"


def _are_those_of(pairs: Pairs, move: Move) -> bool:
    """Return whether every directory is one of the bookie's life that the record speaks of, in its place."""
    if max(move.source, move.target) >= len(pairs.ledgers):
        return False
    places = [("journal", pair) for pair in range(len(pairs.journals))]
    places += [("ledger", pair) for pair in range(len(pairs.ledgers))]
    return all(
        identity is not None
        and identity.incarnation == move.incarnation
        and (identity.role, identity.pair) == place
        for place, (_, identity) in zip(places, pairs.identities(), strict=True)
    )


def _agreed(pairs: Pairs) -> Identity:
    """Return the first pair's identity, with which all others agree. Raises StorageError."""
    directories, found = zip(*pairs.identities(), strict=True)
    for directory, identity in zip(directories, found, strict=True):
        if identity is None:
            raise StorageError(
                f"{directory} has no identity: start the bookie with this configuration once, or run `fastbk bookie"
                " expand` for directories that are new"
            )
    first: Identity = found[0]
    places = [("journal", pair) for pair in range(len(pairs.journals))]
    places += [("ledger", pair) for pair in range(len(pairs.ledgers))]
    for directory, identity, place in zip(directories, found, places, strict=True):
        same = (identity.incarnation, identity.shards, identity.pairs, identity.bookie_id)
        if same != (first.incarnation, first.shards, len(pairs.ledgers), first.bookie_id) or (
            (identity.role, identity.pair) != place
        ):
            raise StorageError(
                f"{directory} does not go with the other directories of this configuration: start the bookie, which"
                " says what differs and what to do"
            )
    return first


# --- more directories -----------------------------------------------------------------------------


def expand(config: BookieConfig, store: MetadataStore, bookie_id: str) -> list[str]:
    """Add the directories that the configuration names beside those of the bookie; return them.

    All are locked, and no move of shards is unfinished. Raises ConfigError (the bookie was never born), IdentityError,
    StorageError, MetadataUnavailable, MetadataConflict, OSError.
    """
    with ExitStack() as stack:
        directories = [
            Directory(path, place, stack.enter_context(Disk(Path(path), "plain")))
            for path, place in places(config)
        ]
        found = [content_of(each) for each in directories]
        read = store.read_identity(BookieId(bookie_id))
        if read is None:
            raise ConfigError(
                f"the metadata store knows no bookie {bookie_id!r}: one that is new needs no expansion, start it"
            )
        known, instance_id = known_of(read.identity), store.instance_id()
        verdict = judge(bookie_id, found, known, instance_id=instance_id, expand=True)
        if verdict is not Verdict.EXPANDED:
            return []
        pairs = configured_pairs(found)
        old = [each.identity for each in found if each.identity is not None]
        oldest = next(one for one in old if one.directory_id in known.places)
        identities = []
        for each, was in zip(directories, found, strict=True):
            identity = was.identity
            if identity is None:
                identity = _make(each, oldest, pairs)
                kill_point("expand.after_identity")
            identities.append(identity)
        listed = tuple(
            DirectoryIdentity(one.directory_id, one.role, one.pair) for one in identities
        )
        expanded = msgspec.structs.replace(read.identity, directories=listed)
        stamp_cookies(directories, expanded.cookie(instance_id))
        kill_point("expand.before_metadata")
        if expanded != read.identity:
            store.write_identity(expanded, read.version)
        kill_point("expand.after_metadata")
        _count_pairs(directories, identities, pairs)
        new = [each.path for each, one in zip(directories, identities, strict=True)
               if one.directory_id not in known.places]  # fmt: skip
        return new


def _make(directory: Directory, oldest: Identity, pairs: int) -> Identity:
    """Give a new directory what it needs, its identity last."""
    role, pair = directory.place
    if role == "ledger":
        make_ledger_directory(directory.disk, directory.path)
    identity = new_identity(
        oldest.bookie_id,
        oldest.incarnation_number,
        role,
        int(time.time()),
        pair,
        pairs,
        oldest.shards,
    )
    identity = msgspec.structs.replace(identity, starts=oldest.starts)
    write_identity(directory.disk, directory.path, identity)
    return identity


def _count_pairs(
    directories: Sequence[Directory], identities: Sequence[Identity], pairs: int
) -> None:
    """Have every identity say how many pairs there are: the old ones were born with fewer."""
    for each, identity in zip(directories, identities, strict=True):
        if identity.pairs != pairs:
            write_identity(each.disk, each.path, msgspec.structs.replace(identity, pairs=pairs))
            kill_point("expand.after_count")


# --- another id -----------------------------------------------------------------------------------


def rename(config: BookieConfig, store: MetadataStore, old: BookieId, new: BookieId) -> bool:
    """Have the bookie `old` of these directories be `new`; return whether there was anything left to do.

    The directories exist and are locked. Raises IdentityError where they are not that bookie's, or `new` is somebody
    else's, MetadataConflict where one of the two is registered, StorageError, MetadataUnavailable, OSError.
    """
    check_bookie_id(new)
    with ExitStack() as stack:
        directories = [
            Directory(path, place, stack.enter_context(Disk(Path(path), "plain")))
            for path, place in places(config)
        ]
        refuse_imports(directories)
        found = [content_of(each) for each in directories]
        _check_not_registered(store, old, new)
        known_old, known_new = store.read_identity(old), store.read_identity(new)
        known = known_old or known_new
        if known is None:
            raise IdentityError(f"the metadata store knows neither bookie {old!r} nor {new!r}")
        instance_id = store.instance_id()
        _check_ours(found, old, new, known, instance_id)
        is_changed = known_old is not None
        _announce(store, known, known_new, new)
        cookie = msgspec.structs.replace(known.identity, bookie_id=new).cookie(instance_id)
        for each, was in zip(directories, found, strict=True):
            identity = was.identity
            assert identity is not None, "the rules found one everywhere"
            if identity.bookie_id != new:
                renamed = msgspec.structs.replace(identity, bookie_id=new)
                write_identity(each.disk, each.path, renamed)
                is_changed = True
            if was.cookie != cookie:
                write_cookie(each.disk, each.path, cookie)
                is_changed = True
        if known_old is not None:
            store.delete_identity(old, known_old.version)
        return is_changed


def _check_not_registered(store: MetadataStore, old: BookieId, new: BookieId) -> None:
    for one in store.list_bookies():
        if one.service.bookie_id in (old, new):
            raise MetadataConflict(
                f"bookie {one.service.bookie_id!r} is running: stop it first (the registration of one that was killed"
                " runs out by itself)"
            )


def _check_ours(
    found: Sequence[DirectoryContent],
    old: BookieId,
    new: BookieId,
    known: VersionedIdentity,
    instance_id: str,
) -> None:
    """Ask the rules of a start, with directories that have the new id already taken for what they were."""
    as_before = []
    for each in found:
        identity, cookie = each.identity, each.cookie
        if identity is not None and identity.bookie_id == new:
            identity = msgspec.structs.replace(identity, bookie_id=old)
        if cookie is not None and cookie.bookie_id == new:
            cookie = msgspec.structs.replace(cookie, bookie_id=old)
        as_before.append(msgspec.structs.replace(each, identity=identity, cookie=cookie))
    verdict = judge(old, as_before, known_of(known.identity), instance_id=instance_id)
    if verdict is not Verdict.KNOWN:
        raise IdentityError(f"bookie {old!r} was never born: start it under its new id")


def _announce(
    store: MetadataStore,
    known: VersionedIdentity,
    known_new: VersionedIdentity | None,
    new: BookieId,
) -> None:
    """Have metadata know the new id as well."""
    wanted = msgspec.structs.replace(known.identity, bookie_id=new)
    if known_new is None:
        # What another bookie of that id held is not here: ours must not be asked for it.
        if ledger_ids := ledgers_of(store, new):
            some = ", ".join(map(str, ledger_ids[:LEDGERS_NAMED]))
            raise IdentityError(
                f"{len(ledger_ids)} ledgers name bookie {new!r}, which is not this one yet (ledger {some}). Change"
                " ledgers' metadata after the bookie's id, or choose another id"
            )
        store.write_identity(wanted, None)
    elif known_new.identity.incarnation != wanted.incarnation:
        raise IdentityError(
            f"the metadata store knows another bookie {new!r}: choose another id, or take that one out of the cluster"
        )
    elif known_new.identity != wanted:
        store.write_identity(wanted, known_new.version)
