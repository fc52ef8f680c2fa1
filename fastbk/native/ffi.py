"""Statuses of native functions into exceptions: the only place where that is done.

A status is >= 0 (a count, or nothing to say), -1..-4095 (-errno), or an FBK_E_* number of `boundary/status.h`.
"""

from __future__ import annotations

import os

from fastbk.errors import Error, ProtocolError, StorageError
from fastbk.native._client import lib

ERRNO_MAX = 4095


class CorruptDataError(StorageError):
    """Bytes on a disk or in shared memory fail their checksum or make no sense."""


class RewrittenError(CorruptDataError):
    """A record in shared memory is not the one that was judged (INV-R4): its worker is not to be trusted."""


class FormatTooNewError(StorageError):
    """A file was written by a newer fastbk than this one; nothing of it was used."""


class PoisonedError(StorageError):
    """A write or sync failed earlier: nothing more may be acknowledged from this file (INV-J2)."""


class LayoutError(StorageError):
    """A shared-memory segment is not one of this build's, or its header makes no sense."""


class NativeFullError(Error):
    """A bounded native structure has no room. Nothing changed; try again when some of its work is done."""

    default_retryable = True


class NativeStoppedError(Error):
    """The native side was told to stop."""


STATUS_ERRORS: dict[int, tuple[type[Error], str]] = {
    lib.FBK_E_CORRUPT: (CorruptDataError, "damaged data"),
    lib.FBK_E_TOO_NEW: (FormatTooNewError, "written by a newer version of fastbk"),
    lib.FBK_E_FULL: (NativeFullError, "no room"),
    lib.FBK_E_POISONED: (PoisonedError, "an earlier write or sync failed"),
    lib.FBK_E_STOPPED: (NativeStoppedError, "stopped"),
    lib.FBK_E_PROTOCOL: (ProtocolError, "the peer broke the protocol"),
    lib.FBK_E_REWRITTEN: (
        RewrittenError,
        "a worker rewrote a record after the journal had judged it: it is damaged or compromised;"
        " nothing of that batch was taken in, and the journal has what was judged",
    ),
    lib.FBK_E_LAYOUT: (LayoutError, "not a segment of this build"),
}


def error_of(status: int, what: str, path: str | None = None) -> Exception:
    """Return the exception for a negative `status`; `what` names the call, `path` the file if there is one."""
    if -ERRNO_MAX <= status < 0:
        return OSError(-status, f"{os.strerror(-status)} ({what})", path)
    kind, text = STATUS_ERRORS.get(status, (Error, f"unknown native status {status}"))
    about = f" {path}" if path else ""
    return kind(f"{what}{about}: {text}")


def check(status: int, what: str, path: str | None = None) -> int:
    """Return `status` if it is not an error; raise OSError or one of this module's errors if it is."""
    if status < 0:
        raise error_of(status, what, path)
    return status
