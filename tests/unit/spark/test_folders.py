"""Places that jobs refuse before they write or delete anything, and names that options take as they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from fastbk.errors import ConfigError
from fastbk.spark.jobs.audit import AuditPlan
from fastbk.spark.jobs.folders import check_place
from fastbk.spark.jobs.ingest import IngestPlan
from fastbk.spark.jobs.rebuild import RebuildPlan
from fastbk.spark.options import read_options, reading_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("pyspark")


@pytest.mark.parametrize("place", ["", "/", "/data/[x]", "/data/a*", "s3a://b/{a,b}", "a?", "a\\b"])
@pytest.mark.parametrize(
    "refuse",
    [
        check_place,
        lambda place: RebuildPlan(stream="a/b", to=place),
        lambda place: AuditPlan(to=place),
        lambda place: IngestPlan(stream="a/b", manifest=place),
    ],
)
def test_a_place_that_is_none_or_reads_as_a_pattern_is_refused(
    place: str, refuse: Callable[[str], object]
) -> None:
    with pytest.raises(ConfigError, match="place"):
        refuse(place)


def test_other_places_are_taken() -> None:
    assert check_place("hdfs://nn/a b/50% =\u2603,/") == "hdfs://nn/a b/50% =\u2603,"


@pytest.mark.parametrize("paths", [("a/b",), ("a/b", "c"), ("a/b,c",), (" a", "x/(.*)", "y z ")])
def test_streams_are_read_by_their_names_whatever_is_in_them(paths: tuple[str, ...]) -> None:
    options = read_options(reading_of("sqlite:x", *paths), streaming=False)
    if options.pattern is None:
        assert options.streams == paths
    else:
        for path in (*paths, "a/b,", "x/y", "a"):
            assert (re.fullmatch(options.pattern, path) is not None) == (path in paths)
