"""What all typed faces share: statuses into exceptions, C objects and their end, C structs as keyword arguments.

A status is >= 0 (a count, or nothing to say), -1..-4095 (-errno), or an FBK_E_* number of `boundary/status.h`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastbk.errors import Error, ProtocolError, StorageError
from fastbk.native._client import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    from fastbk.native.cdata import CData

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


def create(make: Callable[[CData], CData], what: str, path: str | None = None) -> CData:
    """Return the C object that `make` returns, given where to put its error status; raise that error for NULL."""
    error = ffi.new("int32_t *")
    made = make(error)
    if made == ffi.NULL:
        raise error_of(error[0], what, path)
    return made


def ints_of(raw: CData, kind: type[DataclassInstance], *others: str) -> dict[str, int]:
    """Return the fields of the dataclass `kind`, but `others`, as the C struct `raw` has them."""
    return {
        name: int(getattr(raw, name)) for name in kind.__dataclass_fields__ if name not in others
    }


def fill_struct(raw: CData, options: DataclassInstance, *others: str) -> None:
    """Put the fields of a dataclass, but `others`, into the C struct `raw`."""
    for name in type(options).__dataclass_fields__:
        if name not in others:
            setattr(raw, name, getattr(options, name))


class NativeObject:
    """A C object with an owner in Python, who ends it once."""

    _gone = "this object has ended"

    def __init__(self, handle: CData) -> None:
        self._handle: CData | None = handle

    @property
    def handle(self) -> CData:
        """The pointer, for sibling modules in `fastbk.native` only. Raises ValueError when the object has ended."""
        if self._handle is None:
            raise ValueError(self._gone)
        return self._handle

    def _end(self, free: Callable[[CData], object]) -> None:
        """Free the object; a second time does nothing."""
        if self._handle is not None:
            free(self._handle)
            self._handle = None
