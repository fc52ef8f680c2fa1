"""`fastbk bookie maintenance`: the bookie refuses adds and may be away; healing waits for the end of its time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import fastbk.sync
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as made:
        yield made


@pytest.fixture(scope="module")
def cli(cluster: LocalCluster) -> Iterator[Cli]:
    """Commands, with AutoRecovery beside them."""
    made = Cli(cluster.metadata_uri)
    healing = made.start("autorecovery")
    yield made
    healing.terminate()
    healing.communicate(timeout=30.0)


def set_delay(cluster: LocalCluster, seconds: int) -> None:
    """Have lost bookies be due after so long."""
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        client.call_store(lambda store: store.coordination.set_lost_bookie_delay(seconds))


def waits_of(cli: Cli) -> tuple[list[str], dict[str, str]]:
    """Return which bookies are due, and which are held and why."""
    _, answer, _ = cli.answer("cluster", "heal")
    return answer["audit"]["due"], answer["audit"]["held"]


def test_a_bookie_in_maintenance_is_read_only_and_its_loss_is_held(
    cluster: LocalCluster, cli: Cli
) -> None:
    set_delay(cluster, 1)
    text = cli("bookie", "maintenance", "bookie-2", "--for", "10min", "--reason", "a new disk")
    assert text.startswith("bookie-2 is in maintenance until ") and "it refuses normal adds" in text
    code, status, _ = cli.answer("cluster", "status")
    assert code == 1 and status["bookies"]["read-only"] == 1
    assert status["maintenance"]["bookie-2"]["reason"] == "a new disk"
    assert "bookie-2 is in maintenance for another 10 min: a new disk\n" in cli(
        "cluster", "status", code=1
    )
    cluster.stop_bookie(1)
    wait_until(lambda: "bookie-2" in waits_of(cli)[1], "the loss is seen, and held")
    # What is due without maintenance after a second is not after four of them.
    end_s = time.monotonic() + 4.0
    while time.monotonic() < end_s:
        assert waits_of(cli) == ([], {"bookie-2": "it is in maintenance: a new disk"})
    assert (
        cli("bookie", "maintenance", "bookie-2", "--end") == "maintenance of bookie-2 has ended\n"
    )
    assert "could not be made to take adds" in cli.err  # it is down
    assert "If it is down, its own log says why" in cli.err
    text = cli("bookie", "maintenance", "bookie-2", "--for", "10min")
    assert "it takes adds whenever it is up, and its ledgers are not copied" in text
    cli("bookie", "maintenance", "bookie-2", "--end")
    wait_until(lambda: waits_of(cli) == (["bookie-2"], {}), "it is due without maintenance")
    cluster.start_bookie(1)
    cluster.wait_ready(1)
    assert cli.answer("cluster", "status")[1]["bookies"]["up"] == 3
    assert cli("bookie", "maintenance") == "no bookie is in maintenance\n"


def test_it_can_leave_a_bookie_writable_and_ends_by_itself(cluster: LocalCluster, cli: Cli) -> None:
    cli("bookie", "maintenance", "bookie-1", "--for", "500ms", "--keep-writable")
    assert cli.answer("cluster", "status")[1]["bookies"]["up"] == 3
    wait_until(lambda: cli.json("bookie", "maintenance") == {}, "it ends by itself")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bookie-1",), "give --for TIME"),
        (("--for", "1h"), "give the ID"),
        (("bookie-1", "--for", "25h"), "at most 24h"),
        (("bookie-1", "--for", "soon"), "is not a duration"),
        (("bookie-9", "--for", "1h"), "no bookie bookie-9; it has: bookie-1, bookie-2, bookie-3"),
        (("bookie-1", "--for", "1h", "--end"), "--for TIME or --end"),
    ],
)
def test_wrong_words_change_nothing(cli: Cli, words: tuple[str, ...], said: str) -> None:
    assert said in cli.fails("bookie", "maintenance", *words, code=2)
    assert cli.json("bookie", "maintenance") == {}


def test_it_ends_with_the_bookie(cluster: LocalCluster, cli: Cli) -> None:
    """Another bookie may get the id."""
    cli("bookie", "maintenance", "bookie-3", "--for", "10min", "--keep-writable")
    cluster.stop_bookie(2)
    cli("cluster", "cookies", "--forget", "bookie-3", "--yes")
    assert cli.json("bookie", "maintenance") == {}
