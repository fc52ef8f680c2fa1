"""The fixtures' own reader of replies reads what generated code writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flatbuffers
import pytest

from fastbk.wire.generated import (
    EntryRange,
    ListEntriesReply,
    ReadBatchReply,
    ReadLacReply,
    ReadReply,
    Response,
)
from fastbk.wire.generated.ResponseBody import ResponseBody
from tests.fixtures.index_answers import Answer, parse


def framed(builder: flatbuffers.Builder, body_type: int, body: int) -> bytes:
    Response.Start(builder)
    Response.AddRequestId(builder, 2**63 + 5)
    Response.AddStatus(builder, 0x1234)
    if body:
        Response.AddBodyType(builder, body_type)
        Response.AddBody(builder, body)
    builder.Finish(Response.End(builder))
    raw = bytes(builder.Output())
    return len(raw).to_bytes(4, "little") + raw


def read_reply(builder: flatbuffers.Builder) -> Any:
    entry = builder.CreateByteVector(b"the entry")
    ReadReply.Start(builder)
    ReadReply.AddEntryId(builder, -1)
    ReadReply.AddLac(builder, 2**62)
    ReadReply.AddEntry(builder, entry)
    return ReadReply.End(builder)


def read_batch_reply(builder: flatbuffers.Builder) -> Any:
    data = builder.CreateByteVector(b"one" + b"" + b"three")
    ReadBatchReply.StartEntrySizesVector(builder, 3)
    for size_bytes in (5, 0, 3):  # from the last one on
        builder.PrependUint32(size_bytes)
    sizes = builder.EndVector()
    ReadBatchReply.Start(builder)
    ReadBatchReply.AddLac(builder, 7)
    ReadBatchReply.AddNextEntryId(builder, 9)
    ReadBatchReply.AddEntrySizes(builder, sizes)
    ReadBatchReply.AddEntries(builder, data)
    return ReadBatchReply.End(builder)


def read_lac_reply(builder: flatbuffers.Builder) -> Any:
    body, entry = builder.CreateByteVector(b"explicit"), builder.CreateByteVector(b"last")
    ReadLacReply.Start(builder)
    ReadLacReply.AddLac(builder, 41)
    ReadLacReply.AddFenced(builder, True)
    ReadLacReply.AddLacBody(builder, body)
    ReadLacReply.AddLastEntry(builder, entry)
    ReadLacReply.AddLastEntryId(builder, 42)
    return ReadLacReply.End(builder)


def list_entries_reply(builder: flatbuffers.Builder) -> Any:
    ListEntriesReply.StartRangesVector(builder, 2)
    for first, last in ((8, 2**40), (0, 5)):
        EntryRange.CreateEntryRange(builder, first, last)
    ranges = builder.EndVector()
    ListEntriesReply.Start(builder)
    ListEntriesReply.AddNextEntryId(builder, -1)
    ListEntriesReply.AddRanges(builder, ranges)
    return ListEntriesReply.End(builder)


def nothing(builder: flatbuffers.Builder) -> int:
    return 0


@pytest.mark.parametrize(
    ("body_type", "body_of", "expected"),
    [
        (ResponseBody.NONE, nothing, {}),
        (ResponseBody.ReadReply, read_reply, {"entry_id": -1, "lac": 2**62, "entry": b"the entry"}),
        (
            ResponseBody.ReadBatchReply,
            read_batch_reply,
            {"lac": 7, "next_entry_id": 9, "entries": [b"one", b"", b"three"]},
        ),
        (
            ResponseBody.ReadLacReply,
            read_lac_reply,
            {"lac": 41, "fenced": True, "body": b"explicit", "entry": b"last", "entry_id": 42},
        ),
        (
            ResponseBody.ListEntriesReply,
            list_entries_reply,
            {"next_entry_id": -1, "ranges": [(0, 5), (8, 2**40)]},
        ),
    ],
)
def test_it_reads_what_generated_code_writes(
    body_type: int, body_of: Callable[[flatbuffers.Builder], int], expected: dict[str, Any]
) -> None:
    builder = flatbuffers.Builder()
    frame = framed(builder, body_type, body_of(builder))
    assert parse(frame, 77, 16) == Answer(2**63 + 5, 77, 16, 0x1234, **expected)


@pytest.mark.parametrize("body_type", [ResponseBody.ReadReply, ResponseBody.ReadLacReply])
def test_what_is_not_written_is_zero(body_type: int) -> None:
    builder = flatbuffers.Builder()
    builder.StartObject(5)
    answer = parse(framed(builder, body_type, builder.EndObject()), 77, 16)
    assert (answer.entry_id, answer.lac, answer.entry) == (0, 0, b"")
