"""What tracing asks of the installation, and of its options."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fastbk

WITHOUT = """
import sys
import fastbk, fastbk.sync
import fastbk.stream.writer.stream_writer, fastbk.stream.reader.stream_reader
client = fastbk.connect("memory:")
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules["opentelemetry"] = None
try:
    fastbk.Tracing()
except fastbk.ConfigError as error:
    print(error)
"""


def test_without_tracing_its_package_is_not_imported_and_without_the_package_it_is_refused() -> (
    None
):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "install fastbk[tracing], or leave `tracing` out" in done.stdout


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan"), "all"])
def test_a_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(fastbk.ConfigError, match="ratio="):
        fastbk.Tracing(ratio=ratio)
