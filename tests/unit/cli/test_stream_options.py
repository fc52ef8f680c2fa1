"""FIELD=VALUE of `fastbk stream` and `fastbk namespace`: each size takes a unit."""

from __future__ import annotations

import pytest

from fastbk.cli.stream_options import policy_lines, policy_of
from fastbk.errors import PolicyInvalid
from fastbk.stream.policy import PolicyPatch


@pytest.mark.parametrize("name", ["roll_bytes", "retention_bytes", "hard_bytes", "bytes_max"])
def test_a_size_takes_a_unit_or_bytes(name: str) -> None:
    assert policy_of([f"{name}=64MiB"]) == PolicyPatch(**{name: 64 * 1024 * 1024})
    assert policy_of([f"{name}=64"]) == PolicyPatch(**{name: 64})
    with pytest.raises(PolicyInvalid, match=f"{name}: 'much' cannot be: write it like 64MiB"):
        policy_of([f"{name}=much"])


def test_the_quota_of_bytes_is_shown_as_a_size() -> None:
    (line,) = policy_lines({"bytes_max": 1024**3}, {"bytes_max": 1024**3}, {})
    assert line.endswith("1.0 GiB")
