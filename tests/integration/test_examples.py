"""The examples do what they say, twice on the same cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fastbk.testing import LocalCluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ledgers_and_streams", "a new start read a snapshot and 50 changes"),
        ("publish_subscribe", "audit handled 1000 orders"),
    ],
)
def test_an_example_runs_and_runs_again(cluster: LocalCluster, name: str, says: str) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / f"{name}.py"), cluster.metadata_uri],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert says in done.stdout
