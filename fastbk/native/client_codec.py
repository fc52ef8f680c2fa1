"""Typed face of the client's codec (`client/client.c`): encodes requests other than adds, parses answers.

One call turns everything that a socket gave into a few events. All buffers are plain Python ones; nothing here does
I/O or keeps state but `AnswerBuffer`, which owns a receive buffer.
"""

from __future__ import annotations

from array import array

from fastbk.errors import ProtocolError
from fastbk.native._client import ffi, lib
from fastbk.native.cdata import CData
from fastbk.native.received_memory import memory_of

# A connection begins with these: 0xFB, our name, protocol family 1.
MAGIC = b"\xfbfastbk\x01"
# What the bookie's hello may raise or lower; the longest frame that is accepted before it came.
FRAME_SIZE_BYTES_MAX = 5 * 1024 * 1024 + 4096

# Kinds of answers: RequestBody's members in ResponseBody's order (protocol.fbs).
STATUS_ONLY = 0
HELLO_REPLY = 1
READ_REPLY = 2
READ_BATCH_REPLY = 3
READ_LAC_REPLY = 4
LIST_ENTRIES_REPLY = 5
INFO_REPLY = 6
ERROR_REPLY = 7

# Of adds; of reads; of questions for a LAC.
FLAG_RECOVERY = 1
FLAG_DEFERRED_SYNC = 2
FLAG_FENCE = 1
FLAG_HIGH_PRIORITY = 2
FLAG_PIGGYBACK = 1

_WORDS: int = lib.FBK_CLIENT_EVENT_WORDS
_REQUEST_BYTES: int = lib.FBK_CLIENT_REQUEST_BYTES_MAX
_EVENTS_A_CALL = 512
# Less than this is copied rather than giving a buffer away for it.
_TAKEN_BYTES_MIN = 64 * 1024


class AnswerBuffer:
    """Bytes as they come from one connection, and the answers in them.

    Use: `free()` for where to receive into, `received(n)`, then `parse()` until it returns nothing. What `content`
    returns are copies, and the buffer is used again; what `taken` returns may be the buffer itself, which then is the
    caller's, and another one takes its place.
    """

    def __init__(self, size_bytes: int = 256 * 1024) -> None:
        self.frame_size_bytes_max = FRAME_SIZE_BYTES_MAX
        self._base_size = size_bytes
        self._start = 0
        self._end = 0
        self._origin = 0
        self._is_given = False
        self._events = array("Q", bytes(8 * _WORDS * _EVENTS_A_CALL))
        self._events_c = ffi.from_buffer("uint64_t[]", self._events)
        self._counts = ffi.new("uint32_t[2]")
        self._consumed = self._counts
        self._wanted = self._counts + 1
        self._view = memoryview(bytearray())
        self._allocate(size_bytes)

    def _allocate(self, size_bytes: int) -> None:
        memory, view = memory_of(size_bytes)
        if self._end > self._start:
            view[: self._end - self._start] = self._view[self._start : self._end]
        self._view, self._bytes_c = view, memory
        self._end -= self._start
        self._start = 0
        self._is_given = False

    def free(self) -> memoryview:
        """Return the part of the buffer to receive into; never empty."""
        return self._view[self._end :]

    def received(self, size_bytes: int) -> None:
        """Take note that so many bytes were received into `free()`."""
        self._end += size_bytes

    def feed(self, data: bytes) -> None:
        """Take bytes that were received elsewhere."""
        while len(data) > len(self._view) - self._end:
            self._allocate(2 * len(self._view))
        self._view[self._end : self._end + len(data)] = data
        self._end += len(data)

    def parse(self) -> list[int]:
        """Return the next events, `EVENT_WORDS` numbers each (see boundary/client.h); empty when there are no more.

        Raises ProtocolError for anything that is no valid answer; the connection is then of no use.
        """
        if self._is_given:
            # As large as it was, since more of the same is to be expected: this is a reader that goes on.
            self._allocate(len(self._view))
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
            if len(self._view) > self._base_size and end:
                self._allocate(self._base_size)
            return []
        count = lib.fbk_client_parse(
            self._bytes_c + start,
            end - start,
            self.frame_size_bytes_max,
            self._events_c,
            _EVENTS_A_CALL,
            self._consumed,
            self._wanted,
        )
        if count < 0:
            raise ProtocolError("the bookie sent something that is no valid answer")
        if count:
            self._origin = start
            self._start = start + self._counts[0]
            return self._events[: count * _WORDS].tolist()
        self._make_room(self._counts[1])
        return []

    def _make_room(self, wanted: int) -> None:
        if wanted > len(self._view):
            self._allocate(wanted)
        elif self._start:
            left = self._end - self._start
            self._view[:left] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, left
        elif self._end == len(self._view):
            self._allocate(2 * len(self._view))

    def content(self, place: int, unit_bytes: int = 1) -> bytes:
        """Return the bytes that a word of an event of the last `parse` points to; b"" where there are none."""
        start = self._origin + (place >> 32)
        return bytes(self._view[start : start + (place & 0xFFFFFFFF) * unit_bytes])

    def taken(self, place: int) -> bytes | memoryview:
        """Like `content`, without a copy where the bytes are half of the buffer or more. The view is read-only."""
        start, size = self._origin + (place >> 32), place & 0xFFFFFFFF
        if size < _TAKEN_BYTES_MIN or 2 * size < len(self._view):
            return self.content(place)
        self._is_given = True
        return self._view[start : start + size].toreadonly()


