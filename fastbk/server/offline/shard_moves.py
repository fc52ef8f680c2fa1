"""Moves shards between the pairs of a stopped bookie, and ends moves that a crash cut off (INV-D3).

Order: record, copy, record says moved, identities, drop at the source, no record. Everything happens with all
directories locked; what is left of it at the next start is undone or finished by `end_move` before anybody looks at
the identities.

Decision 46.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import ConfigError, StorageError
from fastbk.native.disk import Disk
from fastbk.native.ffi import CorruptDataError
from fastbk.native.ledger_state import DELETED
from fastbk.native.process import kill_point
from fastbk.native.segment import PAIRS_MAX, SHARD_COUNT
from fastbk.observe import logs
from fastbk.storage.identity import Identity, evened, read_identity, write_identity
from fastbk.storage.small_files import SealedFile

if TYPE_CHECKING:
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
    """All directories of a stopped bookie, locked by the caller, with a disk each."""

    def __init__(self, config: BookieConfig, stack: ExitStack) -> None:
        self.journals = config.journal.all_directories
        self.ledgers = config.ledgers.all_directories
        self.disks = {
            path: stack.enter_context(Disk(Path(path), "plain"))
            for path in (*self.journals, *self.ledgers)
        }

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
            opened = OfflineStore(self.disks[path], reader_disk, path, incarnation, pair)
            try:
                yield opened
            finally:
                opened.close()


def end_move(config: BookieConfig) -> str:
    """Undo or finish a move that was cut off; return what was done, empty for nothing.

    The directories exist and are locked. Where they are not those of the move (one is not mounted, say) nothing is
    done: the rules of the start refuse them, with the reason. Raises StorageError, OSError.
    """
    with ExitStack() as stack:
        pairs = Pairs(config, stack)
        move = read_move(*pairs.first)
        if move is None or not _are_those_of(pairs, move):
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
