"""Makes directories and metadata agree on who this bookie is, once, before anything is served (INV-D1).

What may be done with which findings is decided in `fastbk.storage.identity_check`. Here is where they come from, and
how a new bookie is born: folders and first manifest, then the identities, the cookies, then metadata. A birth that was
cut short anywhere goes on at the next start.

A bookie that lost its data, and was told that this is so, is born again (INV-X4): every ledger that metadata says it
held goes into limbo, durably, before metadata hears of the new incarnation. Writers from before know the old one and
send nothing; ledgers that are created meanwhile are in no doubt.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fastbk.errors import MetadataConflict
from fastbk.meta.api import BookieIdentity, DirectoryIdentity, all_ledgers
from fastbk.meta.records import BadRecord
from fastbk.meta.rollback import check_not_held
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerState
from fastbk.native.disk import Disk
from fastbk.native.process import kill_point
from fastbk.observe import logs
from fastbk.server.supervision.metadata_age import MetadataAge
from fastbk.storage.cookie_file import read_cookie, write_cookie
from fastbk.storage.directories import NO_ROOM, data_in, make_ledger_directory
from fastbk.storage.identity import new_identity, new_incarnation, read_identity, write_identity
from fastbk.storage.identity_check import (
    DirectoryContent,
    DirectoryPlace,
    IdentityError,
    KnownBookie,
    Verdict,
    judge,
)
from fastbk.storage.limbo import write_limbo
from fastbk.storage.manifest import ManifestSlots
from fastbk.storage.small_files import read_import_mark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastbk.meta.api import MetadataStore, VersionedIdentity
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.storage.cookie_file import Cookie
    from fastbk.storage.identity import Shards

LEDGERS_NAMED = 3
"""Maximum ledgers that messages name as examples."""
OLD_LEASE_WAIT_S = 30.0
"""A dead bookie's registration runs out within this; one that stays has a living owner."""
_POLL_S = 0.2


class Directory(msgspec.Struct, frozen=True):
    """One configured directory, and what reads and writes there."""

    path: str
    place: DirectoryPlace
    disk: Disk


def places(config: BookieConfig) -> Iterator[tuple[str, DirectoryPlace]]:
    """Yield every configured directory and what for."""
    for pair, directory in enumerate(config.journal.all_directories):
        yield directory, DirectoryPlace("journal", pair)
    for pair, directory in enumerate(config.ledgers.all_directories):
        yield directory, DirectoryPlace("ledger", pair)


def read_shards(config: BookieConfig) -> Shards:
    """Return the pair of each shard, once `settle` found that all directories agree (INV-D3)."""
    directory = config.ledgers.all_directories[0]
    with Disk.of_small_files() as disk:
        identity = read_identity(disk, directory)
    assert identity is not None, "a bookie that was settled has its identities"
    return identity.shards


def settle(
    config: BookieConfig, store: MetadataStore, bookie_id: str, *, accept_data_loss: bool = False
) -> int:
    """Return the bookie's incarnation; give birth to it if nobody knows it and its directories are empty.

    The directories exist and are locked. `accept_data_loss`: a person's word that data that metadata knows is gone for
    good; without effect where nothing is missing. Raises IdentityError (a StorageError) naming what differs and what is
    safe to do, MetadataOnHold for a rebirth, other StorageErrors for manifests and small files that are gone or
    damaged, MetadataUnavailable, OSError.
    """
    with ExitStack() as stack:
        directories = [
            Directory(path, place, stack.enter_context(Disk.of_small_files()))
            for path, place in places(config)
        ]
        refuse_imports(directories)
        found = [content_of(each) for each in directories]
        read = store.read_identity(BookieId(bookie_id))
        known = None if read is None else known_of(read.identity)
        instance_id = store.instance_id()
        verdict = judge(
            bookie_id, found, known, instance_id=instance_id, accept_data_loss=accept_data_loss
        )
        version = None if read is None else read.version
        if verdict is Verdict.KNOWN:
            assert read is not None
            _check_manifests(directories)
            age = MetadataAge(config.ledgers.all_directories, store, bookie_id)
            # The count of starts is evidence: it is compared before this start is counted.
            age.check_start(_starts(found), read.identity)
            starts = _count_start(directories, found, store, read.identity, read.version)
            age.start_counted(read.identity.incarnation, starts)
            _complete_cookies(directories, found, read.identity.cookie(instance_id))
            return read.identity.incarnation
        if verdict is Verdict.LOST:
            _wait_for_the_old_life(store, bookie_id)
        is_rebirth = verdict is Verdict.LOST or accept_data_loss
        if is_rebirth:
            # The ledgers to put into limbo are those that metadata lists (INV-X4).
            check_not_held(store)
            version = void_pending_names(store, read)
        ledger_ids = ledgers_of(store, BookieId(bookie_id), or_in_recovery=is_rebirth)
        if verdict is not Verdict.LOST and ledger_ids and not accept_data_loss:
            raise _forgotten(bookie_id, ledger_ids)
        if len(ledger_ids) > config.limits.ledgers_max:
            raise IdentityError(
                f"metadata lists {len(ledger_ids)} ledgers on {bookie_id!r}: raise [limits] ledgers_max above that"
            )
        born = _born(directories, found, bookie_id, ledger_ids, is_anew=verdict is Verdict.LOST)
        stamp_cookies(directories, born.cookie(instance_id))
        kill_point("rebirth.before_identity")
        store.write_identity(born, version)
        logs.info(
            "bookie.born",
            incarnation=f"{born.incarnation:016x}",
            again=verdict is not Verdict.NEW,
            ledgers_in_limbo=len(ledger_ids),
        )
        return born.incarnation


