"""The cookie in each of a bookie's directories, at Apache's place and in Apache's bytes: `current/VERSION`.

It says the same as the node in metadata (`fastbk.model.cookie`). Beside `identity.json` it adds the cluster's instance
id, and lets Apache's tools, and people who know them, see whose directory this is. Where the two differ the bookie does
not start (INV-D1, `fastbk.storage.identity_check`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.model import cookie as model
from fastbk.model.cookie import Cookie, CookieError

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

__all__ = ["FOLDER", "NAME", "Cookie", "CookieError", "read_cookie", "write_cookie"]

FOLDER = "current"
NAME = f"{FOLDER}/VERSION"
SIZE_BYTES_MAX = 1 << 20
"""More is no cookie, whatever it is."""


def read_cookie(disk: Disk, directory: str) -> Cookie | None:
    """Return a directory's cookie, None when there is none. Raises CookieError, OSError."""
    path = f"{directory}/{NAME}"
    try:
        file = disk.open(path, read_only=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        raw = disk.read(file, min(disk.size(file), SIZE_BYTES_MAX))
    finally:
        disk.close(file)
    return model.decode(raw, path)


def write_cookie(disk: Disk, directory: str, cookie: Cookie) -> None:
    """Put a cookie into a directory, whole and durable. Raises OSError."""
    disk.make_directory(f"{directory}/{FOLDER}")
    disk.sync_directory(directory)
    disk.replace_file(f"{directory}/{NAME}", model.encode(cookie))
