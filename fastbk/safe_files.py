"""Files that are written and read safely: for their owner alone, and replaced whole and durably.

Data, metadata (with ledgers' passwords) and logs are for their owner. The rights do not depend on the umask. No
symbolic link is followed at the end of a path: who may write to a directory could have us write to any other file.
Files that somebody else has put into a directory are read by `open_found`.

`replaced` puts a whole new file in the place of one. It is for files that we write rarely and somewhere outside a
bookie's directories; those have `fastbk.native.disk`, which can be told to fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
OTHERS = stat.S_IRWXO
READ_BYTES_MAX = 1 << 20


def opener(path: str, flags: int) -> int:
    """Open a file, for `open(..., opener=opener)`. Raises OSError, for a symbolic link too."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)


def open_found(path: str | os.PathLike[str]) -> int:
    """Open a file that lies in a directory of others, for reading. Raises OSError, which says what it is instead.

    A pipe would be waited for without end, a device may do something when it is opened, and a link may lead anywhere
    (INV-D4).
    """
    name = os.fspath(path)
    _check_is_file(os.lstat(name).st_mode, name)
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_is_file(os.fstat(file).st_mode, name)  # somebody may have changed it meanwhile
        os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


def read_found(path: str | os.PathLike[str], bytes_max: int) -> bytes:
    """Return the content of such a file, `bytes_max` at most. Raises OSError as `open_found`."""
    with open(open_found(path), "rb") as file:
        return file.read(bytes_max)


def _check_is_file(mode: int, name: str) -> None:
    if stat.S_ISLNK(mode):
        raise OSError(
            errno.ELOOP,
            "is a symbolic link, which is not followed: put the file itself there",
            name,
        )
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory", name)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EMEDIUMTYPE, "is a device, a pipe or a socket, and no file", name)


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
    return _read(
        path, OTHERS, f"others can read {path}. If it is the right file, run `chmod o= {path}`"
    )


def read_public(path: str) -> bytes:
    """Return the content of a file that others must not be able to change. Raises ConfigError."""
    return _read(
        path,
        stat.S_IWOTH,
        f"others can change {path}. If it is the right file, run `chmod o-w {path}`",
    )


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
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
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
