"""`fastbk dev` before it starts anything: a folder is one's own."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from fastbk.cli.__main__ import main
from fastbk.devcluster import DevCluster


def test_a_folder_where_another_one_runs_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "dev.lock").open("w") as lock:
        lock.write("123\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["dev", "--data", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} is in use by another fastbk dev (process 123)" in said
    assert not list(tmp_path.glob("bookie-*"))


def test_bookie_n_has_the_ports_that_the_help_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["dev", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "bookie n listens on PORT + n - 1" in said and "the same for /metrics" in said
    cluster = DevCluster(tmp_path, 3, port_base=20_000, http_port_base=30_000)
    listens = [
        (one.sections["bookie"]["listen"], one.sections["http"]["listen"])
        for one in cluster.bookies
    ]
    assert listens == [
        (f"127.0.0.1:{20_000 + n - 1}", f"127.0.0.1:{30_000 + n - 1}") for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("option", ["--port-base", "--http-port-base"])
@pytest.mark.parametrize("port", ["80", "65534", "-1"])
def test_ports_that_there_are_not_are_told_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, port: str
) -> None:
    assert main(["dev", "--data", str(tmp_path / "data"), option, port]) == 2
    assert f"{option} {port} is not between" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
