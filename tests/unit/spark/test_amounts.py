"""How much lies between two offsets, for reports."""

from __future__ import annotations

from fastbk.spark.offsets import Offsets, SizeEstimate, StreamOffset, amount
from fastbk.stream.positions import DLSN


def at(seq: int, stream_id: str = "a") -> StreamOffset:
    return StreamOffset(DLSN(1, seq, 0), seq, stream_id)


def test_streams_that_are_known_new_and_made_anew() -> None:
    start = Offsets({"same": at(10), "idle": at(5), "anew": at(70, "old")}, {})
    end = Offsets({"same": at(30), "idle": at(5), "anew": at(8), "new": at(9), "odd": at(3)}, {})
    known = {
        "same": SizeEstimate(2, 100.0),
        "anew": SizeEstimate(3, 10.0),
        "new": SizeEstimate(4, 1000.0),
    }
    found = amount(start, end, known)
    assert found.by_name == {"same": 20, "anew": 5, "new": 5}
    assert found.to_json() == {"records": 30, "bytes": 20 * 100 + 5 * 10 + 5 * 1000}


def test_ledgers_and_nothing() -> None:
    found = amount(Offsets({}, {7: 10}), Offsets({}, {7: 15, 8: 2}), {"7": SizeEstimate(0, 50.0)})
    assert found.by_name == {"7": 5, "8": 2}
    assert found.size_bytes == 5 * 50 + 2 * 1024
    assert amount(Offsets({}, {}), Offsets({}, {}), {}).to_json() == {"records": 0, "bytes": 0}
