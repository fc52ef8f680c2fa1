"""Files and directories that only their owner reads: data, metadata (with ledgers' passwords), logs.

The rights do not depend on the umask. No symbolic link is followed at the end of a path: who may write to a directory
could have us write to any other file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from fastbk.errors import ConfigError

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
OTHERS = stat.S_IRWXO
READ_BYTES_MAX = 1 << 20


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


def read_secret(path: str) -> bytes:
    """Return the content of a file that others than owner and group must not be able to read. Raises ConfigError."""
    return _read(path, OTHERS, f"others can read {path}. If it is the right file, run `chmod o= {path}`")


def read_public(path: str) -> bytes:
    """Return the content of a file that others must not be able to change. Raises ConfigError."""
    return _read(path, stat.S_IWOTH, f"others can change {path}. If it is the right file, run `chmod o-w {path}`")


def _read(path: str, forbidden_mode: int, problem: str) -> bytes:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & forbidden_mode:
                raise ConfigError(problem)
            content = file.read(READ_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if len(content) > READ_BYTES_MAX:
        raise ConfigError(f"{path} is larger than 1 MiB")
    return content


def read_password(path: str) -> str:
    """Return a password that fills a file; a line break at its end is not part of it. Raises ConfigError."""
    try:
        return read_secret(path).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8") from None
