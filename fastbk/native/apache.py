"""Typed face of the codec of Apache BookKeeper's protocols (`boundary/apache.h`), for cold operations, tools and tests.

The hot paths, a bookie's worker and a client's channel, call the same functions from C.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import msgspec

from fastbk.native._client import ffi, lib
from fastbk.native.ffi import CData

GOOD: int = lib.FBK_APACHE_GOOD
REFUSE: int = lib.FBK_APACHE_REFUSE
CLOSE: int = lib.FBK_APACHE_CLOSE

_ABSENT = -(1 << 63)


class Operation(IntEnum):
    """Operations by their numbers in version 3."""

    READ = lib.FBK_APACHE_READ
    ADD = lib.FBK_APACHE_ADD
    AUTH = lib.FBK_APACHE_AUTH
    WRITE_LAC = lib.FBK_APACHE_WRITE_LAC
    READ_LAC = lib.FBK_APACHE_READ_LAC
    INFO = lib.FBK_APACHE_INFO
    START_TLS = lib.FBK_APACHE_START_TLS
    FORCE = lib.FBK_APACHE_FORCE
    LIST = lib.FBK_APACHE_LIST
    READ_BATCH = lib.FBK_APACHE_READ_BATCH


class ApacheStatus(IntEnum):
    """Statuses by their numbers in version 3."""

    EOK = lib.FBK_APACHE_EOK
    ENOLEDGER = lib.FBK_APACHE_ENOLEDGER
    ENOENTRY = lib.FBK_APACHE_ENOENTRY
    EBADREQ = lib.FBK_APACHE_EBADREQ
    EIO = lib.FBK_APACHE_EIO
    EUA = lib.FBK_APACHE_EUA
    EBADVERSION = lib.FBK_APACHE_EBADVERSION
    EFENCED = lib.FBK_APACHE_EFENCED
    EREADONLY = lib.FBK_APACHE_EREADONLY
    ETOOMANYREQUESTS = lib.FBK_APACHE_ETOOMANYREQUESTS
    EUNKNOWNLEDGERSTATE = lib.FBK_APACHE_EUNKNOWNLEDGERSTATE


class RequestFlag(IntFlag):
    """What a request asks for beside its fields, and which optional numbers it has."""

    FENCE = lib.FBK_APACHE_FENCE
    PIGGYBACK = lib.FBK_APACHE_PIGGYBACK
    RECOVERY = lib.FBK_APACHE_RECOVERY
    HIGH_PRIORITY = lib.FBK_APACHE_HIGH_PRIORITY
    DEFERRED_SYNC = lib.FBK_APACHE_DEFERRED_SYNC
    HAS_PREVIOUS_LAC = lib.FBK_APACHE_HAS_PREVIOUS_LAC
    HAS_TIMEOUT = lib.FBK_APACHE_HAS_TIMEOUT


NO_FLAGS = RequestFlag(0)


class ApacheRequest(msgspec.Struct, frozen=True):
    """A request's fields; what it has not is 0 or None."""

    protocol: int
    version: int
    operation: int
    flags: RequestFlag = NO_FLAGS
    transaction_id: int = 0
    ledger_id: int = 0
    entry_id: int = 0
    echo_ledger_id: int = 0
    echo_entry_id: int = 0
    previous_lac: int = 0
    timeout_ms: int = 0
    count_max: int = 0
    size_bytes_max: int = 0
    info_wanted: int = 0
    master_key: bytes | None = None
    body: bytes | None = None
    plugin: bytes | None = None


class ApacheReply(msgspec.Struct, frozen=True):
    """A reply: what it repeats of its request, and what it says. What it has not is None."""

    protocol: int
    version: int
    operation: int
    status: int = ApacheStatus.EOK
    transaction_id: int = 0
    ledger_id: int = 0
    entry_id: int = 0
    entry: bytes | None = None
    entries: tuple[bytes, ...] = ()
    lac: int | None = None
    lac_time_ms: int | None = None
    lac_body: bytes | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    blob: bytes | None = None
    plugin: bytes | None = None


def _bytes(pointer: CData, size_bytes: int) -> bytes | None:
    return None if pointer == ffi.NULL else bytes(ffi.buffer(pointer, size_bytes))


def read_request(body: bytes) -> tuple[int, int, ApacheRequest]:
    """Return what a bookie makes of a frame's body: GOOD, REFUSE or CLOSE, the status to refuse with, the request."""
    request = ffi.new("struct fbk_apache_request *")
    status = ffi.new("uint32_t *")
    kept = ffi.new("uint8_t[]", body)
    verdict = int(lib.fbk_apache_read_request(kept, len(body), request, status))
    numbers = {
        name: int(getattr(request, name))
        for name in ApacheRequest.__struct_fields__
        if name not in ("flags", "master_key", "body", "plugin")
    }
    return (
        verdict,
        int(status[0]),
        ApacheRequest(
            flags=RequestFlag(request.flags),
            master_key=_bytes(request.master_key, lib.FBK_APACHE_MASTER_KEY_BYTES),
            body=_bytes(request.body, request.body_bytes),
            plugin=_bytes(request.plugin, request.plugin_bytes),
            **numbers,
        ),
    )


def _number(value: int | None) -> int:
    return _ABSENT if value is None else value


def put_reply(reply: ApacheReply) -> bytes:
    """Return the whole frame of a reply, with its length. Raises ValueError where the protocol has no such reply."""
    entry = b"".join(reply.entries) if reply.entries else reply.entry or b""
    sizes = b"".join(len(each).to_bytes(4, "little") for each in reply.entries)
    kept = {
        "entry": ffi.new("uint8_t[]", entry),
        "entry_sizes": ffi.new("uint8_t[]", sizes),
        **{
            name: ffi.NULL if value is None else ffi.new("uint8_t[]", value)
            for name, value in (
                ("lac_body", reply.lac_body),
                ("blob", reply.blob),
                ("plugin", reply.plugin),
            )
        },
    }
    made = ffi.new(
        "struct fbk_apache_reply *",
        {
            "echo": echo_of(reply),
            "status": reply.status,
            "entry_bytes": len(entry),
            "lac_body_bytes": len(reply.lac_body or b""),
            "entry_count": len(reply.entries),
            "lac": _number(reply.lac),
            "lac_time_ms": _number(reply.lac_time_ms),
            "total_bytes": _number(reply.total_bytes),
            "free_bytes": _number(reply.free_bytes),
            "blob_bytes": len(reply.blob or b""),
            "plugin_bytes": len(reply.plugin or b""),
            **kept,
        },
    )
    size_bytes = int(lib.fbk_apache_reply_size(made))
    if size_bytes == 0:
        raise ValueError(f"version {reply.protocol} has no reply to operation {reply.operation}")
    out = bytearray(size_bytes)
    written = int(lib.fbk_apache_put_reply(ffi.from_buffer("uint8_t[]", out), made))
    assert written == size_bytes
    return bytes(out)


def echo_of(reply: ApacheReply) -> dict[str, int]:
    """Return what a reply repeats of its request, as the fields of `struct fbk_apache_echo`."""
    return {
        "protocol": reply.protocol,
        "version": reply.version,
        "operation": reply.operation,
        "transaction_id": reply.transaction_id,
        "ledger_id": reply.ledger_id,
        "entry_id": reply.entry_id,
    }
