"""Replacing a whole file so that neither a crash nor a power cut leaves half of one under its name.

For files that we write rarely and somewhere outside a bookie's directories; those have `fastbk.native.disk`, which can
be told to fail. Begin at `replaced`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give an empty file beside `path` to write to; at the block's end it takes the place of `path`, durably.

    - At any time `path` is the old file (or missing, as it was) or the new one, whole, also after a power cut.
    - After the block the new one survives a power cut: the file and its folder were synced.
    - After an exception in the block `path` is as it was, and the file beside it is gone.
    - A killed process may leave `.<name>.<8 hex digits>.part`, which no later call uses or removes.
    - Rights are those of any new file, by the umask. A symbolic link at `path` is replaced, not followed.

    Raises OSError. If the last step failed, the folder's sync, the new file has the name, but not durably.
    """
    # Not by the process's id: in containers that is the same each time, and a killed one may have left its file.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    draft.touch(exist_ok=False)
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names that were given or taken in a directory durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
