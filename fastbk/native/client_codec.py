"""Typed face of the client's codec (`client/client.c`): encodes requests, adds among them, and parses answers; for
Apache's bookies it translates both.

One call turns everything that a socket gave into a few events. All buffers are plain Python ones; nothing here does
I/O. State have only `AnswerBuffer`, which owns a receive buffer, and what remembers requests of Apache's protocol.

Decision 80.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fastbk.errors import ConfigError, ProtocolError
from fastbk.model.entry import DIGEST_BYTES, HEADER_BYTES, DigestType, mac_key, master_key
from fastbk.native._client import ffi, lib
from fastbk.native.ffi import CData, check

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
OPEN_PRODUCER_REPLY = 8
PRODUCE_REPLY = 9

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

    _call = staticmethod(lib.fbk_client_parse)
    _event_words = _WORDS
    _complaint = "the bookie sent something that is no valid answer"

    def __init__(self, size_bytes: int = 256 * 1024) -> None:
        self.frame_size_bytes_max = FRAME_SIZE_BYTES_MAX
        self._base_size = size_bytes
        self._start = 0
        self._end = 0
        self._origin = 0
        self._is_given = False
        self._events = array("Q", bytes(8 * self._event_words * _EVENTS_A_CALL))
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
        count = self._call(
            self._bytes_c + start,
            end - start,
            self.frame_size_bytes_max,
            self._events_c,
            _EVENTS_A_CALL,
            self._consumed,
            self._wanted,
        )
        if count < 0:
            raise ProtocolError(self._complaint)
        if count:
            self._origin = start
            self._start = start + self._counts[0]
            return self._events[: count * self._event_words].tolist()
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
    offset = lib.FBK_CLIENT_CREATION_MARK_AT
    return frame[:offset] + creation_mark.to_bytes(4, "little") + frame[offset + 4 :]


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


def put_produce(
    request_id: int,
    producer: int,
    follows: int,
    first_number: int,
    record_count: int,
    records: bytes | bytearray | memoryview,
    numbers: array[int] | None = None,
) -> bytearray:
    """Return a Produce; without `numbers` ("q") they are `first_number` and the following ones.

    `records`: as in the body of an entry of a stream. Raises ConfigError when it would be a gibibyte or more.
    """
    if numbers is not None and len(numbers) != record_count:
        raise ValueError(f"{record_count} records have {len(numbers)} numbers")
    count = 0 if numbers is None else record_count
    frame = bytearray(lib.fbk_client_produce_size(count, len(records)))
    if not frame:
        raise ConfigError(f"{record_count} records of {len(records)} bytes cannot be sent at once")
    lib.fbk_client_put_produce(
        ffi.from_buffer("uint8_t[]", frame),
        request_id,
        producer,
        follows,
        first_number,
        record_count,
        ffi.NULL if numbers is None else ffi.from_buffer("int64_t[]", numbers),
        ffi.from_buffer("uint8_t[]", records),
        len(records),
    )
    return frame


def _taken(out: CData, size_bytes: int) -> bytes:
    return bytes(ffi.buffer(out, size_bytes))


# --- entries of one ledger ---------------------------------------------------------------------------------------
#
# Typed face of the client's codec (`client/client.c`) for one ledger: encodes its adds, checks its entries.
#
# One call encodes a batch of adds. All buffers are plain Python ones; nothing here does I/O or keeps state.


_HEADER = struct.Struct(">qqqq")
_ADD_OVERHEAD = {kind: int(lib.fbk_client_adds_size(kind, 0, 1)) for kind in DigestType}


class LedgerCodec:
    """Encodes and checks entries of one ledger. Safe to use from any thread."""

    def __init__(
        self,
        ledger_id: int,
        digest_type: DigestType,
        password: bytes = b"",
        flags: int = 0,
        creation_mark: int = 0,
    ) -> None:
        """`creation_mark`: see `fastbk.model.ids`."""
        self.ledger_id = ledger_id
        self.digest_type = digest_type
        self.master_key = master_key(password)
        self.add_overhead_bytes = _ADD_OVERHEAD[digest_type]
        self.data_offset = HEADER_BYTES + DIGEST_BYTES[digest_type]
        self._mac = (
            hmac.new(mac_key(password), digestmod=hashlib.sha1)
            if digest_type is DigestType.HMAC
            else None
        )
        self._ledger = ffi.new(
            "struct fbk_client_ledger *",
            {
                "ledger_id": ledger_id,
                "digest_type": int(digest_type),
                "flags": flags,
                "master_key": self.master_key,
                "creation_mark": creation_mark,
            },
        )

    def encode_adds(
        self,
        first_request_id: int,
        first_entry_id: int,
        lac: int,
        length: int,
        datas: Sequence[bytes],
    ) -> tuple[bytearray, array[int]]:
        """Return the frames of consecutive adds, and the sizes of the data.

        `lac` goes into each entry; `length` is the ledger's length before the first. Raises ConfigError when the
        frames would be 2 GiB or more.
        """
        count = len(datas)
        data = datas[0] if count == 1 else b"".join(datas)
        sizes = array("I", map(len, datas))
        size_bytes = len(data) + count * self.add_overhead_bytes
        frames = bytearray(size_bytes)
        digests = ffi.NULL
        if self._mac is not None:
            digests = ffi.from_buffer("uint8_t[]", self._hmacs(first_entry_id, lac, length, datas))
        written = lib.fbk_client_encode_adds(
            self._ledger,
            first_request_id,
            first_entry_id,
            lac,
            length,
            data,
            ffi.from_buffer("uint32_t[]", sizes),
            count,
            digests,
            ffi.from_buffer("uint8_t[]", frames),
            size_bytes,
        )
        if written != size_bytes:
            raise ConfigError(f"{count} entries of {len(data)} bytes cannot be encoded at once")
        return frames, sizes

    def encode_add_batch(
        self,
        request_id: int,
        first_entry_id: int,
        lacs: Sequence[int],
        lengths: Sequence[int],
        datas: Sequence[bytes | memoryview],
    ) -> bytearray:
        """Return the frame of one request that adds consecutive entries: all or none of them are taken.

        `lacs` and `lengths` (of the ledger, up to and with it) go into each entry. Raises ConfigError when the frame
        would be 2 GiB or more.
        """
        data, sizes = b"".join(datas), array("I", map(len, datas))
        size_bytes = lib.fbk_client_add_batch_size(int(self.digest_type), len(data), len(sizes))
        frame = bytearray(size_bytes)
        digests = ffi.NULL
        if self._mac is not None:
            digests = ffi.from_buffer(
                "uint8_t[]", self._original_hmacs(first_entry_id, lacs, lengths, datas)
            )
        written = lib.fbk_client_encode_add_batch(
            self._ledger,
            request_id,
            first_entry_id,
            ffi.from_buffer("int64_t[]", array("q", lacs)),
            ffi.from_buffer("int64_t[]", array("q", lengths)),
            data,
            ffi.from_buffer("uint32_t[]", sizes),
            len(sizes),
            digests,
            ffi.from_buffer("uint8_t[]", frame),
            size_bytes,
        )
        if written != size_bytes or not size_bytes:
            raise ConfigError(
                f"{len(sizes)} entries of {len(data)} bytes cannot be encoded at once"
            )
        return frame

    def _original_hmacs(
        self,
        entry_id: int,
        lacs: Sequence[int],
        lengths: Sequence[int],
        datas: Sequence[bytes | memoryview],
    ) -> bytes:
        rows = zip(lacs, lengths, datas, strict=True)
        return b"".join(
            self._hmac(_HEADER.pack(self.ledger_id, entry_id + offset, lac, length), data)
            for offset, (lac, length, data) in enumerate(rows)
        )

    def _hmac(self, header: bytes | memoryview, data: bytes | memoryview) -> bytes:
        assert self._mac is not None
        mac = self._mac.copy()
        mac.update(header)
        mac.update(data)
        return mac.digest()

    def _hmacs(self, entry_id: int, lac: int, length: int, datas: Sequence[bytes]) -> bytes:
        digests = []
        for offset, data in enumerate(datas):
            length += len(data)
            header = _HEADER.pack(self.ledger_id, entry_id + offset, lac, length)
            digests.append(self._hmac(header, data))
        return b"".join(digests)

    def table(self, entries: bytes | memoryview, entry_sizes: bytes) -> array[int]:
        """Return `ENTRY_WORDS` int64 for each entry of `entries`, up to the first that is not whole.

        `entry_sizes`: a little-endian u32 for each. Ids ascend and the ledger is this one; anything else ends it. No
        object is made for an entry, but where the digest is HMAC.
        """
        count = len(entry_sizes) // 4
        found = array("q", bytes(8 * ENTRY_WORDS * count))
        good = count and lib.fbk_client_check_entries(
            int(self.digest_type),
            self.ledger_id,
            ffi.from_buffer("uint8_t[]", entries),
            len(entries),
            entry_sizes,
            count,
            ffi.from_buffer("int64_t[]", found),
        )
        if self._mac is not None:
            good = self._whole_macs(entries, found, max(0, good))
        return found if good == count else found[: ENTRY_WORDS * max(0, good)]

    def whole_entries(
        self, entries: bytes | memoryview, entry_sizes: bytes
    ) -> tuple[list[int], list[int], list[int], list[memoryview]]:
        """Return ids, LACs, lengths of the ledger and data of the entries in `entries`, as `table` finds them.

        Columns: rows of any kind are made of them without a loop in Python.
        """
        view = memoryview(entries)
        words = self.table(entries, entry_sizes).tolist()
        starts = words[WORD_AT::ENTRY_WORDS]
        sizes = words[WORD_BYTES::ENTRY_WORDS]
        datas = [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        return words[0::ENTRY_WORDS], words[1::ENTRY_WORDS], words[2::ENTRY_WORDS], datas

    def _whole_macs(self, entries: bytes | memoryview, found: array[int], count: int) -> int:
        """Return how many of `count` entries from the start have the right HMAC."""
        view = memoryview(entries)
        for number in range(count):
            start, size = found[ENTRY_WORDS * number + WORD_AT : ENTRY_WORDS * (number + 1)]
            begin = start - self.data_offset
            digest = view[begin + HEADER_BYTES : start]
            if self._hmac(view[begin : begin + HEADER_BYTES], view[start : start + size]) != digest:
                return number
        return count

    def check_entries(
        self, entries: bytes, entry_sizes: bytes
    ) -> list[tuple[int, int, memoryview]]:
        """Return (entry id, LAC, data) of what `whole_entries` finds."""
        ids, lacs, _, datas = self.whole_entries(entries, entry_sizes)
        return list(zip(ids, lacs, datas, strict=True))

    def check_entry(self, entry: bytes) -> tuple[int, int, memoryview] | None:
        """Return (entry id, LAC, data) of one entry, None when it is not whole."""
        entries = self.check_entries(entry, len(entry).to_bytes(4, "little"))
        return entries[0] if entries else None


# --- entries as columns ------------------------------------------------------------------------------------------
#
# Typed face of `client/entry_columns.c`: entries that were read into columns, as Apache Arrow has them in memory.
#
# One call for each table of entries, without the interpreter lock, however many entries it holds.


ENTRY_WORDS: int = lib.FBK_CLIENT_ENTRY_WORDS
WORD_ID, WORD_LAC, WORD_LENGTH, WORD_AT, WORD_BYTES = range(ENTRY_WORDS)


class CheckedEntries(NamedTuple):
    """Entries of one answer: its bytes, and `ENTRY_WORDS` int64 for each, as `LedgerCodec.table` gives them."""

    data: bytes | memoryview
    words: array[int] | memoryview


class EntrySums(NamedTuple):
    """What entries have together."""

    lac_max: int
    data_bytes: int


def entry_sums(words: array[int] | memoryview) -> EntrySums:
    """Return the highest LAC and the bytes of data of a table's entries, at least one."""
    sums = ffi.new("struct fbk_entry_sums *")
    lib.fbk_client_entry_sums(ffi.from_buffer("int64_t[]", words), len(words) // ENTRY_WORDS, sums)
    return EntrySums(sums.lac_max, sums.data_bytes)


def fill_entry_columns(
    tables: Iterable[CheckedEntries],
    rows: int,
    *,
    ids: object = None,
    lengths: object = None,
    offsets: object = None,
    values: object = None,
) -> None:
    """Write entries into writable memory: ids and lengths int64, offsets int32 (one more than `rows`), values bytes.

    What is None is not written. Raises NativeFullError where the entries do not fit, ValueError for buffers that are
    too small.
    """
    columns = ffi.new("struct fbk_entry_columns *", {"rows_max": rows})
    kept: list[object] = []
    wanted = (("ids", ids, "int64_t[]", rows), ("lengths", lengths, "int64_t[]", rows))
    for name, buffer, kind, items in (*wanted, ("offsets", offsets, "int32_t[]", rows + 1)):
        if buffer is not None:
            kept.append(_memory(columns, name, buffer, kind, items))
    if values is not None:
        columns.values_room = _room(_memory(columns, "values", values, "uint8_t[]", 0), kept)
    for table in tables:
        words = ffi.from_buffer("int64_t[]", table.words)
        data = ffi.from_buffer("uint8_t[]", table.data)
        count = len(words) // ENTRY_WORDS
        status = lib.fbk_client_entry_columns(columns, data, len(data), words, count)
        check(status, "columns of entries")
    kept.clear()


def _memory(columns: Any, name: str, buffer: object, kind: str, items: int) -> Any:  # noqa: ANN401 -- cffi's
    memory = ffi.from_buffer(kind, buffer, require_writable=True)
    if len(memory) < items:
        raise ValueError(f"{name} has room for {len(memory)} items: {items} are needed")
    setattr(columns, name, memory)
    return memory


def _room(memory: Any, kept: list[object]) -> int:  # noqa: ANN401 -- cffi's
    kept.append(memory)
    return len(memory)


# --- frames of Apache's bookies ----------------------------------------------------------------------------------
#
# Typed face of a translation (`client/apache_translation.c`): our client's frames for Apache's bookies, and back.
#
# One for each connection. What it is given may be used again at once; what it returns are copies. No I/O.


# Apache's own default of the largest frame, in both directions (nettyMaxFrameSizeBytes).
APACHE_FRAME_SIZE_BYTES_MAX = 5 * 1024 * 1024
# What an answer of ours with several entries is longer than those are: its head, and a size for each.
ANSWER_OVERHEAD_BYTES = 64 * 1024


class FrameTranslation:
    """Translates one connection, in version 2 or 3 of Apache's protocol.

    Requests go through `send`, what the bookie sends through `receive`; after either, `output` is what is to be sent to
    the bookie and `answers` what the client is told, as frames of ours. Both raise ProtocolError when the connection is
    of no use any more.
    """

    def __init__(
        self, version: int, frame_size_bytes_max: int, *, takes_batches: bool = True
    ) -> None:
        self.version = version
        self.frame_size_bytes_max = frame_size_bytes_max
        translation = lib.fbk_apache_translation_new(version, frame_size_bytes_max, takes_batches)
        if translation == ffi.NULL:
            raise MemoryError
        self._translation = ffi.gc(translation, lib.fbk_apache_translation_free)
        self._place = ffi.new("const uint8_t **")

    def send(self, frames: bytes | bytearray | memoryview) -> None:
        """Take whole frames of ours."""
        size = len(frames)
        if (
            lib.fbk_apache_translation_send(
                self._translation, ffi.from_buffer("uint8_t[]", frames), size
            )
            != 0
        ):
            raise ProtocolError("a request could not be put into Apache's protocol")

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take what the bookie sent, cut anywhere."""
        if (
            lib.fbk_apache_translation_receive(
                self._translation, ffi.from_buffer("uint8_t[]", data), len(data)
            )
            != 0
        ):
            raise ProtocolError("the bookie sent something that is no answer in Apache's protocol")

    def forget(self, request_id: int) -> None:
        """Drop the answer to a request that nobody waits for any more."""
        lib.fbk_apache_translation_forget(self._translation, request_id)

    def output(self) -> bytes:
        """Return what is to be sent to the bookie, once."""
        size = lib.fbk_apache_translation_output(self._translation, self._place)
        return bytes(ffi.buffer(self._place[0], size)) if size else b""

    def answers(self) -> bytes:
        """Return what the client is told, once."""
        size = lib.fbk_apache_translation_answers(self._translation, self._place)
        return bytes(ffi.buffer(self._place[0], size)) if size else b""

    @property
    def dropped(self) -> int:
        """How many answers nobody waited for."""
        return int(lib.fbk_apache_translation_dropped(self._translation))

    @property
    def has_unanswered_batches(self) -> bool:
        """Whether version 2 was asked for several entries at once, and never answered that on this connection."""
        return int(lib.fbk_apache_translation_batches(self._translation)) == 1

    @property
    def has_answered_batches(self) -> bool:
        """Whether version 2 has answered a question for several entries."""
        return int(lib.fbk_apache_translation_batches(self._translation)) == 2


def v2_takes(frame: bytes | bytearray) -> bool:
    """Return whether a frame of ours is a request that version 2 is asked: adds of a writer, plain reads."""
    return bool(lib.fbk_apache_v2_takes(ffi.from_buffer("uint8_t[]", frame), len(frame)))


# --- received memory ---------------------------------------------------------------------------------------------
#
# Memory that large answers are received into: it comes uncleared, and is used again once nobody looks at it.
#
# Fresh memory of a megabyte costs a page fault for every 4 KiB of it, and a pass that clears it, before the socket's
# bytes overwrite it all: together a sixth of what a reader of batches takes of the processor. What is given out here
# comes back by itself, with the last view of it, whoever held that and in whichever thread.


SIZE_BYTES_MIN = 256 * 1024
SIZE_BYTES_MAX = 8 * 1024 * 1024
IDLE_BYTES_MAX = 16 * 1024 * 1024
"""What is kept for the next answers, of all sizes together; about, since several threads may give back at once."""

_fresh = ffi.new_allocator(should_clear_after_alloc=False)
# By size, the one that came back last on top: a processor's cache may still have it. Lists alone,
# and no lock: what is given back in the midst of a collection of garbage, in a thread that just
# takes, would wait for itself.
_idle: dict[int, list[CData]] = {}


def _take(size_bytes: int) -> CData:
    try:
        return _idle[size_bytes].pop()
    except (KeyError, IndexError):
        taken: CData = _fresh("uint8_t[]", size_bytes)
        return taken


def _give_back(memory: CData) -> None:
    if idle_bytes() + len(memory) <= IDLE_BYTES_MAX:
        _idle.setdefault(len(memory), []).append(memory)


_shared = ffi.new_allocator(_take, _give_back, should_clear_after_alloc=False)


def idle_bytes() -> int:
    """Return how much is kept for later."""
    return sum(size * len(kept) for size, kept in list(_idle.items()))


def memory_of(size_bytes: int) -> tuple[CData, memoryview]:
    """Return memory of that size for C and for Python; its bytes are anything. Both keep it, and so does any view."""
    if SIZE_BYTES_MIN <= size_bytes <= SIZE_BYTES_MAX:
        # Answers differ a little: powers of two serve them all. Pages that nobody touches are not there.
        memory = _shared("uint8_t[]", 1 << (size_bytes - 1).bit_length())
    else:
        memory = _fresh("uint8_t[]", size_bytes)
    return memory, memoryview(ffi.buffer(memory, size_bytes))