def _check_manifests(directories: Sequence[Directory]) -> None:
    """Raise what loading a manifest raises: no restart of the index would mend that, so there is none."""
    for each in directories:
        if each.place.role == "ledger":
            ManifestSlots(each.disk, each.path).load()


def refuse_imports(directories: Sequence[Directory]) -> None:
    """Raise IdentityError where an import was cut off: what lies there is a part of a bookie's data."""
    for each in directories:
        if (mark := read_import_mark(each.disk, each.path)) is not None:
            raise IdentityError(
                f"{each.path} holds an import of bookie {mark.bookie_id!r} that has not ended. Run `fastbk bookie"
                " import` again, which begins anew; the other bookie's directories are as they were"
            )


def content_of(directory: Directory) -> DirectoryContent:
    """Return what a directory holds. Raises StorageError for damaged identity files and cookies, OSError."""
    disk, path = directory.disk, directory.path
    return DirectoryContent(
        path,
        directory.place,
        read_identity(disk, path),
        data_in(disk, path),
        read_cookie(disk, path),
    )


def known_of(identity: BookieIdentity) -> KnownBookie:
    """Return what the rules compare of what metadata knows."""
    return KnownBookie(
        identity.incarnation,
        {one.directory_id: DirectoryPlace(one.role, one.pair) for one in identity.directories},
        identity.starts,
    )


def stamp_cookies(directories: Sequence[Directory], cookie: Cookie) -> None:
    """Put the same cookie into every directory, durably. Raises OSError."""
    for each in directories:
        write_cookie(each.disk, each.path, cookie)


def void_pending_names(store: MetadataStore, read: VersionedIdentity | None) -> int | None:
    """Write a bookie's identity as it is; return its new version, None where it has none (INV-E3, INV-X4).

    A repair may have given copies to the life that ended, and not have named the bookie for them yet: from here on it
    is rejected. What it named before is in every listing of ledgers that begins now. Raises MetadataConflict,
    MetadataUnavailable.
    """
    return None if read is None else store.write_identity(read.identity, read.version)


def ledgers_of(
    store: MetadataStore, bookie_id: BookieId, *, or_in_recovery: bool = False
) -> list[int]:
    """Return the ids of all ledgers that name this bookie in any fragment, ascending. Reads the metadata of all.

    `or_in_recovery`: those, too, that are being recovered. A recoverer gives copies to bookies that metadata names with
    the close only; one that lost its data meanwhile would say "no" of what it is then named for (INV-X4). And those
    whose metadata nobody can read, which may name the bookie.
    """
    found = []
    for ledger_id, read in all_ledgers(store):
        if isinstance(read, BadRecord):
            if or_in_recovery:
                found.append(ledger_id)
            continue
        metadata = read.metadata
        is_taken_over = or_in_recovery and metadata.state is LedgerState.IN_RECOVERY
        if is_taken_over or any(bookie_id in one.ensemble for one in metadata.fragments):
            found.append(ledger_id)
    return found


