from __future__ import annotations

import os
from typing import Any

from fastbk.native.segment import HotLedger, HotWindow, Segment, create_segment, hot_window
from fastbk.server.admin.pages import HOT_SHOWN_MAX, HOT_WINDOW_AGE_MAX_S, windows_shown

SECOND_NS = 10**9


def window(*ledgers: HotLedger, ended_s: float = 100.0, took_s: float = 4.0) -> HotWindow:
    ended_ns = int(ended_s * SECOND_NS)
    return HotWindow(ended_ns - int(took_s * SECOND_NS), ended_ns, ledgers)


def ledgers_of(page: dict[str, Any]) -> list[tuple[int, float]]:
    return [(one["ledger_id"], one["adds_per_second"]) for one in page["ledgers"]]


def test_what_is_certain_decides_the_order_and_is_shown() -> None:
    both = [
        window(HotLedger(1, 400, 0, 4000), HotLedger(2, 4000, 3900, 9)),
        window(HotLedger(3, 800, 0, 8)),
    ]
    page = windows_shown(both, 102 * SECOND_NS)
    assert ledgers_of(page) == [(3, 200.0), (1, 100.0), (2, 25.0)]
    assert page["ledgers"][2]["adds_per_second_over"] == 975.0
    assert page["ledgers"][1]["bytes_per_second"] == 1000.0
    assert (page["window_seconds"], page["age_seconds"]) == (4.0, 2.0)


def test_an_old_window_is_not_shown() -> None:
    now_ns = int((100 + HOT_WINDOW_AGE_MAX_S + 1) * SECOND_NS)
    assert windows_shown([window(HotLedger(1, 400, 0, 4000))], now_ns)["ledgers"] == []


def test_a_page_is_bounded() -> None:
    many = (HotLedger(n, 100 + n, 0, 1) for n in range(HOT_SHOWN_MAX + 28))
    found = ledgers_of(windows_shown([window(*many)], 100 * SECOND_NS))
    assert len(found) == HOT_SHOWN_MAX
    assert found[0][0] == HOT_SHOWN_MAX + 27


def test_a_segment_that_was_just_made_has_no_window() -> None:
    descriptor = create_segment("index", 0, 1, [65536])
    segment = Segment(descriptor, "index")
    try:
        assert hot_window(segment) is None
    finally:
        segment.close()
        os.close(descriptor)
