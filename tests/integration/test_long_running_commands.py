"""Each command that runs until a signal gives up privileges and keeps its memory from other processes of its user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastbk.cli
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until

USER = 65_534
"""Of a process that root starts: whether it is dumpable shows in whose its files of /proc are."""
SERVICES = ("janitor", "autorecovery", "console", "gateway", "serve", "bookie")


def test_this_list_is_whole() -> None:
    """A command that ends with its starter runs until a signal."""
    folder = Path(fastbk.cli.__file__).parent
    texts = {path.stem: path.read_text() for path in folder.rglob("*.py")}
    found = {
        name
        for name, text in texts.items()
        if re.search(r"^    add_lifeline\(|--lifeline", text, re.MULTILINE)
    }
    assert found - {"options"} == set(SERVICES) - {"bookie"}
    for name in found - {"options"}:
        assert f'begin_service("{name}")' in texts[name]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_not_dumpable(name: str, tmp_path: Path) -> None:
    user: dict[str, Any] = (
        {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    with LocalCluster(1) as cluster:
        configurations = {
            "gateway": f'[gateway]\nlisten = "127.0.0.1:0"\n[metadata]\nuri = "{cluster.metadata_uri}"\n',
            "bookie": f'[bookie]\nlisten = "127.0.0.1:0"\n[metadata]\nuri = "{cluster.metadata_uri}"\n',
        }
        config = tmp_path / f"{name}.toml"
        config.write_text(configurations.get(name, ""))
        options = {
            "gateway": ["--config", str(config)],
            "bookie": ["--config", str(config)],
            "serve": ["--listen", "127.0.0.1:0"],
            "console": ["--listen", "127.0.0.1:0", "--audit", str(tmp_path / "audit.jsonl")],
        }
        command = [sys.executable, "-m", "fastbk.cli", name, *options.get(name, [])]
        log = tmp_path / "log"
        environment = {**os.environ, "FASTBK_METADATA": cluster.metadata_uri}
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                **user,
            )
        status = Path(f"/proc/{process.pid}/status")
        try:
            what = f"{name} to give up privileges: {log.read_text()}"
            wait_until(lambda: "NoNewPrivs:\t1" in status.read_text(), what)
            # Of a process that is not dumpable all files are root's (proc(5)).
            wait_until(lambda: status.stat().st_uid == 0, f"{name} not to be dumpable")
        finally:
            process.kill()
            process.wait()
