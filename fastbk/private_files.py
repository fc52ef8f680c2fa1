"""Files and directories that only their owner reads: data, metadata (with ledgers' passwords), logs.

The rights do not depend on the umask. No symbolic link is followed at the end of a path: who may write to a directory
could have us write to any other file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
OTHERS = stat.S_IRWXO


def opener(path: str, flags: int) -> int:
    """Open a file, for `open(..., opener=opener)`. Raises OSError, for a symbolic link too."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)


def make_directory(path: Path) -> None:
    """Make a directory and those above it that are missing. One that is there stays as it is. Raises OSError."""
    for folder in reversed((path, *path.parents)):
        with contextlib.suppress(FileExistsError):
            if not folder.is_dir():
                folder.mkdir(DIRECTORY_MODE)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is no directory")


def write_text(path: Path, text: str) -> None:
    """Write a small file, in the place of what it held. Raises OSError."""
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)


def tighten(path: str | os.PathLike[str]) -> None:
    """Take the rights of others from what is there already, where it is ours; its group keeps what it has."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        if mode & OTHERS:
            os.chmod(path, mode & ~OTHERS)


def is_open_to_others(path: str | os.PathLike[str]) -> bool:
    """Return whether others than its owner and group may do anything with it. Raises OSError."""
    return bool(os.stat(path).st_mode & OTHERS)
