"""Offsets: what is written is read, what options say is understood, limits are shared fairly."""

from __future__ import annotations

import json
import os
import random
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.spark.offsets import (
    EXAMPLE,
    Offsets,
    StreamOffset,
    advanced,
    parse,
    parse_wanted,
    renamed,
    shares,
)
from fastbk.stream.positions import DLSN

ROOT = Path(__file__).resolve().parents[3]
numbers = st.integers(0, 2**61)
positions = st.builds(DLSN, numbers, numbers, st.integers(0, 2**31 - 1))
ids = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=64)


@st.composite
def places(draw: st.DrawFn) -> StreamOffset:
    dlsn, began = draw(positions), draw(st.none() | positions)
    return StreamOffset(dlsn, draw(numbers), draw(ids), None if began is None else min(began, dlsn))


ats = places()


parts = st.text("abcxyz_09Ä ☃", min_size=1, max_size=6)
names = st.builds(
    "{}/{}".format,
    st.text("abcxyz", min_size=1, max_size=6),
    st.lists(parts, min_size=1, max_size=3).map("/".join),
)


@given(st.dictionaries(names, ats), st.dictionaries(numbers, numbers))
def test_what_is_written_is_read(streams: dict[str, StreamOffset], ledgers: dict[int, int]) -> None:
    for offsets in (Offsets(streams, {}), Offsets({}, ledgers)):
        text = json.dumps(offsets.to_json())
        assert parse(json.loads(text)) == offsets
        assert json.dumps(parse(json.loads(text)).to_json()) == text


@pytest.mark.parametrize(
    "found",
    [
        {"streams": {"a/b": {"segment": "1"}}},
        {"streams": {"a/b": 5}},
        {"streams": {"a/b": {"id": "x", "segment": "-1", "seq": "0"}}},
        {"ledgers": {"7": True}},
        {"ledgers": ["7"]},
    ],
)
def test_offsets_of_others_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse(found)


GOOD = {"id": "5f", "segment": "3", "entry": "120", "slot": 0, "seq": "7021"}
DEEP: object = 0
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"streams": {}, "ledgers": {}},
        {"version": 2, "streams": {"a/b": GOOD}},
        {"streams": {"a/b": {**GOOD, "shard": 1}}},
        {"streams": {"a/b": {**GOOD, "id": "../../../ledgers"}}},
        {"streams": {"a/b": {**GOOD, "id": "x" * 65}}},
        {"streams": {"a/b": {**GOOD, "began": "4.0.0"}}},  # all before it would count as read
        {"streams": {"a/b": {**GOOD, "began": "9" * 19 + ".0.0"}}},
        {"streams": {"a/b": {**GOOD, "seq": float("nan")}}},
        {"streams": {"a/b": {**GOOD, "seq": 10**4000}}},
        {"streams": {"a/b": {**GOOD, "entry": "9" * 1_000_000}}},
        {"streams": {"a/b": {**GOOD, "slot": -1}}},
        {"streams": {"a/b": DEEP}},
        {"streams": DEEP},
        {"streams": {"": GOOD}},
        {"streams": {"../../x": GOOD}},
        {"streams": {"a/\x1b[2J": GOOD}},
        {"ledgers": {"7": DEEP}},
        {"ledgers": {"-7": "1"}},
        {"ledgers": {"7": "\ud800\x1b]0;x\x07"}},
        {"streams\x1b[2J" * 100_000: {}},
    ],
)
def test_hostile_checkpoints_get_one_short_line(found: dict[str, object]) -> None:
    """What another version wrote, what was never there, and what would be shown whole or end a terminal's state."""
    with pytest.raises(ConfigError) as caught:
        parse(found)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("seed", range(3))
def test_changed_checkpoints_are_read_or_refused(seed: int) -> None:
    """FUZZ=1000000 makes it a long run."""
    dice = random.Random(seed)
    odd: tuple[object, ...] = (
        DEEP,
        None,
        True,
        -1,
        1 << 63,
        10**30,
        float("nan"),
        float("inf"),
        [],
        {},
    )
    odd += ("", "\ud800", "1e5", "٣", "x" * 5000)
    for _ in range(int(os.environ.get("FUZZ", "2000"))):
        place = {**GOOD, "began": "1.0.0"}
        found: dict[str, object] = {"streams": {"a/b": place, "a/c": dict(GOOD)}}
        if dice.random() < 0.3:
            found = {"ledgers": {"7": "1000", "8": "0"}}
        for _ in range(dice.choice((1, 1, 2))):
            inner = dice.choice([found, *found.values(), place])
            if isinstance(inner, dict):
                name = dice.choice([*inner, "id", "x", "\x1b[2J", "7", ""])
                inner[name] = dice.choice(odd)
                if dice.random() < 0.2:
                    del inner[name]
        refused = ""
        try:
            offsets = parse(found)
            assert parse(offsets.to_json()) == offsets
        except ConfigError as error:
            refused = str(error)
        assert len(refused) < 1000
        assert refused.isprintable()


