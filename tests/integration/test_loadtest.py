"""`./dev load`: locust against a real cluster, under faults, on two processes, and the audit at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

import fastbk.sync
import tools.load
from fastbk.testing import LocalCluster
from loadtest import kept
from loadtest.run import BROKEN
from tests.fixtures.wait import wait_until
from tools.environments import ensure_environment
from tools.load import LOST, REQUIREMENTS, ROOT, VENV, Wish, cluster_of, free_port, load, run_locust

SECONDS_MAX = 60.0
KINDS = {
    "append small", "append medium", "append large", "append batch", "append ten", "tail", "catch up", "read random",
    "create ledger", "open and read ledger", "close ledger", "delete ledger", "stream append", "cursor read",
    "cursor ack",
}  # fmt: skip
FIRST_RUN_S = 400
"""The first run makes locust's virtual environment."""

pytestmark = pytest.mark.timeout(FIRST_RUN_S)


@pytest.mark.long
def test_all_users_on_two_processes_go_on_while_a_bookie_is_killed_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTBK_LOAD_UNTIL", ",".join(KINDS))
    monkeypatch.setenv("FASTBK_LOAD_PAUSE_S", "0.02")
    wish = Wish(
        SECONDS_MAX, users=10, processes=2, chaos="0.5s kill 0; 1s start 0; 2s kill 1 journal"
    )
    code, results = load(wish, tmp_path)
    assert results is not None
    requests = results["requests"]
    assert code == 0, results["errors"]
    assert requests.keys() - {"read own"} == KINDS
    assert (results["processes"], results["users"]) == (2, 10)
    assert [text for _, text in results["faults"]][:1] == ["kill 0"]
    for one in requests.values():
        assert 1 <= one["p50_us"] <= one["p99_us"] <= one["max_us"]
    # Nothing is read back of ledgers that their users delete at once.
    appended = sum(requests[f"append {kind}"]["count"] for kind in ("small", "medium", "large"))
    appended += 100 * requests["append batch"]["count"] + requests["tail"]["count"]
    assert results["audit"]["entries"] >= appended + requests["stream append"]["count"]
    assert results["audit"]["lost"] == 0
    page = (tmp_path / "load.html").read_text()
    assert "append small" in page
    assert "kill 0" in page


@pytest.mark.long
def test_the_figures_of_two_processes_have_each_request_once_and_full_ledgers_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their notes of acknowledged entries, which the audit reads, are a second count of the same."""
    monkeypatch.setenv("FASTBK_LOAD_KEPT_BYTES", "20000")
    monkeypatch.setenv("FASTBK_LOAD_UNTIL", "append small,stream append")
    wish = Wish(SECONDS_MAX, users=4, processes=2, shape="soak", tls=True)
    wish.kinds = ["SmallAppends", "StreamAppends"]
    wish.thresholds = "append small: p50 < 1us; *: failures < 1"
    code, results = load(wish, tmp_path)
    assert results is not None
    assert (code, results["audit"]["lost"]) == (BROKEN, 0)
    assert [is_met for _, is_met in results["thresholds"]] == [False, True]
    requests = results["requests"]
    counts = {kind: one["count"] for kind, one in requests.items()}
    assert results["audit"]["entries"] == counts["append small"] + counts["stream append"]
    assert results["audit"]["ledgers"] > wish.users
    slots = sum(slot["per_s"] * results["slot_s"] for slot in results["slots"])
    assert slots == sum(counts.values())
    assert (results["users"], results["processes"]) == (4, 2)


SLOW_TO_STOP = """
import time
from loadtest.locustfile import *
from locust import events
from locust.runners import WorkerRunner

@events.test_stop.add_listener
def be_busy(environment, **_):
    if isinstance(environment.runner, WorkerRunner):
        time.sleep(1.5)

# It comes before the one that reports.
events.test_stop._handlers.insert(0, events.test_stop._handlers.pop())
"""


@pytest.mark.long
def test_the_last_figures_of_workers_that_are_slow_to_stop_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locust waits for half a second: on a busy machine requests were audited that no figure counted."""
    (tmp_path / "locustfile.py").write_text(SLOW_TO_STOP)
    monkeypatch.setattr(tools.load, "LOCUSTFILE", tmp_path / "locustfile.py")
    monkeypatch.setenv("FASTBK_LOAD_UNTIL", "append small")
    wish = Wish(SECONDS_MAX, users=2, processes=2, kinds=["SmallAppends"])
    code, results = load(wish, tmp_path)
    assert results is not None
    assert code == 0, results["errors"]
    assert results["audit"]["entries"] == results["requests"]["append small"]["count"]


