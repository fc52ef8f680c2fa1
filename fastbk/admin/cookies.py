"""The cookies of a cluster: which bookies its metadata knows, with which directories; and forgetting one of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta.api import BookieIdentity
from fastbk.meta.hold import check_not_held
from fastbk.server.identity import LEDGERS_NAMED, ledgers_of
from fastbk.units import format_names

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import BookieId


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
    alive = {one.service.bookie_id for one in store.list_bookies()}
    found = []
    for one in store.list_identities():
        is_alive = one.bookie_id in alive
        if isinstance(one, BookieIdentity):
            places = tuple(
                f"{each.role} {each.pair}: {each.directory_id}" for each in one.directories
            )
            found.append(
                KnownBookie(one.bookie_id, f"{one.incarnation:016x}", one.starts, places, is_alive)
            )
        else:
            found.append(KnownBookie(one.bookie_id, "unreadable", 0, (), is_alive))
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
    if any(one.service.bookie_id == bookie_id for one in store.list_bookies()):
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
        known = {one.bookie_id for one in store.list_identities()}
        known |= {one.service.bookie_id for one in store.list_bookies()}
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
        known = [one.bookie_id for one in store.list_identities()]
    if foreign is None:
        return known
    from fastbk.meta.zookeeper.admin import Cookies

    with Cookies(parse_zookeeper(uri)) as cookies:
        cookies.delete(bookie_id, only=foreign)
    return None