def _wait_for_the_old_life(store: MetadataStore, bookie_id: str) -> None:
    """Return when no earlier life of the bookie is registered. Raises IdentityError when it stays."""
    deadline_s = time.monotonic() + OLD_LEASE_WAIT_S
    while any(each.service.bookie_id == bookie_id for each in store.list_bookies()):
        if time.monotonic() >= deadline_s:
            raise IdentityError(
                f"bookie {bookie_id!r} is registered and alive elsewhere, with the data that is missing here. Stop that"
                " one first, or give this one an id of its own"
            )
        time.sleep(_POLL_S)


def _forgotten(bookie_id: str, ledger_ids: list[int]) -> IdentityError:
    some = ", ".join(map(str, ledger_ids[:LEDGERS_NAMED]))
    return IdentityError(
        f"the metadata store knows no identity of bookie {bookie_id!r}, but {len(ledger_ids)} ledgers name it as one of"
        f" their bookies (ledger {some}). Likely its identity was deleted after its data was lost. Start a bookie under"
        f" a new id; or, if the data is gone for good, run `fastbk bookie recover {bookie_id}`, which copies what it"
        " held from others, or start this one once with --accept-data-loss before that"
    )


def _born(
    directories: Sequence[Directory],
    found: Sequence[DirectoryContent],
    bookie_id: str,
    ledger_ids: list[int],
    *,
    is_anew: bool,
) -> BookieIdentity:
    """Give every directory that lacks one an identity, or all a new one; return what metadata is to know."""
    present = [each.identity.incarnation_number for each in found if each.identity is not None]
    incarnation = present[0] if present and not is_anew else new_incarnation()
    for each in directories:
        if each.place.role == "ledger":
            make_ledger_directory(each.disk, each.path)
            if ledger_ids:
                write_limbo(each.disk, each.path, ledger_ids, incarnation)
                kill_point("rebirth.after_limbo")
    identities = []
    pairs = 1 + max(each.place.pair for each in directories)
    for each, was in zip(directories, found, strict=True):
        identity = None if is_anew else was.identity
        if identity is None:
            now_s = int(time.time())
            role, pair = each.place
            identity = new_identity(bookie_id, incarnation, role, now_s, pair, pairs)
            write_identity(each.disk, each.path, identity)
        identities.append(DirectoryIdentity(identity.directory_id, identity.role, identity.pair))
    return BookieIdentity(BookieId(bookie_id), incarnation, tuple(identities))


def _count_start(
    directories: Sequence[Directory],
    found: Sequence[DirectoryContent],
    store: MetadataStore,
    known: BookieIdentity,
    version: int,
) -> int:
    """Count this start, in every directory before metadata hears of it: cut short anywhere, no directory looks old.

    Return how many starts metadata has counted now. A full or read-only disk keeps nobody from starting: what cannot be
    written there is served all the same, and the start goes uncounted.
    """
    identities = [each.identity for each in found if each.identity is not None]
    starts = _starts(found) + 1
    for each, identity in zip(directories, identities, strict=True):
        try:
            write_identity(each.disk, each.path, msgspec.structs.replace(identity, starts=starts))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logs.warning("bookie.start_not_counted", directory=each.path, reason=str(error))
            return known.starts
        kill_point("supervisor.start_counted")
    try:
        store.write_identity(replace(known, starts=starts), version)
    except MetadataConflict as error:
        raise IdentityError(
            f"another process started bookie {known.bookie_id!r} at the same moment, with other directories of the same"
            " incarnation. Likely this machine or its disks were cloned. Find the copy and keep only the directories"
            " that were used last"
        ) from error
    return starts


def _starts(found: Sequence[DirectoryContent]) -> int:
    """Return how many starts the directories have counted."""
    return max(each.identity.starts for each in found if each.identity is not None)


def _complete_cookies(
    directories: Sequence[Directory], found: Sequence[DirectoryContent], cookie: Cookie
) -> None:
    """Write the cookie where there is none, as before fastbk had them, or where it lists fewer directories."""
    for each, was in zip(directories, found, strict=True):
        listed = () if was.cookie is None else was.cookie.journals + was.cookie.ledgers
        if was.cookie is not None and set(listed) == set(cookie.journals + cookie.ledgers):
            continue
        try:
            write_cookie(each.disk, each.path, cookie)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logs.warning("bookie.cookie_not_written", directory=each.path, reason=str(error))
            return
        logs.info("bookie.cookie_written", directory=each.path)
