"""The Kubernetes manifest: good by the schemas, its configuration starts a bookie, its probe tests the data path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fastbk
from fastbk.devcluster.processes import free_port
from fastbk.security.authority import Authority
from tests.fixtures.logs import events
from tests.fixtures.wait import wait_until
from tests.style.tree import ROOT
from tools.environments import ensure_environment

MANIFEST = ROOT / "packaging" / "kubernetes" / "fastbk.yaml"
SCHEMAS = ("1.28", "1.31", "1.34")


def documents() -> dict[str, dict[str, Any]]:
    """Return the manifest's objects, by kind and name."""
    return {
        f"{one['kind']}/{one['metadata']['name']}": one
        for one in yaml.safe_load_all(MANIFEST.read_text())
    }


def pods() -> Iterator[dict[str, Any]]:
    for one in documents().values():
        if "template" in one.get("spec", {}):
            yield one["spec"]["template"]["spec"]


def test_no_pod_has_rights_that_it_does_not_need() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["image"] == f"fastbk:{fastbk.__version__}-1"
            closed = container["securityContext"]
            assert closed["readOnlyRootFilesystem"] and not closed["allowPrivilegeEscalation"]
            assert closed["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.slow
def test_the_configuration_starts_a_bookie_and_the_probe_tests_its_data_path(
    tmp_path: Path,
) -> None:
    found = documents()
    bookie = found["StatefulSet/fastbk"]["spec"]["template"]["spec"]["containers"][0]
    port = free_port()
    Authority.make(tmp_path / "ca").issue(tmp_path / "tls", ["127.0.0.1"])
    (tmp_path / "tls" / "ca.crt").write_bytes((tmp_path / "ca" / "ca.crt").read_bytes())
    text = found["ConfigMap/fastbk"]["data"]["bookie.toml"]
    for old, new in {
        'advertised = "@POD@.fastbk.@NAMESPACE@.svc.cluster.local"': "",
        "@POD@": "fastbk-0",
        "@METADATA@": f"sqlite:{tmp_path}/metadata.sqlite",
        "0.0.0.0:3181": f"127.0.0.1:{port}",
        "127.0.0.1:8000": f"127.0.0.1:{free_port()}",
        "/var/lib/fastbk": str(tmp_path),
        "/etc/fastbk/tls": f"{tmp_path}/tls",
    }.items():
        assert old in text
        text = text.replace(old, new)
    assert "@" not in text
    config = tmp_path / "bookie.toml"
    config.write_text(text)
    environment = {**os.environ, **{one["name"]: one["value"] for one in bookie["env"]}}
    environment = {
        name: value.replace("/etc/fastbk/tls", f"{tmp_path}/tls")
        for name, value in environment.items()
    }

    def words(given: list[str]) -> list[str]:
        return [
            sys.executable,
            "-m",
            "fastbk.cli",
            *(one.replace("/run/fastbk", str(tmp_path)) for one in given),
        ]

    probe = bookie["readinessProbe"]["exec"]["command"]
    assert probe[0] == "/usr/bin/fastbk"

    def is_ready() -> bool:
        timeout_s = bookie["readinessProbe"]["timeoutSeconds"]
        done = subprocess.run(
            words(probe[1:]), env=environment, capture_output=True, timeout=timeout_s, check=False
        )
        return done.returncode == 0

    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(words(bookie["args"]), env=environment, stderr=file)
    try:
        wait_until(lambda: bool(events(log, "bookie.started")), "the bookie serves")
        assert is_ready()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (journal,) = (
            one
            for one in children
            if b"journal.process" in Path(f"/proc/{one}/cmdline").read_bytes()
        )
        os.kill(int(journal), signal.SIGSTOP)
        assert not is_ready(), "its port is open, and nothing can be written"
        os.kill(int(journal), signal.SIGCONT)
        assert is_ready()
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_schemas_know_every_field(tmp_path: Path) -> None:
    python = ensure_environment(str(tmp_path / "venv"), ROOT / "requirements" / "kubernetes.txt")
    for version in SCHEMAS:
        command = [python.with_name("kubernetes-validate"), "--strict", "-k", version, MANIFEST]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_grace_is_longer_than_a_drain() -> None:
    (statefulset,) = (one for name, one in documents().items() if name == "StatefulSet/fastbk")
    assert statefulset["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
    assert 'drain_timeout = "30s"' in documents()["ConfigMap/fastbk"]["data"]["bookie.toml"]
