from __future__ import annotations

import re

import pytest

from fastbk.native.segment import COUNTERS_MAX, HISTOGRAMS_MAX
from fastbk.observe.names import NAMES, describe


def test_no_two_counters_of_a_role_share_a_slot() -> None:
    seen: set[tuple[str, str, int]] = set()
    for name in NAMES:
        key = (name.role, name.slot_name[4], name.slot)
        assert key not in seen
        seen.add(key)
        assert name.slot < (HISTOGRAMS_MAX if key[1] == "H" else COUNTERS_MAX)


def test_metric_names_are_prometheus_names_and_unique() -> None:
    metrics = [name.metric for name in NAMES]
    assert len(set(metrics)) == len(metrics)
    for name in NAMES:
        assert re.fullmatch(r"fastbk_(worker|journal|index|gc)_[a-z0-9_]+", name.metric)
        assert name.metric.endswith("_total") == (name.kind == "counter")
        assert name.text.endswith(".")


def test_times_are_shown_in_seconds() -> None:
    name = describe("FBK_H_JOURNAL_COMMIT_NS", 0, "x")
    assert (name.metric, name.scale) == ("fastbk_journal_commit_seconds", 1e-9)
    assert describe("FBK_H_WORKER_ADD_US", 0, "x").scale == 1e-6


def test_a_name_without_a_role_is_refused() -> None:
    with pytest.raises(ValueError, match="FBK_C_"):
        describe("FBK_C_NOBODY_X", 0, "x")
