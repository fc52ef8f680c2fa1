"""What a rebuild refuses before Spark is asked anything."""

from __future__ import annotations

import pytest

from fastbk.errors import ConfigError
from fastbk.spark.jobs.rebuild import RebuildPlan


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"format": "csv"}, "there are parquet and orc"),
        ({"partitions": 0}, "--partitions"),
        ({"deletes": "op"}, "write null, or column=value: op=d"),
        ({"deletes": "=d"}, "write null, or column=value: op=d"),
        ({"key": "id"}, "--key id is a JSON column"),
        ({"sequence": "at"}, "--sequence at is a JSON column"),
        ({"deletes": "op=d"}, "--deletes op is a JSON column"),
    ],
)
def test_wrong_options_are_refused_with_the_right_form(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RebuildPlan(stream="a/b", to="place", **wrong)  # type: ignore[arg-type]


def test_a_mark_of_deletions_has_a_column_and_a_value() -> None:
    plan = RebuildPlan(stream="a/b", to="place", schema="op string", deletes="row.op=a=b")
    assert plan.delete_mark == ("row.op", "a=b")
    assert RebuildPlan(stream="a/b", to="place").delete_mark is None
