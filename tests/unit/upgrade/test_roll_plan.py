"""The order of a rolling upgrade, and that its next step begins only when nothing is in doubt. INV-U3."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fastbk.errors import ConfigError
from fastbk.upgrade.roll_plan import (
    DOUBT_S,
    Action,
    Done,
    Observation,
    Restart,
    Roll,
    RollBookie,
    RollLimits,
    Step,
    Stop,
    Wait,
    plan,
)

LIMITS = RollLimits(ready_s=60.0, whole_s=120.0)


def bookies(*names: str, location: str = "/r/a") -> dict[str, RollBookie]:
    return {one: RollBookie(one, location, version="1", starts=3) for one in names}


class Cluster:
    """A cluster that a test changes, and the roll of it; time passes by a second a look."""

    def __init__(self, count: int = 3, to_version: str = "2") -> None:
        self.bookies = bookies(*(f"b{one}" for one in range(count)))
        self.missing = ""
        self.doubt = ""
        self.now_s = 100.0
        self.roll = Roll(plan(self.bookies.values()), LIMITS, to_version)

    def look(self) -> Action:
        self.now_s += 1.0
        missing = self.missing if self.roll.wants_missing else None
        return self.roll.decide(Observation(dict(self.bookies), missing, self.doubt), self.now_s)

    def change(self, name: str, **fields: object) -> None:
        self.bookies[name] = replace(self.bookies[name], **fields)

    def restart(self, name: str, version: str = "2") -> None:
        """Do what the command does."""
        self.change(name, version=version, starts=(self.bookies[name].starts or 0) + 1)
        self.roll.restarted(self.now_s)

    def until(self, *kinds: type) -> Action:
        """Look until it is one of these."""
        for _ in range(1000):
            if isinstance(action := self.look(), kinds):
                return action
        raise AssertionError(f"none of {kinds} within 1000 looks: {action}")


# --- the plan -------------------------------------------------------------------------------------------------------


def test_a_failure_domain_is_finished_before_the_next_one_begins() -> None:
    all_bookies = [
        RollBookie("b1", "/east/1"), RollBookie("b2", "/west/1"), RollBookie("b3", "/east/2"),
        RollBookie("b4", "/east/1"), RollBookie("b5", "/west/1"),
    ]  # fmt: skip
    one_by_one = plan(all_bookies)
    assert [one.bookies for one in one_by_one] == [("b1",), ("b4",), ("b3",), ("b2",), ("b5",)]
    two = plan(all_bookies, at_once=2)
    assert two == (
        Step("/east/1", ("b1", "b4")),
        Step("/east/2", ("b3",)),
        Step("/west/1", ("b2", "b5")),
    )


def test_where_nobody_said_where_bookies_are_it_is_one_at_a_time() -> None:
    steps = plan([RollBookie("b1"), RollBookie("b2")], at_once=2)
    assert [one.bookies for one in steps] == [("b1",), ("b2",)]


def test_those_that_have_the_version_and_those_of_apache_are_left_out() -> None:
    known = [
        RollBookie("b1", version="2"),
        RollBookie("b2", version="1"),
        RollBookie("j", starts=None),
    ]
    assert [one.bookies for one in plan(known, to_version="2")] == [("b2",)]
    assert [one.bookies for one in plan(known)] == [("b1",), ("b2",)]


def test_it_goes_on_with_the_bookie_that_is_named() -> None:
    known = bookies("b1", "b2", "b3").values()
    assert [one.bookies for one in plan(known, start_from="b2")] == [("b2",), ("b3",)]
    with pytest.raises(ConfigError, match="no such bookie: one of b1, b2, b3"):
        plan(known, start_from="b9")
    with pytest.raises(ConfigError, match="--at-once 0"):
        plan(known, at_once=0)


# --- the steps ------------------------------------------------------------------------------------------------------


def test_bookies_are_restarted_one_after_the_other() -> None:
    cluster = Cluster()
    for name in ("b0", "b1", "b2"):
        assert cluster.until(Restart, Stop) == Restart((name,))
        cluster.restart(name)
    assert cluster.until(Done, Stop) == Done()
    assert cluster.look() == Done()


def test_nothing_is_done_where_there_is_nothing_to_do() -> None:
    assert Roll(()).decide(Observation({}), 0.0) == Done()


def test_the_next_one_waits_until_the_cluster_is_whole() -> None:
    cluster = Cluster()
    cluster.until(Restart)
    cluster.missing = "ledger 7 on b0"
    cluster.restart("b0")
    for _ in range(100):
        assert isinstance(cluster.look(), Wait)
    cluster.missing = ""
    assert cluster.until(Restart, Stop) == Restart(("b1",))


def test_copies_that_do_not_come_back_stop_it_behind_that_bookie() -> None:
    cluster = Cluster()
    cluster.until(Restart)
    cluster.missing = "ledger 7 on b0"
    cluster.restart("b0")
    stop = cluster.until(Restart, Stop)
    assert isinstance(stop, Stop) and "ledger 7 on b0 (for 120 s)" in stop.reason
    assert stop.next_from == "b1", "b0 serves its new version"


def test_copies_that_are_missing_at_the_start_stop_it_before_the_first_restart() -> None:
    cluster = Cluster()
    cluster.missing = "ledger 7 on b2"
    stop = cluster.until(Restart, Stop)
    assert isinstance(stop, Stop) and stop.next_from == "b0"


def test_another_bookie_that_is_away_stops_it_unless_it_comes_back_soon() -> None:
    for phase in ("before", "serving", "whole"):
        cluster = Cluster()
        if phase != "before":
            cluster.until(Restart)
            cluster.roll.restarted(cluster.now_s) if phase == "serving" else cluster.restart("b0")
        if phase == "whole":
            cluster.missing = "ledger 7 on b0"
        cluster.change("b2", state="silent", reason="no answer")
        for _ in range(int(DOUBT_S) - 1):
            assert isinstance(cluster.look(), Wait), phase
        cluster.change("b2", state="up")
        assert isinstance(cluster.look(), Wait | Restart)
        if phase == "before":
            continue
        cluster.change("b2", state="down", reason="")
        stop = cluster.until(Restart, Stop)
        assert isinstance(stop, Stop) and "bookie b2 is down" in stop.reason, phase


def test_a_command_that_restarted_nothing_stops_it() -> None:
    cluster = Cluster()
    cluster.until(Restart)
    cluster.roll.restarted(cluster.now_s)
    stop = cluster.until(Restart, Stop, Done)
    assert isinstance(stop, Stop) and "no new start of bookie b0" in stop.reason
    assert stop.reason.endswith(": did the command restart it?")
    assert stop.next_from == "b0"


def test_waiting_for_a_restarted_bookie_does_not_doubt_the_command() -> None:
    cluster = Cluster()
    cluster.until(Restart)
    cluster.roll.restarted(cluster.now_s)
    assert cluster.look() == Wait("metadata has counted no new start of bookie b0")


def test_a_bookie_that_does_not_serve_stops_it() -> None:
    cluster = Cluster()
    cluster.until(Restart)
    cluster.restart("b0")
    cluster.change("b0", state="read-only", reason="its disk is full")
    stop = cluster.until(Restart, Stop)
    assert isinstance(stop, Stop)
    assert "bookie b0 is read-only: its disk is full (for 60 s)" in stop.reason
    assert stop.next_from == "b0"


def test_a_bookie_that_comes_back_with_the_old_version_stops_it_at_once() -> None:
    cluster = Cluster()
    cluster.until(Restart)
    cluster.restart("b0", version="1")
    assert cluster.look() == Stop("bookie b0 came back with version 1, not 2", "b0")
    any_version = Cluster(to_version="")
    any_version.until(Restart)
    any_version.restart("b0", version="1")
    assert any_version.until(Restart, Stop) == Restart(("b1",))


def test_a_bookie_that_starts_once_more_by_itself_stops_it() -> None:
    cluster = Cluster()
    cluster.until(Restart)
    cluster.restart("b0")
    cluster.missing = "ledger 7 on b0"
    assert isinstance(cluster.look(), Wait)
    cluster.change("b0", starts=9)
    stop = cluster.look()
    assert isinstance(stop, Stop) and "started again" in stop.reason


def test_a_command_that_fails_stops_it() -> None:
    cluster = Cluster()
    cluster.until(Restart)
    assert cluster.roll.failed("it ended with 1") == Stop("it ended with 1", "b0")


def test_a_doubt_stops_it_at_once() -> None:
    cluster = Cluster()
    cluster.doubt = "metadata is on hold"
    assert cluster.look() == Stop("metadata is on hold", "b0")


def test_a_bookie_that_is_down_is_restarted_whatever_its_own_copies_miss() -> None:
    cluster = Cluster()
    cluster.change("b0", state="down")
    assert cluster.roll.may_miss == ("b0",)
    assert cluster.until(Restart, Stop) == Restart(("b0",))
    assert cluster.roll.may_miss == ()
    cluster.change("b0", state="up")
    cluster.restart("b0")
    cluster.change("b2", state="down")
    assert isinstance(cluster.until(Restart, Stop), Stop), "b2 is another one"


def test_no_order_of_faults_has_two_domains_away(rng: random.Random) -> None:
    """INV-U3: whenever a bookie is restarted, all others have served and nothing is missing at that look."""
    for _ in range(300):
        cluster = Cluster(rng.randint(1, 5), to_version=rng.choice(("", "2")))
        for _ in range(400):
            for name in cluster.bookies:
                if rng.random() < 0.05:
                    state = rng.choice(("up", "up", "up", "silent", "down", "frozen"))
                    cluster.change(name, state=state)
            cluster.missing = rng.choice(("", "", "", "ledger 1 on b0"))
            action = cluster.look()
            if isinstance(action, Stop | Done):
                break
            if isinstance(action, Restart):
                others = [
                    one for name, one in cluster.bookies.items() if name not in action.bookies
                ]
                assert all(one.state == "up" for one in others)
                assert not cluster.missing
                (name,) = action.bookies
                cluster.restart(name)
                cluster.change(name, state=rng.choice(("up", "down", "silent")))
