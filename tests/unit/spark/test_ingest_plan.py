"""What an ingest takes: files in groups, each once; changed ones are told."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from fastbk.cli import __main__ as cli
from fastbk.errors import ConfigError
from fastbk.spark.jobs.folders import FileStatus
from fastbk.spark.jobs.ingest import (
    FILE_BYTES_MAX,
    Group,
    IngestPlan,
    check_done,
    check_files,
    groups_of,
    left_of,
)

PLAN = IngestPlan(stream="shop/orders", manifest="/m", group_bytes=100)


def a_file(name: str, size_bytes: int = 10, modified_ms: int = 5) -> FileStatus:
    return FileStatus(f"/in/{name}", f"file:/in/{name}", size_bytes, modified_ms)


def test_groups_hold_all_files_in_order_and_are_bounded(rng: random.Random) -> None:
    for _ in range(200):
        files = [
            a_file(f"{at:03}", rng.choice([0, 1, 40, 99, 150])) for at in range(rng.randrange(30))
        ]
        groups = groups_of(files, 7, PLAN)
        assert [one for group in groups for one in group.files] == files
        assert [group.number for group in groups] == list(range(7, 7 + len(groups)))
        for group in groups:
            assert group.files and (group.size_bytes <= 100 or len(group.files) == 1)
        for one, after in pairwise(groups):
            assert one.size_bytes + after.files[0].size_bytes > 100


def test_a_groups_key_is_that_of_its_files_as_they_are() -> None:
    (group,) = groups_of([a_file("a"), a_file("b")], 1, PLAN)
    assert group.key == groups_of([a_file("a"), a_file("b")], 1, PLAN)[0].key
    others = [
        groups_of([a_file("a")], 1, PLAN)[0],
        groups_of([a_file("a"), a_file("b", modified_ms=6)], 1, PLAN)[0],
        groups_of([a_file("a"), a_file("b", 11)], 1, PLAN)[0],
        groups_of([a_file("b"), a_file("a")], 1, PLAN)[0],
        groups_of([a_file("a"), a_file("b")], 2, PLAN)[0],
        groups_of([a_file("a"), a_file("b")], 1, replace(PLAN, stream="shop/others"))[0],
    ]
    assert len({group.key, *(one.key for one in others)}) == 7


def test_a_manifest_says_what_was_done() -> None:
    (group,) = groups_of([a_file("a"), a_file("ü b")], 3, PLAN)
    done = group.done(17, "id")
    assert Group.from_json(done.to_json(), "x") == done
    for text in ("", "[]", "{}", '{"files": []}', done.to_json().replace("records", "rows")):
        with pytest.raises(ConfigError, match="x is no manifest of an ingest"):
            Group.from_json(text, "x")


def test_what_was_taken_is_not_taken_again_and_what_changed_is_told() -> None:
    files = [a_file("a"), a_file("b"), a_file("c")]
    done = groups_of(files[:2], 1, PLAN)
    assert left_of(files, done, PLAN) == files[2:]
    changed = [a_file("a"), a_file("b", 11), a_file("c")]
    with pytest.raises(ConfigError, match=r"/in/b changed .*it had 10 bytes, and has 11"):
        left_of(changed, done, PLAN)
    with pytest.raises(ConfigError, match="/in/b changed"):
        left_of([a_file("b", modified_ms=6)], done, PLAN)
    assert left_of(changed, done, replace(PLAN, changed="skip")) == files[2:]
    assert left_of(changed, done, replace(PLAN, changed="again")) == changed[1:]
    later = [*done, *groups_of(changed[1:], 2, PLAN)]
    assert left_of(changed, later, PLAN) == []


def test_a_manifest_of_other_data_is_refused() -> None:
    done = [one.done(1, "id") for one in groups_of([a_file("a")], 1, PLAN)]
    check_done(done, PLAN, "id")
    with pytest.raises(
        ConfigError, match="of an ingest of stream shop/orders, format lines, and this"
    ):
        check_done(done, replace(PLAN, format="json"), "id")
    for stream_id in ("other", None):
        with pytest.raises(ConfigError, match="that is not there any more"):
            check_done(done, PLAN, stream_id)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "xml"}, "format xml is none of lines, json, csv, parquet, binary"),
        ({"changed": "x"}, "changed x is none of refuse, again, skip"),
        ({"key": "id"}, "lines have no columns"),
        ({"group_bytes": 0}, "at least one byte"),
        ({"stream": ""}, "name"),
    ],
)
def test_wrong_options_are_told(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        IngestPlan(**({"stream": "shop/orders", "manifest": "/m"} | options))


def test_files_that_cannot_be_taken_are_told() -> None:
    check_files([a_file("a b", FILE_BYTES_MAX + 1)], PLAN)
    with pytest.raises(ConfigError, match=r"/in/a\[1\] has one of .* rename it"):
        check_files([a_file("a[1]")], PLAN)
    with pytest.raises(ConfigError, match="/in/a has 4,128,769 bytes"):
        check_files([a_file("a", FILE_BYTES_MAX + 1)], replace(PLAN, format="binary"))


def test_the_command_tells_what_is_wrong_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fastbk.spark.session.session", lambda *_: pytest.fail("Spark was started"))
    command = ["spark", "ingest", "/in", "--metadata=sqlite:/x", "--to=a/b", "--manifest=/m"]
    assert cli.main([*command, "--group", "many"]) == 2
    assert '--group many: "many" is not a size' in capsys.readouterr().err
    assert cli.main([*command, "--format", "xml"]) == 2
    assert "format xml is none of" in capsys.readouterr().err
