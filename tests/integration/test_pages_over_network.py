"""Pages over a network with packets of 1,500 bytes: slow readers, and what Prometheus calls the machines."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fixtures.monitoring import FOLDER
from tests.fixtures.namespaces import Host, hosts, skip_without_namespaces
from tests.fixtures.wait import wait_until

PORT, HEALER_PORT, JANITOR_PORT, CONSOLE_PORT = 8000, 8085, 8086, 8087
SCRAPES = 40
RECEIVE_BYTES = 2048
"""Of a slow reader's socket: a page of metrics has forty times as much."""
WAIT_S = 60.0
ROOT = FOLDER.parent


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A machine of its own with a bookie."""
    skip_without_namespaces()
    folder = tmp_path_factory.mktemp("network")
    with hosts(1, folder) as (made,):
        http = {"listen": f"{made.address}:{PORT}", "allow_unauthenticated_remote": True}
        made.start(uri_of(made), http)
        wait_until(lambda: answers(made.address, PORT, "/readyz"), "the bookie serves", WAIT_S)
        yield made


def uri_of(host: Host) -> str:
    return f"sqlite:{host.folder.parent / 'metadata.sqlite'}"


def get(address: str, port: int, path: str, called: str = "") -> int:
    """Return the status of a page, of a server that is called so."""
    with closing(http.client.HTTPConnection(address, port, timeout=WAIT_S)) as made:
        made.request("GET", path, headers={"Host": called} if called else {})
        return made.getresponse().status


def answers(address: str, port: int, path: str = "/livez") -> bool:
    try:
        return get(address, port, path) == 200
    except OSError:
        return False


async def read_slowly(address: str) -> int:
    """Read the metrics by a small socket, and return their size."""
    loop = asyncio.get_running_loop()
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        made.setblocking(False)
        await loop.sock_connect(made, (address, PORT))
        await loop.sock_sendall(made, b"GET /metrics HTTP/1.1\r\n\r\n")
        size = 0
        while piece := await loop.sock_recv(made, RECEIVE_BYTES):
            size += len(piece)
        return size


async def test_slow_readers_of_metrics_get_all_and_leave_nothing_in_the_log(host: Host) -> None:
    sizes = await asyncio.gather(*(read_slowly(host.address) for _ in range(SCRAPES)))
    assert min(sizes) > 10 * RECEIVE_BYTES
    log = (host.folder / "bookie.log").read_text()
    assert "Traceback" not in log, log[-2000:]
    assert len(log.splitlines()) < SCRAPES


@pytest.mark.parametrize("called", ["bookie-1:8000", "bookie-1.example", "10.0.0.1", ""])
def test_metrics_and_health_answer_by_any_name(host: Host, called: str) -> None:
    for path in ("/metrics", "/livez"):
        assert get(host.address, PORT, path, called) == 200


def test_other_pages_answer_by_their_own_names_only(host: Host) -> None:
    """DNS rebinding: these tell more, and change something."""
    for path in ("/info", "/api/v1/ledger/list", "/api/v1/bookie/sanity"):
        assert get(host.address, PORT, path, "bookie-1:8000") == 403
        assert get(host.address, PORT, path) == 200


@pytest.mark.parametrize(
    ("command", "port"),
    [("autorecovery", HEALER_PORT), ("janitor", JANITOR_PORT), ("console", CONSOLE_PORT)],
)
def test_services_are_scraped_by_the_names_of_the_example(
    host: Host, command: str, port: int, tmp_path: Path
) -> None:
    """With the options of the shipped unit, and by the names and ports of the shipped example."""
    unit = (ROOT / "packaging" / "systemd" / f"fastbk-{command}.service").read_text()
    options = re.findall(r"^#   FASTBK_OPTIONS=(.+)$", unit, re.MULTILINE)[0].split()
    targets = re.findall(
        rf'"([a-z]+-\d):{port}"', (FOLDER / "prometheus" / "prometheus.yml").read_text()
    )
    entered = [
        "ip", "netns", "exec", host.name,
        sys.executable, "-m", "fastbk.cli", command, "--metadata", uri_of(host), *options,
    ]  # fmt: skip
    with open(tmp_path / "log", "wb") as log:
        environment = {**os.environ, "STATE_DIRECTORY": str(tmp_path)}
        process = subprocess.Popen(entered, stdout=log, stderr=log, env=environment)
    try:
        wait_until(lambda: answers(host.address, port), "its pages", WAIT_S)
        assert targets
        for called in targets:
            assert get(host.address, port, "/metrics", f"{called}:{port}") == 200
        if command != "console":
            assert get(host.address, port, "/events", host.address) == 401
    finally:
        process.terminate()
        process.wait(WAIT_S)
