"""What counts for the auditor: options, keys of Apache's file, or defaults."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from fastbk.autorecovery.placement_audit import INTERVAL_S
from fastbk.cli.autorecovery import (
    PLACEMENT_KEY,
    SCRIPT_KEY,
    _placement_interval_s,
    _topology_script,
)
from fastbk.errors import ConfigError


def interval_s(option: str | None, file: Path | None) -> float:
    return _placement_interval_s(Namespace(placement_interval=option, apache_config=file))


def test_the_option_goes_before_the_file_and_the_file_before_the_default(tmp_path: Path) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text(f"bookiePort=3181\n{PLACEMENT_KEY}=7200\n")
    assert interval_s(None, None) == INTERVAL_S
    assert interval_s("30min", None) == 1800
    assert interval_s("0", file) == 0
    assert interval_s(None, file) == 7200
    file.write_text(f"{PLACEMENT_KEY}=0\n")
    assert interval_s(None, file) == 0, "as Apache has it, there are no rounds"
    file.write_text("bookiePort=3181\n")
    assert interval_s(None, file) == INTERVAL_S


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text(f"{PLACEMENT_KEY}=-1\n")
    with pytest.raises(ConfigError, match=PLACEMENT_KEY):
        interval_s(None, file)
    with pytest.raises(ConfigError, match="duration"):
        interval_s("often", None)
    with pytest.raises(ConfigError, match="cannot read"):
        interval_s(None, tmp_path / "nothing.conf")


def test_the_script_of_locations_is_an_option_or_apaches_key(tmp_path: Path) -> None:
    """Decision 169: a file of this machine's operator names it."""
    file, script = tmp_path / "bk_server.conf", tmp_path / "racks.sh"
    file.write_text(f"{SCRIPT_KEY}={script}\n")

    def found(option: Path | None, config: Path | None) -> Path | None:
        return _topology_script(Namespace(topology_script=option, apache_config=config))

    assert found(None, None) is None
    for given in ((script, None), (None, file)):
        with pytest.raises(ConfigError, match="no executable file"):
            found(*given)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert found(script, None) == found(None, file) == script
    file.write_text("bookiePort=3181\n")
    assert found(None, file) is None
