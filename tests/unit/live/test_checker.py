"""The checker of live histories must reject a bad history of every kind, and accept a good one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import payload
from tests.live.checker import check


def history(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"at": float(at), "who": "x", "ledger": 1, **line} for at, line in enumerate(lines)]


def add(entry: int) -> dict[str, Any]:
    return {"op": "add", "entry": entry, "writer": 0}


def added(entry: int) -> dict[str, Any]:
    return {"op": "added", "entry": entry, "writer": 0}


def closed(last: int, length: int = 10, who: str = "w") -> dict[str, Any]:
    return {"op": "closed", "last": last, "length": length, "who": who}


def opened(last: int, who: str = "r") -> dict[str, Any]:
    return {"op": "opened", "last": last, "who": who}


def read(entry: int, crc: int = 7, by: str = "r1", *, final: bool = True) -> dict[str, Any]:
    return {"op": "read", "entry": entry, "crc": crc, "by": by, "final": final}


def lac(value: int, by: str = "t1") -> dict[str, Any]:
    return {"op": "lac", "lac": value, "by": by}


def test_a_good_history_passes() -> None:
    report = check(
        history(
            add(0), added(0), lac(0), add(1), added(1), lac(1), add(2),
            opened(2), closed(2), read(0), read(1), read(2), read(0, by="r2"), read(1, by="r2"), read(2, by="r2"),
        )
    )  # fmt: skip
    assert report.is_good, report.violations
    assert report.counts["added"] == 2


BAD: dict[str, list[dict[str, Any]]] = {
    "I1 acknowledged entry is gone": [add(0), added(0), add(1), added(1), closed(1), read(0)],
    "I1 nobody read": [add(0), added(0), closed(0)],
    "I1 one of two readers misses it": [add(0), added(0), closed(0), read(0), read(1, by="r2")],
    "I2 closed below": [add(0), added(0), add(1), added(1), closed(0), read(0), read(1)],
    "I3 two values": [add(0), added(0), closed(0), read(0, 7), read(0, 8, "r2")],
    "I4 nobody's bytes": [add(0), added(0), closed(0), read(0, 0)],
    "I4 never added": [add(0), added(0), closed(1), read(0), read(1)],
    "I5 hole": [add(0), add(1), closed(1), read(1)],
    "I6 order": [add(0), add(1), added(1), added(0), closed(1), read(0), read(1)],
    "I6 twice": [add(0), added(0), added(0), closed(0), read(0)],
    "I7 falls": [add(0), added(0), lac(0), lac(-1), closed(0), read(0)],
    "I7 passes": [lac(3), add(0), added(0), closed(0), read(0)],
    "I9 fenced": [add(0), added(0), opened(1), add(1), added(1), read(0), read(1)],
    "I10 two ends": [add(0), added(0), add(1), closed(1), closed(0, who="v"), read(0), read(1)],
    "I10 two lengths": [add(0), added(0), closed(0, 10), closed(0, 11, "v"), read(0)],
    "I20 open for ever": [add(0), added(0)],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_found(name: str) -> None:
    report = check(history(*BAD[name]))
    wanted = name.split(maxsplit=1)[0]
    assert any(one.startswith(f"{wanted}:") for one in report.violations), report.violations


def test_payloads_know_their_origin() -> None:
    origin = payload.Origin(1, 2**62, 3, 4, 500)
    data = payload.make(origin)
    assert len(data) == 500
    assert payload.parse(data) == origin
    for at in range(0, 500, 7):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert payload.parse(damaged) is None
    assert payload.parse(b"") is None