def test_a_lost_entry_ends_the_run_with_its_own_code(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss: a ledger disappears between the run and the audit."""
    audit = kept.audit

    def lose(client: fastbk.sync.Client, notes: list[kept.Kept]) -> kept.Audit:
        client.delete_ledger(notes[0].ledger_id)
        return audit(client, notes)

    monkeypatch.setattr(kept, "audit", lose)
    monkeypatch.setenv("FASTBK_LOAD_UNTIL", "append small")
    wish = Wish(SECONDS_MAX, users=1, kinds=["SmallAppends"], metadata=cluster.metadata_uri)
    code, results = load(wish, tmp_path)
    assert results is not None
    assert code == LOST
    assert results["audit"]["lost"] == results["requests"]["append small"]["count"]


def test_missing_entries_and_other_bytes_are_found(
    client: fastbk.sync.Client, tmp_path: Path
) -> None:
    notes = []
    for number in range(3):
        with client.create_ledger() as writer:
            one = kept.Kept(number, 100, ledger_id=writer.ledger_id, count=10)
            writer.append_many([one.data(entry_id) for entry_id in range(10)])
        notes.append(one)
    client.namespace(kept.NAMESPACE).create(exist_ok=True)
    stream = client.namespace(kept.NAMESPACE).create_stream("s")
    notes.append(kept.Kept(7, 100, stream="s", count=4, failed=[2]))
    with stream.writer() as records:
        records.append_many([notes[3].record(number) for number in (0, 1, 1, 3)])
    notes.append(kept.Kept(0, 0, audit=kept.Audit(1, 5)))
    kept.write_notes(tmp_path, notes)
    assert kept.read_notes(tmp_path) == notes
    assert kept.audit(client, notes) == kept.Audit(5, 38)

    notes[0].count = 11
    notes[1].seed = 99
    client.delete_ledger(notes[2].ledger_id)
    notes[3].failed = []
    found = kept.audit(client, notes)
    assert found.lost == 1 + 10 + 10 + 1
    assert found.is_unreadable
    assert f"ledger {notes[0].ledger_id}: ends before entry 10" in found.losses
    assert "stream s: [2] are missing" in found.losses
    kept.delete(client, notes)
    left = {ledger.ledger_id for ledger in client.list_ledgers()}
    assert not left & {one.ledger_id for one in notes}
    assert "s" not in [info.name for info in client.namespace(kept.NAMESPACE).streams()]


def test_clients_of_one_process_share_gevents_thread(
    client: fastbk.sync.Client, cluster: LocalCluster, own_name: str
) -> None:
    """One native thread runs one event loop at a time: with a loop for each client the second would fail."""
    client.namespace(own_name).create()
    command = [str(ensure_environment(VENV, *REQUIREMENTS)), "-m", "tests.fixtures.gevent_clients"]
    ended = subprocess.run(
        [*command, cluster.metadata_uri, own_name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr[-3000:]


def test_gevent_without_its_patch_is_warned_of(cluster: LocalCluster) -> None:
    """A call then keeps all greenlets from running, and no `gevent.Timeout` ends it."""
    program = """
import sys, gevent, fastbk.sync
client = fastbk.sync.connect(sys.argv[1])
gevent.spawn(client.list_bookies).join()
client.close()
"""
    ended = subprocess.run(
        [str(ensure_environment(VENV, *REQUIREMENTS)), "-c", program, cluster.metadata_uri],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0 and "call gevent.monkey.patch_all() before" in ended.stderr


@pytest.mark.long
def test_the_web_interface_has_the_exact_figures_of_each_run(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    port = free_port()

    def get(path: str, data: bytes | None = None) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=30) as reply:
            text: str = reply.read().decode()
        return text

    def post(path: str, **form: str) -> None:
        get(path, urllib.parse.urlencode(form).encode())

    def answers() -> bool:
        try:
            return "Load test" in get("/exact")
        except OSError:
            return False

    def rows() -> dict[str, int]:
        (tab,) = json.loads(get("/stats/requests"))["extended_stats"]
        return {row["name"]: row["count"] for row in tab["data"]}

    with subprocess.Popen(
        [
            str(ensure_environment(VENV, *REQUIREMENTS)),
            "-m",
            "locust",
            "-f",
            "loadtest/locustfile.py",
            "--web-host",
            "127.0.0.1",
        ]
        + ["--web-port", str(port), "--loglevel", "ERROR", "SmallAppends"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FASTBK_METADATA": cluster.metadata_uri,
            "FASTBK_LOAD_OUT": str(tmp_path / "load.json"),
            "FASTBK_LOAD_NOTES": str(tmp_path),
        },
    ) as locust:
        try:
            wait_until(answers, "the web interface", deadline_s=60)
            assert "Exact figures" in get("/")
            post("/swarm", user_count="1", spawn_rate="1")
            wait_until(lambda: rows().get("append small", 0) > 100, "a hundred requests")
            assert "append small" in get("/exact")
            post("/stop")
            first = rows()["append small"]
            post("/swarm", user_count="1", spawn_rate="1")
            wait_until(lambda: rows().get("append small", first) != first, "the next run")
        finally:
            locust.send_signal(signal.SIGINT)
    assert locust.returncode == 0
    count = json.loads((tmp_path / "load.json").read_text())["requests"]["append small"]["count"]
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        notes = kept.read_notes(tmp_path)
        assert kept.audit(client, notes) == kept.Audit(len(notes), first + count)
        kept.delete(client, notes)


def test_without_a_cluster_it_says_so_and_shows_no_stacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wish = Wish(1.0, users=1, metadata=f"sqlite:{tmp_path}/m.sqlite", kinds=["SmallAppends"])
    with cluster_of(wish) as (uri, started):
        assert started is None
        assert run_locust(uri, wish, tmp_path / "load.json", tmp_path / "notes") == 1
    output = capfd.readouterr().err
    assert "this user cannot begin: there is no cluster at sqlite:" in output
    assert "Traceback" not in output
