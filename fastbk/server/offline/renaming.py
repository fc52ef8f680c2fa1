"""Gives a stopped bookie another id, with all its data: its host is known by a name instead of an address, say.

Order: metadata learns the new id, with the same incarnation and directories; then each directory's identity and cookie;
then metadata forgets the old one. Cut off anywhere it is done again: before the first directory is changed the bookie
still starts under its old id, after the last one under its new id, and between the two not at all (INV-D1).

Ledgers go on naming the old id until somebody changes that (`fastbk.admin.bookie_identity`). That has
to be before the bookie starts: one that metadata does not name for a ledger counts as a copy too many.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fastbk.errors import MetadataConflict
from fastbk.model.ids import BookieId, check_bookie_id
from fastbk.native.disk import Disk
from fastbk.server.identity import (
    LEDGERS_NAMED,
    Directory,
    content_of,
    known_of,
    ledgers_of,
    places,
    refuse_imports,
)
from fastbk.storage.cookie_file import write_cookie
from fastbk.storage.identity import write_identity
from fastbk.storage.identity_check import DirectoryContent, IdentityError, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.meta.api import MetadataStore, VersionedIdentity
    from fastbk.server.configuration.bookie_config import BookieConfig


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
        cookie = replace(known.identity, bookie_id=new).cookie(instance_id)
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
            cookie = replace(cookie, bookie_id=old)
        as_before.append(replace(each, identity=identity, cookie=cookie))
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
    wanted = replace(known.identity, bookie_id=new)
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