def test_places_are_said_in_many_ways() -> None:
    said = {
        "a/1": {"segment": 3, "entry": 120, "slot": 4},
        "a/2": {"segment": "3"},
        "a/3": "3.120.4",
        "a/4": {"seq": 70},
        "a/5": "earliest",
        "a/6": {"id": "x", "segment": "3", "entry": "1", "slot": 0, "seq": "9"},
    }
    wanted = {
        "a/1": DLSN(3, 120, 4),
        "a/2": DLSN(3, 0, 0),
        "a/3": DLSN(3, 120, 4),
        "a/4": 70,
        "a/5": "earliest",
        "a/6": DLSN(3, 1, 0),
    }
    assert parse_wanted(said, ledgers=False).streams == wanted
    assert parse_wanted({"streams": said}, ledgers=False).streams == wanted
    assert parse_wanted({"7": 5, "8": "latest"}, ledgers=True).ledgers == {7: 5, 8: "latest"}

    assert parse_wanted({"streams": said, "batch": {}, "behind": {}}, ledgers=False).ids == {
        "a/6": "x"
    }


@pytest.mark.parametrize(
    "said",
    [
        "soon",
        5,
        {"entry": "1"},
        {"segment": -1},
        None,
        {"segment": 1, "entri": 5},
        {},
        {"id": "x"},
        {"seq": "9" * 5000},
        {"seq": 1.5},
        f"1.{'9' * 5000}.0",
    ],
)
def test_what_is_no_place_is_refused(said: object) -> None:
    with pytest.raises(ConfigError):
        parse_wanted({"a/b": said}, ledgers=False)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"0": 23}, 'a stream has one partition; .*{"shop/orders": {"seq": 23}}'),
        ({"offset": 1}, 'no field "offset"; write {"shop/orders": {"segment"'),
        (5, '5 is not an offset; write {"shop/orders"'),
    ],
)
def test_an_error_shows_the_form_that_the_documents_show(said: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_wanted({"a/b": said}, ledgers=False)
    written = EXAMPLE.partition(", for ledgers ")
    assert parse_wanted(json.loads(written[0]), ledgers=False).streams
    assert parse_wanted(json.loads(written[2]), ledgers=True).ledgers
    assert written[0].removesuffix("}") in (ROOT / "docs/spark.md").read_text()


def test_nothing_goes_back() -> None:
    far, near = StreamOffset(DLSN(2, 0, 0), 20, "x"), StreamOffset(DLSN(1, 0, 0), 10, "x")
    other = StreamOffset(DLSN(1, 0, 0), 10, "y")
    assert advanced(Offsets({"a": far}, {7: 9}), Offsets({"a": near}, {7: 3})) == Offsets(
        {"a": far}, {7: 9}
    )
    assert advanced(Offsets({"a": far}, {}), Offsets({"a": other}, {})).streams["a"] == other


def test_ledgers_that_are_read_no_longer_keep_their_place() -> None:
    assert advanced(Offsets({}, {7: 9, 8: 1}), Offsets({}, {8: 5})).ledgers == {7: 9, 8: 5}


def test_a_stream_is_its_id_whatever_its_name() -> None:
    x, y, z = (StreamOffset(DLSN(1, 0, 0), 10, name) for name in "xyz")

    def names(
        start: dict[str, StreamOffset], end: dict[str, StreamOffset]
    ) -> dict[str, StreamOffset]:
        return dict(renamed(Offsets(start, {}), Offsets(end, {})).streams)

    assert names({"a": x}, {"b": x}) == {"b": x}
    assert names({"a": x, "b": y}, {"a": y, "b": x}) == {"a": y, "b": x}
    assert names({"a": x, "b": y}, {"b": x}) == {"b": x}
    assert names({"a": x, "b": y}, {"a": z}) == {"a": x, "b": y}


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**9), max_size=20), st.integers(1, 10**9)
)
def test_a_limit_is_shared_by_backlog(backlogs: dict[str, int], limit: int) -> None:
    found = shares(backlogs, limit)
    assert all(0 <= found[name] <= backlog for name, backlog in backlogs.items())
    assert all(found[name] for name, backlog in backlogs.items() if backlog)
    assert sum(found.values()) <= limit + len(backlogs)
