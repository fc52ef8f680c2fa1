"""The container image: its compose file names what is there; and it runs, without root, rights or a writable system."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import fastbk
from fastbk.server.configuration.bookie_file import read
from tests.fixtures.wait import wait_until
from tests.packaging.test_units import BOOKIE
from tests.style.tree import ROOT

OCI = ROOT / "packaging" / "oci"
TOOLS = ("mmdebstrap", "buildah", "podman", "runc")
CONTAINERS_CONF = """[containers]
default_ulimits = []
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""


def test_compose_names_files_and_the_version_that_are_there() -> None:
    text = (OCI / "compose.yaml").read_text()
    files = set(re.findall(r"\./(bookie-\d\.toml)", text))
    assert files == {one.name for one in OCI.glob("*.toml")}
    ports = {read(OCI / name).config.bookie.listen for name in files}
    assert len(ports) == len(files) == 3
    assert f"localhost/fastbk:{fastbk.__version__}-" in text


def podman(folder: Path, *words: str) -> str:
    environment = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
    found = subprocess.run(
        ["podman", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        env=environment,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    return found.stdout.strip()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
    reason=f"needs root and {', '.join(TOOLS)}",
)
def test_the_image_runs_without_root_rights_or_a_writable_system(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, OCI / "build_image.py"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (tmp_path / "containers.conf").write_text(CONTAINERS_CONF)
    (tmp_path / "bookie.toml").write_text(BOOKIE.replace("3181", "3199").replace("8000", "8099"))
    tmp_path.chmod(0o755)
    name = f"fastbk-test-{uuid.uuid4().hex[:8]}"
    image = podman(
        tmp_path, "load", "-q", "-i", str(ROOT / built.stdout.partition(":")[0])
    ).split()[-1]
    try:
        podman(
            tmp_path, "run", "-d", "--name", name, "--network", "host", "--read-only", "--cap-drop", "all",
            "--security-opt", "no-new-privileges", "--security-opt", f"seccomp={ROOT / 'build/seccomp.json'}",
            "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1000:1000",
            "-v", f"{tmp_path}/bookie.toml:/etc/fastbk/bookie.toml:ro", "-v", f"{name}:/var/lib/fastbk", image,
        )  # fmt: skip
        wait_until(lambda: "bookie.started" in podman(tmp_path, "logs", name), "the bookie serves")
        log = [
            json.loads(line)
            for line in podman(tmp_path, "logs", name).splitlines()
            if line.startswith("{")
        ]
        assert [one["backend"] for one in log if one["event"] == "journal.ready"] == ["io_uring"]
        assert "process.not_confined" not in {one["event"] for one in log}
        inside = (
            "exec",
            "-e",
            "FASTBK_METADATA=sqlite:/var/lib/fastbk/metadata.sqlite",
            name,
            "sh",
            "-c",
        )
        told = podman(
            tmp_path, *inside, "echo hello | fastbk ledger write && fastbk ledger read 0; id -u"
        )
        assert "0\thello" in told
        assert told.splitlines()[-1] != "0"
        podman(tmp_path, "stop", "-t", "30", name)
        assert podman(tmp_path, "inspect", name, "--format", "{{.State.ExitCode}}") == "0"
    finally:
        podman(tmp_path, "rm", "-f", "-t", "0", name)
        podman(tmp_path, "volume", "rm", "-f", name)
        podman(tmp_path, "rmi", "-f", image)
