"""One bookie's journal takes 30 ms longer: how an operator learns of it, from the first second to the alert.

The bookies' pages, `fastbk top` and Prometheus with the rules of `monitoring/` see the same fault. Prometheus comes
from Debian, in the ALL tier only, and its rules run sixty times faster: `rules_test.yml` has the true times.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastbk.devcluster import Bookie
from fastbk.testing import LocalCluster
from tests.fixtures.appending import appending
from tests.fixtures.cli import Cli
from tests.fixtures.monitoring import RULES, alerts, scrape_config
from tests.fixtures.pages import json_page
from tests.fixtures.prometheus import Prometheus, faster, program
from tests.fixtures.wait import crowd, wait_until

JOURNAL_MS = 30
SLOW = 2
SHOWN_WITHIN_S = 5.0
WAIT_S = 120.0
ALERT = "FastbkCommitsSlow"


@contextmanager
def watched(cluster: LocalCluster, folder: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes a cluster's bookies, with all alerts; services are not there."""
    listened = [f"127.0.0.1:{one.http_port}" for one in cluster.bookies]
    with Prometheus(
        folder / "prometheus", scrape_config(listened), faster(RULES.read_text())
    ) as prometheus:
        wait_until(
            lambda: prometheus.targets_up() == len(listened), "all bookies are scraped", WAIT_S
        )
        yield prometheus


def newest_event(bookie: Bookie) -> int:
    """Return what `after` has to be for the events that follow."""
    return int(json_page(bookie, "/events?limit=1000")["next"])


def seconds_until_in_the_events(bookie: Bookie, after: int, began_s: float) -> float:
    """Wait for an event that says why, and return the seconds since `began_s`."""

    def is_there() -> bool:
        events = json_page(bookie, f"/events?after={after}&kind=stall")["events"]
        return any(
            one["event"] == "journal.slow" and "1 of 100 commits takes" in one["values"]["reason"]
            for one in events
        )

    wait_until(is_there, "journal.slow is in the events")
    return time.monotonic() - began_s


def seconds_until_at_the_top(cli: Cli, name: str, began_s: float) -> float:
    def is_first() -> bool:
        _, overview, _ = cli.answer("top", "--interval", "1")
        first = overview["bookies"][0]
        return first["bookie_id"] == name and any(
            "slow journal" in one["text"] for one in first["problems"]
        )

    wait_until(is_first, f"{name} is first, for its journal")
    return time.monotonic() - began_s


def for_s() -> float:
    """Return the alert's `for` as the faster rules have it."""
    match = re.search(r"for: (\d+)s", faster(alerts()[ALERT]))
    assert match is not None
    return float(match[1])


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_journal_delayed_by_30_ms_is_in_the_events_at_the_top_and_fires_its_alert(
    tmp_path: Path,
) -> None:
    program("prometheus")
    with LocalCluster(3) as cluster, appending(cluster), watched(cluster, tmp_path) as prometheus:
        slow = cluster.bookies[SLOW]
        alert = ALERT, f"127.0.0.1:{slow.http_port}"
        commits = f'rate(fastbk_journal_commit_seconds_count{{instance="{alert[1]}"}}[5s])'
        wait_until(lambda: prometheus.has_data(commits, time.time() - 5), "figures of commits")
        assert alert not in prometheus.alerts(), "before the fault"
        after = newest_event(slow)
        with ThreadPoolExecutor() as threads, cluster.delayed(SLOW, journal_ms=JOURNAL_MS):
            began_s, began_wall_s = time.monotonic(), time.time()
            reported = threads.submit(seconds_until_in_the_events, slow, after, began_s)
            took_s = {
                "at the top": seconds_until_at_the_top(
                    Cli(cluster.metadata_uri), slow.name, began_s
                ),
                "in the events": reported.result(),
            }
            print(took_s)
            assert max(took_s.values()) < SHOWN_WITHIN_S * crowd()
            wait_until(lambda: alert in prometheus.alerts(), "its alert's expression holds", WAIT_S)
            state, since_s = prometheus.alerts()[alert]
            assert (state, since_s > began_wall_s) == ("pending", True), (
                "an alert waits for its `for`"
            )
            wait_until(lambda: alert in prometheus.firing(), "its alert fires", WAIT_S)
            fired_s = time.time()
            print(
                f"pending {since_s - began_wall_s:.1f} s after the fault, firing {fired_s - since_s:.1f} s later"
            )
            assert prometheus.alerts()[alert] == ("firing", since_s), (
                "its expression held all the time"
            )
            assert fired_s - since_s > for_s()
        wait_until(
            lambda: alert not in prometheus.alerts(), "the alert ends with its fault", WAIT_S
        )
