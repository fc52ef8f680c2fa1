"""Golden frames, as stock generated code reads them. That our encoders still make exactly these is test_frame.c's."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from fastbk.wire.generated import (
    Add,
    AddBatch,
    Force,
    ListEntries,
    ListEntriesReply,
    Produce,
    ProduceReply,
    Read,
    ReadBatch,
    ReadBatchReply,
    ReadLac,
    ReadLacReply,
    ReadReply,
    Request,
    Response,
    WriteLac,
)
from fastbk.wire.messages import decode_cold_request
from tests.fixtures.hashes import DIGEST_CRC32C, check_digest, is_request, is_response

GOLDEN = Path(__file__).parents[2] / "golden" / "frames"
KEY = b"0123456789abcdefghi\0"


def entry(entry_id: int) -> bytes:
    raw = struct.pack(">qqqq", 5, entry_id, entry_id - 1, 123)
    # bookkeeper.md B3: Apache's own digest of the first of these.
    digest = {7: "8f06b47a", 8: None}[entry_id]
    return raw + bytes.fromhex(digest) + b"hello" if digest else raw


def table(name: str, kind: type[Any]) -> tuple[Any, Any]:
    frame = (GOLDEN / f"{name}.bin").read_bytes()
    is_answer = name.startswith("response")
    assert is_response(frame) if is_answer else is_request(frame)
    root: Any = (Response.Response if is_answer else Request.Request).GetRootAs(frame, 4)
    body = kind()
    body.Init(root.Body().Bytes, root.Body().Pos)
    return root, body


def vector(body: Any, name: str) -> bytes:
    return bytes(getattr(body, name)(i) for i in range(getattr(body, f"{name}Length")()))


def test_every_file_is_a_valid_frame() -> None:
    files = list(GOLDEN.glob("*.bin"))
    assert len(files) == 27
    for file in files:
        frame = file.read_bytes()
        assert (is_response if file.name.startswith("response") else is_request)(frame), file.name


def test_add() -> None:
    root, body = table("request_add", Add.Add)
    assert (root.RequestId(), body.LedgerId(), body.EntryId(), body.Flags()) == (2, 5, 7, 0)
    assert body.DigestType() == DIGEST_CRC32C
    assert bytes(body.MasterKey().Bytes()) == KEY
    assert vector(body, "Entry") == entry(7)
    assert check_digest(DIGEST_CRC32C, entry(7)) == 0


def test_add_batch() -> None:
    root, body = table("request_add_batch", AddBatch.AddBatch)
    assert (root.RequestId(), body.LedgerId(), body.FirstEntryId(), body.Flags()) == (3, 5, 7, 1)
    assert root.CreationMark() == 0xFEDCBA98
    assert [body.EntrySizes(i) for i in range(body.EntrySizesLength())] == [41, 41]
    entries = vector(body, "Entries")
    assert entries[:41] == entry(7)
    assert entries[41:73] == entry(8)
    assert check_digest(DIGEST_CRC32C, entries[41:]) == 0


def test_reads() -> None:
    root, body = table("request_read", Read.Read)
    assert (root.RequestId(), body.LedgerId(), body.EntryId(), body.Flags()) == (4, 5, 7, 0)
    assert body.MasterKey() is None
    root, body = table("request_fence", Read.Read)
    assert (root.RequestId(), body.EntryId(), body.Flags()) == (5, -1, 1)
    assert bytes(body.MasterKey().Bytes()) == KEY
    root, body = table("request_read_batch", ReadBatch.ReadBatch)
    assert (root.RequestId(), body.FirstEntryId(), body.LastEntryId()) == (6, 0, 99)
    assert (body.EntryCountMax(), body.SizeBytesMax()) == (100, 65536)


def test_the_rest_of_the_requests() -> None:
    root, body = table("request_read_lac", ReadLac.ReadLac)
    assert (root.RequestId(), body.PreviousLac(), body.TimeoutMs(), body.Flags()) == (7, 6, 1000, 1)
    root, body = table("request_write_lac", WriteLac.WriteLac)
    assert (root.RequestId(), body.LedgerId(), body.Lac()) == (8, 5, 6)
    assert vector(body, "Body") == struct.pack(">qq", 5, 6) + bytes.fromhex("4e206979")
    root, body = table("request_force", Force.Force)
    assert (root.RequestId(), body.LedgerId()) == (9, 5)
    root, body = table("request_list", ListEntries.ListEntries)
    assert (root.RequestId(), body.FirstEntryId(), body.RangeCountMax()) == (10, 0, 1000)
    hello = decode_cold_request((GOLDEN / "request_hello.bin").read_bytes())
    assert hello.hello is not None
    assert hello.hello.client_name == "golden"
    assert decode_cold_request((GOLDEN / "request_info.bin").read_bytes()).request_id == 11


@pytest.mark.parametrize(
    ("name", "status", "wait_us"), [("ok", 0, 0), ("fenced", 20, 0), ("ok_waited", 0, 2500)]
)
def test_a_status_is_the_whole_answer(name: str, status: int, wait_us: int) -> None:
    root = Response.Response.GetRootAs((GOLDEN / f"response_{name}.bin").read_bytes(), 4)
    assert (root.RequestId(), root.Status(), root.Body(), root.AddWaitUs()) == (
        2,
        status,
        None,
        wait_us,
    )


def test_answers_with_entries() -> None:
    root, body = table("response_read", ReadReply.ReadReply)
    assert (root.RequestId(), root.Status(), body.EntryId(), body.Lac()) == (4, 0, 7, 6)
    assert vector(body, "Entry") == entry(7)
    root, body = table("response_read_batch", ReadBatchReply.ReadBatchReply)
    assert (root.AddWaitUs(), body.Lac(), body.NextEntryId()) == (2500, 6, 9)
    assert [body.EntrySizes(i) for i in range(body.EntrySizesLength())] == [41, 41]
    assert vector(body, "Entries")[:41] == entry(7)


def test_answers_without_entries() -> None:
    _, body = table("response_read_lac", ReadLacReply.ReadLacReply)
    assert (body.Lac(), body.Fenced(), body.LastEntryId()) == (6, True, 7)
    assert vector(body, "LacBody") == b"body bytes"
    assert vector(body, "LastEntry") == entry(7)
    _, body = table("response_read_lac_empty", ReadLacReply.ReadLacReply)
    assert (body.Lac(), body.Fenced(), body.LastEntryId()) == (-1, False, -1)
    assert body.LacBodyIsNone()
    assert body.LastEntryIsNone()
    _, body = table("response_list", ListEntriesReply.ListEntriesReply)
    ranges = [(body.Ranges(i).First(), body.Ranges(i).Last()) for i in range(body.RangesLength())]
    assert (body.NextEntryId(), ranges) == (-1, [(0, 3), (7, 7)])


def test_what_producers_send_and_are_answered() -> None:
    root, body = table("request_produce", Produce.Produce)
    assert (root.RequestId(), body.Producer(), body.Follows(), body.FirstNumber()) == (13, 3, 5, 7)
    assert (body.RecordCount(), body.NumbersIsNone()) == (2, True)
    records = vector(body, "Records")
    assert records == b"\0\1\0\0a\1\2\0\0bc"
    root, body = table("request_produce_numbers", Produce.Produce)
    assert (root.RequestId(), body.Follows(), body.RecordCount()) == (14, -1, 2)
    assert [body.Numbers(i) for i in range(body.NumbersLength())] == [7, 9]
    assert vector(body, "Records") == records
    root, body = table("response_produce", ProduceReply.ProduceReply)
    assert (root.RequestId(), root.Status()) == (13, 0)
    assert (body.Segment(), body.Entry(), body.Slot()) == (2, 77, 4)
