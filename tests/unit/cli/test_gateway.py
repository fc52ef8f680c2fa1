"""What cannot work by a gateway ends at once: a service that only warns looks healthy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.cli.__main__ import main

if TYPE_CHECKING:
    import pytest


def test_autorecovery_does_not_start_with_a_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autorecovery", "--metadata", "gateway://127.0.0.1:1"]) == 2
    assert "autorecovery needs the metadata store itself (`zk://...`)" in capsys.readouterr().err