EVENT_WORDS = _WORDS


def signed(word: int) -> int:
    """Return a word of an event as the signed number that it stands for."""
    return word - (1 << 64) if word >> 63 else word


def with_creation(frame: bytes, creation_mark: int) -> bytes:
    """Return the frame of a request that names the creation of its ledger; 0: the same frame."""
    if not creation_mark:
        return frame
    at = lib.FBK_CLIENT_CREATION_MARK_AT
    return frame[:at] + creation_mark.to_bytes(4, "little") + frame[at + 4 :]


def put_hello(request_id: int, client_name: str) -> bytes:
    """Return a Hello; the name is cut at 128 bytes."""
    name = client_name.encode()[:128]
    out = ffi.new("uint8_t[]", _REQUEST_BYTES + len(name))
    return _taken(out, lib.fbk_client_put_hello(out, request_id, name, len(name)))


def put_read(
    request_id: int, ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b""
) -> bytes:
    """Return a Read; a fencing one needs the master key."""
    out = ffi.new("uint8_t[]", _REQUEST_BYTES)
    size = lib.fbk_client_put_read(out, request_id, ledger_id, entry_id, flags, key or ffi.NULL)
    return _taken(out, size)


def put_read_batch(
    request_id: int,
    ledger_id: int,
    first: int,
    last: int,
    entry_count_max: int,
    size_bytes_max: int,
) -> bytes:
    """Return a ReadBatch of [first, last]."""
    out = ffi.new("uint8_t[]", _REQUEST_BYTES)
    size = lib.fbk_client_put_read_batch(
        out, request_id, ledger_id, first, last, entry_count_max, size_bytes_max
    )
    return _taken(out, size)


def put_read_lac(
    request_id: int, ledger_id: int, previous_lac: int, timeout_ms: int = 0, flags: int = 0
) -> bytes:
    """Return a ReadLac; timeout_ms > 0 makes it a long poll."""
    out = ffi.new("uint8_t[]", _REQUEST_BYTES)
    size = lib.fbk_client_put_read_lac(out, request_id, ledger_id, previous_lac, timeout_ms, flags)
    return _taken(out, size)


def put_write_lac(request_id: int, ledger_id: int, lac: int, key: bytes, body: bytes) -> bytes:
    """Return a WriteLac; `body` as `model.entry.make_lac_body` makes it."""
    out = ffi.new("uint8_t[]", _REQUEST_BYTES + len(body))
    size = lib.fbk_client_put_write_lac(out, request_id, ledger_id, lac, key, body, len(body))
    return _taken(out, size)


def put_force(request_id: int, ledger_id: int) -> bytes:
    """Return a Force."""
    out = ffi.new("uint8_t[]", _REQUEST_BYTES)
    return _taken(out, lib.fbk_client_put_force(out, request_id, ledger_id))


def put_list_entries(request_id: int, ledger_id: int, first: int, range_count_max: int) -> bytes:
    """Return a ListEntries."""
    out = ffi.new("uint8_t[]", _REQUEST_BYTES)
    return _taken(out, lib.fbk_client_put_list(out, request_id, ledger_id, first, range_count_max))


def put_info(request_id: int) -> bytes:
    """Return an Info."""
    out = ffi.new("uint8_t[]", _REQUEST_BYTES)
    return _taken(out, lib.fbk_client_put_info(out, request_id))


def put_ping(request_id: int) -> bytes:
    """Return a Ping."""
    out = ffi.new("uint8_t[]", _REQUEST_BYTES)
    return _taken(out, lib.fbk_client_put_ping(out, request_id))


def _taken(out: CData, size_bytes: int) -> bytes:
    return bytes(ffi.buffer(out, size_bytes))
