"""Adds empty journal/index pairs to a stopped bookie: `fastbk bookie expand`.

Which directories may be added is decided in `fastbk.storage.identity_check`. Order: folders and first manifest,
identities and cookies of the new directories, metadata, the identities of the old ones. Cut off anywhere it is done
again, and until then no start succeeds with the new configuration. No shard moves by itself.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fastbk.errors import ConfigError
from fastbk.meta.api import DirectoryIdentity
from fastbk.model.ids import BookieId
from fastbk.native.disk import Disk
from fastbk.native.process import kill_point
from fastbk.server.identity import Directory, content_of, known_of, places, stamp_cookies
from fastbk.storage.directories import make_ledger_directory
from fastbk.storage.identity import Identity, new_identity, write_identity
from fastbk.storage.identity_check import Verdict, configured_pairs, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.meta.api import MetadataStore
    from fastbk.server.configuration.bookie_config import BookieConfig


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
        expanded = replace(read.identity, directories=listed)
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
