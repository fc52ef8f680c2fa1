"""The pure parts: kept figures, drawn lines, records for people, and links."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.console.cluster_view import POINTS_MAX, History
from fastbk.console.pages import HEX_BYTES_MAX, SHOWN_BYTES_MAX, hex_lines, shown_payload
from fastbk.console.rendering import link, sparkline


def test_history_keeps_so_many_points_of_so_many_series() -> None:
    history = History(series_max=2)
    for at in range(3 * POINTS_MAX):
        history.add("a", float(at), None if at % 2 else float(at))
    times, values = history.get("a").last()
    assert len(times) == POINTS_MAX
    assert times == [float(at) for at in range(2 * POINTS_MAX, 3 * POINTS_MAX)]
    assert values[0] == 2 * POINTS_MAX
    assert values[1] is None
    assert len(history.get("a").times_s) <= POINTS_MAX * 5 // 4
    history.add("b", 0.0, 1.0)
    history.add("a", 3 * POINTS_MAX, 1.0)
    history.add("c", 0.0, 1.0)
    assert history.get("b").last() == ([], []), "the one without news for longest is forgotten"
    assert len(history) == 2


@given(st.lists(st.none() | st.floats(0, 1e12, allow_nan=False), max_size=600))
def test_a_line_stays_in_its_picture(values: list[float | None]) -> None:
    times = [5.0 * at for at in range(len(values))]
    drawn = str(sparkline(times, values, "x", width=100, height=20))
    assert "nan" not in drawn
    assert "inf" not in drawn
    path = drawn.partition('spark-line" d="')[2].partition('"')[0]
    numbers = [float(one) for one in path.replace("M", " ").replace("L", " ").split()]
    assert all(math.isfinite(one) for one in numbers)
    assert all(-0.1 <= x <= 100.1 for x in numbers[::2])
    assert all(-0.1 <= y <= 20.1 for y in numbers[1::2])


def test_a_label_of_a_line_is_escaped() -> None:
    assert '"><script>' not in str(sparkline([], [], '"><script>'))


def test_a_pause_is_a_gap() -> None:
    times = [float(at) for at in range(10)] + [float(at) for at in range(100, 110)]
    assert str(sparkline(times, [1.0] * 20, "x")).partition("spark-line")[2].count("M") == 2


@pytest.mark.parametrize(
    ("payload", "format_name", "used", "shown"),
    [
        (b'{"a":1}', "auto", "json", '{"a": 1}'),
        (b"12", "auto", "text", "12"),
        (b"12", "json", "json", "12"),
        ("grüße\n".encode(), "auto", "text", "grüße\n"),
        (b"\x00\x01", "auto", "hex", "00000000  00 01"),
        (b"{broken", "json", "text", "{broken"),
        (b"\xff", "text", "text", "\\xff"),
        (b"", "auto", "text", ""),
        (b"abc", "hex", "hex", "61 62 63"),
        (b"[" * 4000, "auto", "text", "["),
    ],
)
def test_payloads_are_shown_as_what_they_are(
    payload: bytes, format_name: str, used: str, shown: str
) -> None:
    text, found, _ = shown_payload(payload, format_name)
    assert found == used
    assert text.startswith(shown) or shown in text


@given(st.binary(max_size=3 * SHOWN_BYTES_MAX), st.sampled_from(["auto", "text", "json", "hex"]))
def test_every_payload_can_be_shown_within_bounds(payload: bytes, format_name: str) -> None:
    text, used, shown_bytes = shown_payload(payload, format_name)
    text.encode()
    assert shown_bytes >= len(payload) or shown_bytes in (SHOWN_BYTES_MAX, HEX_BYTES_MAX)
    assert used in ("text", "json", "hex")


def test_a_long_object_has_a_line_for_each_value() -> None:
    payload = json.dumps({f"field-{at}": at for at in range(20)}).encode()
    assert shown_payload(payload, "auto")[0].count("\n") > 10


def test_hexadecimal_is_that_of_hexdump() -> None:
    first, second = hex_lines(bytes(range(60, 80))).splitlines()
    assert first == "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK"
    assert second.startswith("00000010  4c 4d 4e 4f ")
    assert second.endswith("  LMNO")


def test_links_escape_names() -> None:
    assert link("stream", "a b/c?d#e%") == "/stream/a%20b/c%3Fd%23e%25"
    assert link("records", "a/b", from_="seq:1", as_="") == "/records/a/b?from=seq%3A1"
    assert link("streams", q=None) == "/streams"


@pytest.mark.parametrize("payload", [b'{"a":"\\ud800"}', b'["\\udfff\\ud800"]', b'{"\\ud83d":1}'])
@pytest.mark.parametrize("format_name", ["auto", "json"])
def test_json_with_a_lone_surrogate_is_shown_as_text(payload: bytes, format_name: str) -> None:
    assert shown_payload(payload, format_name)[:2] == (payload.decode(), "text")
