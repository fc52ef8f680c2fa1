"""`metadata_mark.json`: what a bookie stores of metadata, in every ledger directory beside `identity.json`.

It says how old metadata was, which ledgers it had listed at most, how many starts of this bookie it had counted, and
the hold that it was on. Everything was in metadata before it was stored here (INV-M2), so metadata that knows less was
rolled back. The newest file counts: one that could not be written, on a full disk, is older and never wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.storage.small_files import SealedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.disk import Disk

NAME = "metadata_mark.json"
FORMAT = 1


class MetadataMark(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    `starts`: of this incarnation of the bookie, as metadata has counted them. `hold_id`: of the hold that metadata was
    on, empty where it was on none; `hold_since_ms`, `hold_reasons`: of the same.
    """

    age: int = 0
    highest_id: int = -1
    incarnation: int = 0
    starts: int = 0
    hold_id: str = ""
    hold_since_ms: int = 0
    hold_reasons: tuple[str, ...] = ()
    written: int = 0
    """Rises with each change."""
    format: int = FORMAT


_FILE = SealedFile(NAME, MetadataMark, FORMAT)
write = _FILE.write


def read_newest(directories: Iterable[tuple[Disk, str]]) -> MetadataMark | None:
    """Return the newest of the directories' files, None where there is none. Raises CorruptDataError, OSError."""
    found = [_FILE.read(disk, directory) for disk, directory in directories]
    return max((one for one in found if one is not None), key=lambda one: one.written, default=None)
