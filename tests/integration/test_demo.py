"""The main job on a small file: it kills, brings back, compares; and it does find a wrong byte."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo import dataset
from demo.__main__ import AppendTotals, Job, Screen
from demo.dataset import Dataset, find_source
from fastbk.devcluster import DevCluster, is_alive
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until


def start(folder: Path, file: Path, spark: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo"], cwd=folder, text=True,
        env={**os.environ, "SPARK": spark, "FILE": str(file)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize(
    "spark", ["0", pytest.param("1", marks=[pytest.mark.soak, pytest.mark.timeout(400)])]
)
def test_every_byte_comes_back_though_a_bookie_was_killed(tmp_path: Path, spark: str) -> None:
    data = random.Random(3).randbytes(4_000_001)
    (tmp_path / "file").write_bytes(data)
    job = start(tmp_path, tmp_path / "file", spark)
    out, err = job.communicate(timeout=100 if spark == "0" else 300)
    assert (job.returncode, err) == (0, "")
    lines = out.splitlines()
    assert any(line.startswith("killed bookie-3 (SIGKILL") for line in lines)
    assert any(line.startswith("bookie-3 is back") for line in lines)
    assert any("p99.9" in line for line in lines)
    spoke = any(line.startswith("Spark read 977 entries, 3.8 MiB in") for line in lines)
    assert spoke == (spark == "1")
    assert lines[-1].startswith("OK: every byte agreed: ledger 0, 977 entries, 4,000,001 bytes")
    assert hashlib.sha256(data).hexdigest() in lines[-1]
    assert lines[-1].endswith("dev --data fastbk-data")
    # The line to go on with does go on: the data is there.
    cluster = DevCluster(tmp_path / "fastbk-data")
    cluster.start()
    try:
        read = Cli(cluster.metadata_uri).raw("ledger", "read", "0", "--raw")
    finally:
        assert cluster.stop()
    assert read == data


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupted_job_leaves_no_process(tmp_path: Path, number: int) -> None:
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 400_000_000)
    job = start(tmp_path, tmp_path / "file", spark="0")
    assert job.stdout is not None
    line = ""
    while "bookies ready" not in line:
        line = job.stdout.readline()
        assert line
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    assert len(children) == 3
    job.send_signal(number)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 1
    assert out.splitlines()[-1] == "FAILED: interrupted"
    assert "Traceback" not in err
    wait_until(lambda: not any(is_alive(int(pid)) for pid in children), "the bookies' end")


def test_a_different_sum_is_a_failure(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "unused", 1)
    job = Job(cluster, Dataset("x", [b"x"]), Screen())
    written = AppendTotals(7, entries=2, size_bytes=2, sha256="aa")
    assert job._verdict(False, written, 2, "bb").startswith("FAILED: ledger 7: wrote 2 entries")
    assert job._verdict(True, written, 2, "aa").startswith("OK: every byte agreed")


def test_without_a_file_it_is_the_index_and_without_an_index_shared_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FILE", raising=False)
    text = b"Package: a\nVersion: 1\n\nPackage: b\n\n"
    monkeypatch.setattr(dataset, "package_index", lambda: text)
    found = find_source()
    assert found.records == [b"Package: a\nVersion: 1\n\n", b"Package: b\n\n"]
    assert found.is_repeated
    monkeypatch.setattr(dataset, "package_index", lambda: b"")
    shared = find_source()
    assert shared.title == "files under /usr/share"
    assert 0 < shared.pass_bytes <= 300 * 10**6


@pytest.mark.long
def test_every_digest_is_the_sources_though_a_writer_and_a_cursor_were_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "info").mkdir()
    records = []
    for number in range(200):
        records.append(f"Package: p{number}\nDescription: {'x' * 2000}\n")
        lines = "".join(f"{at:032x}  usr/share/p{number}/{at}\n" for at in range(40))
        (tmp_path / "info" / f"p{number}.md5sums").write_text(lines)
    (tmp_path / "status").write_text("\n".join(records))
    done = subprocess.run(
        [sys.executable, "-m", "demo.streams"], cwd=tmp_path, text=True, timeout=100,
        env={**os.environ, "DPKG": str(tmp_path)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines_out = done.stdout.splitlines()
    assert lines_out[-1] == "OK: every digest is the source's"
    assert sum(line.endswith("as the source") for line in lines_out) == 4
    assert any(line.startswith("killed the writer of checksums (SIGKILL)") for line in lines_out)
    assert any(line.startswith("killed the cursor's holder (SIGKILL)") for line in lines_out)
    assert any("the younger half of the source" in line for line in lines_out)
