"""Empties the directories of a stopped bookie for good. Only what is a bookie's of ours is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from fastbk.errors import StorageError
from fastbk.server.directories import LOCK_NAME
from fastbk.storage.identity import NAME as IDENTITY_NAME

KEPT = frozenset({LOCK_NAME, "lost+found"})
"""Held by who empties the directory; made by file systems."""


def things_in(directory: str, directories: Sequence[str] = ()) -> list[str]:
    """Return the names in a directory that count as content; none if it does not exist. Raises StorageError.

    `directories`: those of the whole bookie; one may lie in another and is none of its content.
    """
    inner = {os.path.abspath(one) for one in directories}
    try:
        names = set(os.listdir(directory)) - KEPT
        return sorted(one for one in names if os.path.abspath(f"{directory}/{one}") not in inner)
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
