"""What all typed faces share: statuses into exceptions, C objects and their end, C structs as keyword arguments.

A status is >= 0 (a count, or nothing to say), -1..-4095 (-errno), or an FBK_E_* number of `boundary/status.h`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fastbk.errors import Error, ProtocolError, StorageError
from fastbk.native._client import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec


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


def ints_of(raw: CData, kind: type[msgspec.Struct], *others: str) -> dict[str, int]:
    """Return the fields of the struct `kind`, but `others`, as the C struct `raw` has them."""
    return {name: int(getattr(raw, name)) for name in kind.__struct_fields__ if name not in others}


def fill_struct(
    raw: CData, options: msgspec.Struct, *by_hand: str, settings: Sequence[object] = ()
) -> None:
    """Put the fields of a struct into the C struct `raw`, and settings into the fields that are left.

    With `settings`, sections of a configuration file, C gets each setting under the setting's own name, and no field
    of C's is left out. `by_hand`: fields that the caller fills. Raises AttributeError: a field has no counterpart.
    """
    given = [name for name in type(options).__struct_fields__ if name not in by_hand]
    for name in given:
        setattr(raw, name, getattr(options, name))
    if settings:
        for name in {name for name, _ in ffi.typeof(raw).item.fields}.difference(given, by_hand):
            setattr(raw, name, _setting_of(settings, name))


def _setting_of(settings: Sequence[object], name: str) -> object:
    for section in settings:
        if hasattr(section, name):
            return getattr(section, name)
    raise AttributeError(f"C takes {name}, and no setting has that name")


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


# --- cffi's objects, for type checkers ---------------------------------------------------------------------------
#
# Names for cffi's objects, for type checkers: what the stubs of the extension modules are written in.
#
# The values of these types never leave `fastbk.native`; at run time they are cffi's own objects, which are no
# instances of these classes, so nothing here may be called or used with `isinstance`.


class CData(Protocol):
    """A C value, pointer, array or struct. What lies behind a field or an index is known only to the C side."""

    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: object) -> None: ...
    def __getitem__(self, index: int | slice) -> Any: ...
    def __setitem__(self, index: int | slice, value: object) -> None: ...
    def __add__(self, offset: int) -> CData: ...
    def __len__(self) -> int: ...
    def __int__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


# What cffi takes for a pointer parameter: for pointers to bytes and void, `bytes` too, without a copy.
Pointer: TypeAlias = CData
BytesPointer: TypeAlias = CData | bytes


class CBuffer(Protocol):
    """The memory behind a pointer, readable and writable in place; valid as long as the memory is."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __getitem__(self, index: slice) -> bytes: ...
    def __setitem__(self, index: slice, value: bytes | memoryview) -> None: ...
    def __len__(self) -> int: ...


class ForeignInterface(Protocol):
    """The part of cffi's `ffi` object that `fastbk.native` uses."""

    NULL: Any
    errno: int

    def new(self, cdecl: str, init: object = None) -> Any: ...
    def cast(self, cdecl: str, value: object) -> Any: ...
    def from_buffer(
        self, cdecl: str, python_buffer: object, require_writable: bool = False
    ) -> Any: ...
    def buffer(self, cdata: CData, size: int = -1) -> Any: ...
    def string(self, cdata: CData, maxlen: int = -1) -> Any: ...
    def unpack(self, cdata: CData, length: int) -> Any: ...
    def memmove(self, dest: object, src: object, n: int) -> None: ...
    def addressof(self, cdata: CData, *fields_or_indexes: str | int) -> Any: ...
    def typeof(self, cdecl_or_cdata: str | CData) -> Any: ...
    def list_types(self) -> Any: ...
    def sizeof(self, cdecl_or_cdata: str | CData) -> int: ...
    def offsetof(self, cdecl: str, *fields_or_indexes: str | int) -> int: ...
    def gc(self, cdata: CData, destructor: object, size: int = 0) -> Any: ...
    def release(self, cdata: CData) -> None: ...
    def new_allocator(
        self,
        alloc: object = None,
        free: object = None,
        should_clear_after_alloc: bool = True,
    ) -> Any: ...
