"""Which bookies a cluster knows, and changes of that: forget one, rename one, empty its
directories.

The cookies and identities in metadata say which bookies there are, with which directories. A bookie
whose name changes, not its data, gets its new id written over the old one in the metadata of all
ledgers. Only what is a bookie's of ours is removed from directories.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, Error, MetadataConflict, NoSuchLedger, StorageError
from fastbk.limits import RateLimit
from fastbk.meta.api import BookieIdentity, all_ids
from fastbk.meta.rollback import check_not_held
from fastbk.model.ledger import LedgerMetadata
from fastbk.server.directories import LOCK_NAME
from fastbk.server.identity import LEDGERS_NAMED, ledgers_of
from fastbk.storage.identity import NAME as IDENTITY_NAME
from fastbk.units import format_names

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import BookieId, LedgerId


@dataclass(frozen=True, slots=True)
class KnownBookie:
    """What metadata knows of one bookie id.

    Attributes:
        incarnation: hex. starts: of that incarnation.
        directories: role, pair and id of each; nothing of all this where it cannot be read.
        is_registered: it is alive, or was a moment ago.
    """

    bookie_id: BookieId
    incarnation: str
    starts: int
    directories: tuple[str, ...]
    is_registered: bool


def known_bookies(store: MetadataStore) -> list[KnownBookie]:
    """Return every bookie that ever started and was not forgotten, by id. Raises MetadataUnavailable."""
    alive = {bookie.service.bookie_id for bookie in store.list_bookies()}
    found = []
    for identity in store.list_identities():
        is_alive = identity.bookie_id in alive
        if isinstance(identity, BookieIdentity):
            places = tuple(
                f"{each.role} {each.pair}: {each.directory_id}" for each in identity.directories
            )
            found.append(
                KnownBookie(
                    identity.bookie_id,
                    f"{identity.incarnation:016x}",
                    identity.starts,
                    places,
                    is_alive,
                )
            )
        else:
            found.append(KnownBookie(identity.bookie_id, "unreadable", 0, (), is_alive))
    return found


def forget(store: MetadataStore, bookie_id: BookieId, *, even_if_named: bool = False) -> None:
    """Delete a bookie's cookie and identity, so that its id is free; its directories start no bookie any more.

    Args:
        store: of the cluster.
        bookie_id: of a bookie that is not running.
        even_if_named: also when ledgers still count on it. The next bookie of that id has to be started with
            `--accept-data-loss` then, since it holds none of what they say it holds.

    Raises StorageError (unknown, running, or named by ledgers), MetadataOnHold, MetadataUnavailable, MetadataConflict.
    """
    read = store.read_identity(bookie_id)
    if read is None:
        raise StorageError(f"the metadata store knows no bookie {bookie_id!r}")
    if any(bookie.service.bookie_id == bookie_id for bookie in store.list_bookies()):
        raise MetadataConflict(
            f"bookie {bookie_id!r} is running: stop it first (the registration of one that was killed runs out by"
            " itself)"
        )
    if not even_if_named:
        check_not_held(store)
        ledger_ids = ledgers_of(store, bookie_id)
        if ledger_ids:
            some = ", ".join(map(str, ledger_ids[:LEDGERS_NAMED]))
            raise StorageError(
                f"{len(ledger_ids)} ledgers count on bookie {bookie_id!r} (ledger {some}): `fastbk bookie decommission"
                f" {bookie_id}` copies them to others first"
            )
    store.delete_identity(bookie_id, read.version)


def check_known(uri: str, bookie_id: BookieId) -> None:
    """Raise ConfigError if the metadata has no bookie of that id: neither ours nor one of Apache's, up or down.

    For commands about a bookie that no ledger names. Raises MetadataUnavailable.
    """
    from fastbk.meta.uri import open_store

    with closing(open_store(uri, may_make=False)) as store:
        known = {identity.bookie_id for identity in store.list_identities()}
        known |= {bookie.service.bookie_id for bookie in store.list_bookies()}
        is_known = bookie_id in known or store.foreign_cookie(bookie_id) is not None
    if not is_known:
        raise ConfigError(
            f"no bookie {bookie_id}: the metadata at {uri} has none of that id, and no ledger names it."
            f" It has {format_names(known)}"
        )


def free_id(uri: str, bookie_id: BookieId) -> list[BookieId] | None:
    """Delete cookie and identity of a bookie that was emptied, ours or Apache's.

    Returns None, or where there was none of either, which is well, too, the ids of those there are.

    Args:
        uri: of the metadata.
        bookie_id: of a bookie that is not running, and that no ledger counts on.

    Raises MetadataUnavailable, MetadataConflict (it was started, or taken over, meanwhile).
    """
    from fastbk.meta.uri import open_store, parse_zookeeper

    with closing(open_store(uri, may_make=False)) as store:
        found = store.read_identity(bookie_id)
        if found is not None:
            store.delete_identity(bookie_id, found.version)
            return None
        foreign = store.foreign_cookie(bookie_id)
        known = [identity.bookie_id for identity in store.list_identities()]
    if foreign is None:
        return known
    from fastbk.meta.zookeeper.admin import Cookies

    with Cookies(parse_zookeeper(uri)) as cookies:
        cookies.delete(bookie_id, only=foreign)
    return None


CONFLICTS_MAX = 100


@dataclass(slots=True)
class Renaming:
    """How far it is.

    Attributes:
        seen: ledgers looked at. updated: those that named the bookie and name the other now.
        failed: those that could not be changed, and why.
    """

    seen: int = 0
    updated: int = 0
    failed: dict[LedgerId, str] = field(default_factory=dict)


def renamed(metadata: LedgerMetadata, old: BookieId, new: BookieId) -> LedgerMetadata | None:
    """Return the metadata with `new` in the place of `old`, None if it does not name `old`.

    Raises MetadataConflict if a fragment names both: two of its copies would be one.
    """
    if not any(old in fragment.ensemble for fragment in metadata.fragments):
        return None
    if any(
        old in fragment.ensemble and new in fragment.ensemble for fragment in metadata.fragments
    ):
        raise MetadataConflict(f"a fragment names both {old} and {new}")
    fragments = tuple(
        replace(
            fragment, ensemble=tuple(new if each == old else each for each in fragment.ensemble)
        )
        for fragment in metadata.fragments
    )
    return replace(metadata, fragments=fragments)


def rename_bookie(
    store: MetadataStore,
    old: BookieId,
    new: BookieId,
    *,
    updates_per_s: float,
    updates_max: int | None = None,
    on_progress: Callable[[Renaming], None] = lambda _: None,
) -> Renaming:
    """Rename the bookie in all ledgers, by compare-and-set; return what was done. Can be run again.

    Args:
        store: of the cluster.
        old, new: bookie ids. Whoever reads goes to `new` from then on, so it has to hold what `old` held.
        updates_per_s: above 0; how many ledgers are changed in a second at most.
        updates_max: end after so many changes; None: change all.
        on_progress: told after every ledger that was changed or failed.
    """
    progress, limit = Renaming(), RateLimit(updates_per_s)
    for ledger_id in all_ids(store):
        if updates_max is not None and progress.updated >= updates_max:
            break
        progress.seen += 1
        try:
            if not _rename_in(store, ledger_id, old, new):
                continue
            progress.updated += 1
        except Error as error:
            progress.failed[ledger_id] = str(error)
        on_progress(progress)
        limit.spend(1)
    return progress


def _rename_in(store: MetadataStore, ledger_id: LedgerId, old: BookieId, new: BookieId) -> bool:
    """Return whether the ledger was changed."""
    for _ in range(CONFLICTS_MAX):
        try:
            ledger = store.read_ledger(ledger_id)
            wanted = renamed(ledger.metadata, old, new)
            if wanted is None:
                return False
        except NoSuchLedger:
            return False
        try:
            store.update_ledger(ledger_id, wanted, ledger.version)
        except MetadataConflict:
            continue
        return True
    raise MetadataConflict(f"others keep changing ledger {ledger_id}", ledger_id=ledger_id)


KEPT = frozenset({LOCK_NAME, "lost+found"})
"""Held by who empties the directory; made by file systems."""


def things_in(directory: str, directories: Sequence[str] = ()) -> list[str]:
    """Return the names in a directory that count as content; none if it does not exist. Raises StorageError.

    `directories`: those of the whole bookie; one may lie in another and is none of its content.
    """
    inner = {os.path.abspath(one) for one in directories}
    try:
        names = set(os.listdir(directory)) - KEPT
        return sorted(name for name in names if os.path.abspath(f"{directory}/{name}") not in inner)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror}") from error


def empty_directories(directories: Sequence[str]) -> None:
    """Remove everything in them; the caller holds their locks, so no bookie runs.

    Raises StorageError, with nothing removed, for a directory that holds something and is not a bookie's of ours; and
    when a file cannot be removed. The identity goes last: what was cut off can be run again.
    """
    for directory in directories:
        names = things_in(directory, directories)
        if names and IDENTITY_NAME not in names:
            raise StorageError(
                f"{directory} holds {', '.join(names[:3])} and no {IDENTITY_NAME}: that is no bookie's of fastbk's"
            )
    for directory in directories:
        names = [name for name in things_in(directory, directories) if name != IDENTITY_NAME]
        for name in [*names, IDENTITY_NAME]:
            _remove(f"{directory}/{name}")


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror}") from error
