"""`./dev load`: locust against a real cluster, headless, under faults, on two processes; and what is read back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.testing import LocalCluster
from loadtest import kept
from tests.tools.load import BROKEN, ROOT, Wish, cluster_of, ensure_venv, load, run_locust

SECONDS = 30.0 if os.environ.get("FASTBK_TIER") == "all" else 5.0
KINDS = {
    "append small", "append medium", "append large", "append batch", "append ten", "tail", "catch up", "read random",
    "create ledger", "open and read ledger", "close ledger", "delete ledger", "stream append", "cursor read",
    "cursor ack",
}  # fmt: skip
FIRST_RUN_S = 400
"""The first run makes locust's virtual environment."""

pytestmark = pytest.mark.timeout(FIRST_RUN_S)


def test_all_users_on_two_processes_go_on_while_a_bookie_is_killed_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    wish = Wish(SECONDS, users=20, processes=2, chaos="1s kill 0; 2s start 0; 3s kill 1 journal")
    code, results = load(wish, tmp_path)
    assert results is not None
    requests = results["requests"]
    assert code == 0, {kind: one["failures"] for kind, one in requests.items()}
    assert requests.keys() - {"read own"} == KINDS
    assert results["processes"] == 2
    assert results["users"] == 20
    assert [text for _, text in results["faults"]][:1] == ["kill 0"]
    for one in requests.values():
        assert 1 <= one["p50_us"] <= one["p99_us"] <= one["max_us"]
    # Of the ledgers that are deleted at once nothing is read back, of all others everything.
    appended = sum(requests[f"append {kind}"]["count"] for kind in ("small", "medium", "large"))
    appended += 100 * requests["append batch"]["count"] + requests["tail"]["count"]
    assert results["audit"]["entries"] >= appended + requests["stream append"]["count"]
    assert results["audit"]["lost"] == 0
    page = (tmp_path / "load.html").read_text()
    assert "append small" in page
    assert "kill 0" in page


def test_thresholds_end_a_run_with_their_own_code_and_a_shape_ends_by_itself(
    tmp_path: Path,
) -> None:
    wish = Wish(2.0, users=4, shape="spike", kinds=["SmallAppends"])
    wish.thresholds = "append small: p50 < 1us; *: failures < 1"
    code, results = load(wish, tmp_path)
    assert results is not None
    assert code == BROKEN
    assert [is_met for _, is_met in results["thresholds"]] == [False, True]
    assert results["users"] == 4


def test_what_is_not_there_any_more_or_has_other_bytes_is_found(tmp_path: Path) -> None:
    with LocalCluster(3) as cluster, fastbk.sync.connect(cluster.metadata_uri) as client:
        notes = []
        for number in range(3):
            with client.create_ledger() as writer:
                one = kept.Kept(number, 100, ledger_id=writer.ledger_id, count=10)
                writer.append_many([one.data(entry_id) for entry_id in range(10)])
            notes.append(one)
        client.namespace(kept.NAMESPACE).create()
        stream = client.namespace(kept.NAMESPACE).create_stream("s")
        notes.append(kept.Kept(7, 100, stream="s", count=4, failed=[2]))
        with stream.writer() as records:
            records.append_many([kept.record_of(notes[3], number) for number in (0, 1, 1, 3)])
        kept.write_notes(tmp_path, notes)
        assert kept.read_notes(tmp_path) == notes
        assert kept.audit(client, notes) == kept.Audit(33, 0, [])

        notes[0].count = 11
        notes[1].seed = 99
        client.delete_ledger(notes[2].ledger_id)
        notes[3].failed = []
        found = kept.audit(client, notes)
        assert found.lost == 1 + 10 + 10 + 1
        assert f"ledger {notes[0].ledger_id}: ends before entry 10" in found.losses
        assert "stream s: [2] are not there" in found.losses
        kept.delete(client, notes)
        assert list(client.list_ledgers()) == []


def test_clients_of_one_process_share_gevents_thread() -> None:
    """One native thread runs one event loop at a time: with a loop for each client the second would fail."""
    with LocalCluster(3) as cluster:
        command = [str(ensure_venv()), "-m", "tests.fixtures.gevent_clients", cluster.metadata_uri]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr[-3000:]


def test_without_a_cluster_it_says_so_and_shows_no_stacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wish = Wish(1.0, users=1, metadata=f"sqlite:{tmp_path}/m.sqlite", kinds=["SmallAppends"])
    with cluster_of(wish) as (uri, cluster):
        assert cluster is None
        assert run_locust(uri, wish, tmp_path / "load.json", tmp_path / "notes") == 1
    said = capfd.readouterr().err
    assert "this user cannot begin: there is no cluster at sqlite:" in said
    assert "Traceback" not in said
