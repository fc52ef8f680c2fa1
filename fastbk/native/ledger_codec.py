"""Typed face of the client's codec (`client/client.c`) for one ledger: encodes its adds, checks its entries.

One call encodes a batch of adds. All buffers are plain Python ones; nothing here does I/O or keeps state.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from array import array
from collections.abc import Sequence

from fastbk.errors import ConfigError
from fastbk.model.entry import DIGEST_BYTES, HEADER_BYTES, DigestType, mac_key, master_key
from fastbk.native._client import ffi, lib
from fastbk.native.entry_columns import ENTRY_WORDS, WORD_AT, WORD_BYTES

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
        """Return `entry_columns.ENTRY_WORDS` int64 for each entry of `entries`, up to the first that is not whole.

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
        found = self.check_entries(entry, len(entry).to_bytes(4, "little"))
        return found[0] if found else None
