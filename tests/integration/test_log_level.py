"""The log level of a running bookie: it reaches every process, outlives a child's death, and ends with a restart."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until

ROLES = {"supervisor", "worker", "journal", "index", "gc"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as made:
        yield made


@pytest.fixture
def cli(cluster: LocalCluster) -> Cli:
    return Cli(cluster.metadata_uri)


def lines(cluster: LocalCluster, since: int) -> list[dict[str, object]]:
    """Return the lines of the bookie's log behind the first `since` bytes."""
    text = log_of(cluster).read_bytes()[since:].decode()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def log_of(cluster: LocalCluster) -> Path:
    return cluster.data / "bookie-1" / "bookie.log"


def roles_that_debug(cluster: LocalCluster, since: int) -> set[object]:
    return {
        one.get("role", "supervisor") for one in lines(cluster, since) if one["level"] == "debug"
    }


def test_the_level_reaches_all_processes_and_those_that_come_after_them(
    cluster: LocalCluster, cli: Cli
) -> None:
    since = log_of(cluster).stat().st_size
    assert cli("bookie", "log-level") == "info\n"
    assert roles_that_debug(cluster, since) == set()
    answer = cli.json("bookie", "log-level", "bookie-1", "debug")
    assert answer["level"] == "debug" and len(answer["processes"]) >= len(ROLES)  # type: ignore[arg-type]
    cli("bookie", "log-level")
    # Its own message is the first that each child logs at the new level: the one behind it shows that it holds.
    cluster.kill(0, "worker.0")
    cluster.wait_ready(0, boots_min=2)
    wait_until(lambda: roles_that_debug(cluster, since) >= ROLES, "each process logs at debug")
    cluster.restart_bookie(0)
    assert cli("bookie", "log-level") == "info\n"


def test_a_running_child_changes_its_level(cluster: LocalCluster, cli: Cli) -> None:
    """Not only those that are started later: each logs its next control message."""
    since = log_of(cluster).stat().st_size
    cli("bookie", "log-level", "bookie-1", "debug")
    cli("bookie", "log-level", "bookie-1", "debug")
    wait_until(lambda: roles_that_debug(cluster, since) >= ROLES, "each process logs at debug")

    def is_quiet() -> bool:
        """Whether only the change itself is logged. The children hear of the first one a little later."""
        since = log_of(cluster).stat().st_size
        cli("bookie", "log-level", "bookie-1", "error")
        return [one["event"] for one in lines(cluster, since)] == ["log.level_changed"]

    wait_until(is_quiet, "no process logs at debug")
    cli("bookie", "log-level", "bookie-1", "info")


def test_a_wrong_level_changes_nothing(cluster: LocalCluster, cli: Cli) -> None:
    assert "choose one of debug, info, warning, error" in cli.fails(
        "bookie", "log-level", "bookie-1", "loud", code=2
    )
    port = cluster.bookies[0].http_port
    assert port is not None
    for body in (b"{}", b'{"level": "loud"}', b'{"level": ["debug"]}', b"debug"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("PUT", "/log_level", body)
        answer = connection.getresponse()
        assert answer.status == 400 and "error" in json.loads(answer.read())
        connection.close()
    assert cli("bookie", "log-level") == "info\n"
