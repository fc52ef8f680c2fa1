"""Usage: what is counted of ledgers' metadata, what it is compared with, and how it is told."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fastbk.cli import __main__ as cli
from fastbk.cli.spark import usage_facts, usage_lines
from fastbk.client import LedgerInfo
from fastbk.errors import ConfigError
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.model.quorum import write_set
from fastbk.spark.charts import draw, growth_of
from fastbk.spark.jobs.usage import (
    DAY_S,
    Clock,
    Usage,
    UsageLine,
    compared,
    entries_of,
    grown,
    held_entries,
    rows_of,
    stamp_of,
    thinned,
)

NOW = datetime(2026, 11, 23, 1, 2, 3, tzinfo=UTC)
NOW_S = int(NOW.timestamp())


def some_metadata(rng: random.Random) -> LedgerMetadata:
    """A ledger of any quorums, fragments and state."""
    size = rng.randrange(1, 6)
    quorum = rng.randrange(1, size + 1)
    count = rng.choice([0, 1, 2, 7, 30])
    firsts = sorted({0, *(rng.randrange(count + 2) for _ in range(rng.randrange(3)))})
    names = [f"bookie-{at}" for at in range(7)]
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=rng.randrange(1, quorum + 1),
        fragments=tuple(Fragment(one, tuple(rng.sample(names, size))) for one in firsts),
        state=rng.choice(list(LedgerState)),
        last_entry_id=count - 1,
        length=100 * count,
        created_ms=rng.choice([None, 1000 * (NOW_S - rng.randrange(20 * DAY_S))]),
        custom=rng.choice([{}, {"fastbk.stream": b"s1"}, {"fastbk.stream": b"s2", "x": b""}]),
    )


def test_copies_are_counted_as_if_each_entry_were_looked_at(rng: random.Random) -> None:
    for _ in range(500):
        metadata = some_metadata(rng)
        held: Counter[str] = Counter()
        for entry_id in range(entries_of(metadata)):
            ensemble = metadata.fragment_of(entry_id).ensemble
            for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                held[ensemble[index]] += 1
        named = {bookie_id for one in metadata.fragments for bookie_id in one.ensemble}
        assert held_entries(metadata) == {bookie_id: held[bookie_id] for bookie_id in named}


def test_rows_add_up_to_what_the_ledgers_have(rng: random.Random) -> None:
    infos = [LedgerInfo(at, some_metadata(rng), 1) for at in range(300)]
    rows = list(rows_of(infos, Clock(NOW_S, 3600)))
    once = [row for row in rows if row[1] is None]
    keys = [row[:3] for row in rows]
    assert len(set(keys)) == len(keys)
    closed = [one.metadata for one in infos if one.metadata.is_closed]
    assert sum(row[3] for row in once) == 300
    assert sum(row[4] for row in once) == 300 - len(closed)
    assert sum(row[5] for row in once) == sum(entries_of(one.metadata) for one in infos)
    assert sum(row[6] for row in once) == sum(one.length for one in closed)
    day = [one for one in closed if one.created_ms and NOW_S - one.created_ms // 1000 <= DAY_S]
    assert sum(row[7] for row in once) == sum(one.length for one in day)
    assert {row[0] for row in once} == {"", "s1", "s2"}
    assert all(row[2] is None or row[2] % 3600 == 0 for row in rows)
    # Entries are of 100 bytes each, so shares of bytes are exact here.
    assert all(row[6] % 100 == 0 for row in rows)
    copies = [row for row in rows if row[1] is not None]
    assert sum(row[6] for row in copies) == sum(one.length * one.write_quorum for one in closed)


def test_an_open_ledger_counts_the_entries_of_finished_fragments() -> None:
    metadata = LedgerMetadata(
        ensemble_size=2, write_quorum=1, ack_quorum=1,
        fragments=(Fragment(0, ("a", "b")), Fragment(7, ("a", "c"))),
    )  # fmt: skip
    assert entries_of(metadata) == 7
    assert held_entries(metadata) == {"a": 4, "b": 3, "c": 0}
    assert held_entries(replace(metadata, state=LedgerState.CLOSED, last_entry_id=9)) == {
        "a": 5, "b": 3, "c": 2,
    }  # fmt: skip


def test_times_of_creation_are_told_apart_two_dozen_times_at_least() -> None:
    assert Clock.over(NOW_S, NOW_S - 5).bucket_s == 1
    assert Clock.over(NOW_S, NOW_S - 1500).bucket_s == 60
    assert Clock.over(NOW_S, NOW_S - 5 * DAY_S).bucket_s == 3600
    assert Clock.over(NOW_S, 0).bucket_s == DAY_S


def test_growth_by_creation_ends_with_what_is_there() -> None:
    made = [(100, "a", 5), (None, "b", 1), (200, "b", 2), (200, "a", 3)]
    assert [(when.timestamp(), some) for when, some in grown(made)] == [
        (100, {"a": 5, "b": 1}), (200, {"a": 8, "b": 3}),
    ]  # fmt: skip
    assert grown([]) == []


def test_snapshots_are_compared_with_the_last_one_and_with_old_enough_ones() -> None:
    ages = (30, 8, 6, 2, 0.5)
    before = [NOW - timedelta(days=age) for age in ages]
    assert compared(before, NOW) == {"last": before[4], "day": before[3], "week": before[1]}
    assert compared(before[4:], NOW) == {"last": before[4]}
    many = [NOW - timedelta(hours=at) for at in range(1000, 0, -1)]
    kept = thinned(many)
    assert 30 <= len(kept) <= 60 and kept[-1] == many[-1] and kept == sorted(kept)
    assert thinned(before) == before and thinned([]) == []
    assert stamp_of("taken=20261123T010203Z") == NOW
    with pytest.raises(ConfigError, match="x is no snapshot of usage"):
        stamp_of("x")


def a_usage(*, is_by_snapshots: bool = False) -> Usage:
    growth = {"day": 1 << 20, "week": -(1 << 30)}
    namespaces = [
        UsageLine("shop", 1200, 1, 5_000_000, 7 << 30, growth),
        UsageLine("-", 3, 0, 10, 1 << 20, growth),
    ]
    bookies = [
        UsageLine(
            f"bookie-{at}", 800, 1, 3_000_000, 5 << 30, parts={"shop": 5 << 30, "(others)": 9 << 20}
        )
        for at in range(3)
    ]
    history = [
        (NOW - timedelta(days=age), {"shop": (9 - age) << 29, "(others)": age << 26})
        for age in (8, 5, 2, 1)
    ]
    return Usage(
        NOW,
        UsageLine("total", 1300, 2, 5_100_000, 8 << 30, growth),
        namespaces,
        [UsageLine("shop/orders", 1200, 1, 5_000_000, 7 << 30)],
        bookies,
        {"day": NOW - timedelta(days=1), "week": NOW - timedelta(days=7)},
        is_by_snapshots,
        history,
    )


def test_it_is_told_as_tables_and_as_json() -> None:
    text = usage_lines(a_usage())
    assert (
        " ".join(text[0].split()) == "namespace ledgers open entries bytes made in 1 d made in 7 d"
    )
    assert " ".join(text[1].split()) == "shop 1,200 1 5,000,000 7.0 GiB +1.0 MiB -1.0 GiB"
    assert text[3].split()[:4] == ["total", "1,300", "2", "5,100,000"]
    assert "since 1 d ago" in usage_lines(a_usage(is_by_snapshots=True))[0]
    assert any(line.startswith("Of open ledgers") for line in text)
    facts = json.loads(json.dumps(usage_facts(a_usage())))
    assert facts["namespaces"][0]["growth"]["week"] == -(1 << 30)
    assert facts["taken"] == "2026-11-23T01:02:03+00:00" and len(facts["history"]) == 4


def test_the_chart_has_all_series_at_all_times_up_to_now(tmp_path: Path) -> None:
    usage = a_usage()
    points = growth_of(usage, ["shop", "gone"])
    assert list(points) == ["shop", "(others)"]
    assert [[when for when, _ in some] for some in points.values()] == [
        [*(when for when, _ in usage.history), NOW]
    ] * 2
    assert points["shop"][-1] == (NOW, 8 << 29)
    draw(usage, tmp_path / "usage.png")
    assert (tmp_path / "usage.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chart", "usage.pdf"], "must end in .png"),
        (["--chart", "/nowhere/usage.png"], "there is no folder /nowhere"),
        (["--top", "0"], "--top 0 must be 1 or more"),
    ],
)
def test_what_cannot_work_is_told_before_spark_is_started(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fastbk.spark.session.session", lambda *_: pytest.fail("Spark was started"))
    assert cli.main(["spark", "usage", "--metadata", "sqlite:/nowhere/x", *words]) == 2
    assert said in capsys.readouterr().err
