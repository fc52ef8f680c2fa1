"""`fastbk bench` as a user runs it: its own service, its JSON, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastbk.testing import LocalCluster
from fastbk.units import KIB, MIB
from tests.fixtures.cli import Cli
from tests.native.compile import build_program
from tests.style.tree import ROOT
from tools.benchmark import bookie_loads
from tools.benchmark.cases import (
    Append,
    BesideC,
    DiskBytes,
    Read,
    ReadDuringWrites,
    Replicated,
    Restart,
    TailRead,
)
from tools.benchmark.trees import Tree, bookies_of
from tools.one_bookie import OneBookie, one_bookie


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run it as a user does."""
    command = [sys.executable, "-m", "fastbk.cli", "bench", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def bench_of(uri: str, *arguments: str) -> dict[str, Any]:
    """Run it on a cluster that runs, in this process."""
    cli = Cli(uri)
    code, answer, said = cli.answer("bench", *arguments)
    assert code == 0, said
    found: dict[str, Any] = answer
    return found


def test_append_says_all_that_is_promised_and_leaves_nothing(tmp_path: Path) -> None:
    check_append(bench(tmp_path, "append", "--window", "1", "--seconds", "0.2", "--ledgers", "3"))
    assert list(tmp_path.iterdir()) == []


def check_append(answer: dict[str, Any]) -> None:
    assert answer["errors"] == 0
    assert answer["entries"] > 0
    assert answer["adds_per_s"] > 0
    assert set(answer["latency_us"]) == {"p50", "p99", "p999", "max"}
    assert 0 < answer["latency_us"]["p50"] <= answer["latency_us"]["max"]
    assert set(answer["cpu_us_per_entry"]) == {"bookie", "client"}
    assert answer["cpu_us_per_entry"]["bookie"] > 0
    assert 0 < answer["disk_commit_us"]["p50"] <= answer["disk_commit_us"]["p99"]
    assert 20 < answer["bookie_pss_mb"] < 300
    assert answer["sample"]["checked"] > 0
    assert answer["sample"]["wrong"] == 0
    assert answer["quorum"] == {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    assert answer["backend"]


@pytest.mark.parametrize(
    "arguments", [[], ["--entries-a-read", "32", "--connections", "2", "--ledgers", "2"]]
)
def test_reads_are_checked_byte_by_byte(bookie: OneBookie, arguments: list[str]) -> None:
    uri = bookie.cluster.metadata_uri
    answer = bench_of(
        uri, "read", "--window", "20", "--seconds", "0.1", "--size", "300", *arguments
    )
    assert answer["errors"] == 0
    assert answer["reads_per_s"] > 0
    assert answer["entries_written"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["append", "--protocol", "v2", "--connections", "2", "--ledgers", "3"],
        ["append", "--protocol", "v3"],
        ["read", "--protocol", "v2", "--entries-a-read", "32"],
        ["read", "--protocol", "v3"],
    ],
)
def test_apaches_protocols_are_measured_and_checked_as_ours(
    bookie: OneBookie, arguments: list[str]
) -> None:
    uri = bookie.cluster.metadata_uri
    answer = bench_of(uri, *arguments, "--window", "20", "--seconds", "0.1", "--size", "300")
    assert answer["errors"] == 0
    assert answer["entries" if arguments[0] == "append" else "entries_written"] > 0
    assert answer["sample"]["checked"] > 0
    assert answer["sample"]["wrong"] == 0


@pytest.mark.long
def test_an_open_loop_keeps_its_rate_and_its_data_dir(tmp_path: Path) -> None:
    data = tmp_path / "data"
    answer = bench(
        tmp_path, "append", "--rate", "500", "--window", "50", "--seconds", "2", "--data", str(data)
    )
    check_append(answer)
    assert 800 <= answer["entries"] <= 1000
    assert (data / "metadata.sqlite").exists()


def test_a_running_cluster_is_measured_and_left_running(tmp_path: Path, bookie: OneBookie) -> None:
    answer = bench(
        tmp_path, "append", "--metadata", bookie.cluster.metadata_uri, "--seconds", "0.3"
    )
    assert answer["entries"] > 0
    assert answer["errors"] == 0
    # What is not ours to see is said to be unknown, in the same places.
    assert answer["disk_commit_us"] == {"p50": None, "p99": None, "direct": None}
    assert answer["cpu_us_per_entry"]["bookie"] is None
    assert answer["bookie_pss_mb"] is None
    bookie.cluster.refresh()
    assert bookie.cluster.bookies[0].is_ready


@pytest.mark.long
def test_bookies_that_are_known_by_a_name_are_loaded(tmp_path: Path) -> None:
    with LocalCluster(
        1, data=tmp_path, settings={"bookie": {"advertised": "localhost"}}
    ) as cluster:
        for what in ("append", "read"):
            assert bench_of(cluster.metadata_uri, what, "--seconds", "0.2")["errors"] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--window", "0"], "--window must be at least 1"),
        (["--connections", "2"], "--ledgers must be at least --connections"),
        (["--metadata", "sqlite:/nowhere/x"], "nowhere"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], says: str) -> None:
    cli = Cli("sqlite:/unused")
    code, _ = cli.run("bench", "append", *arguments)
    assert code in (1, 2)
    assert says in cli.err
    assert cli.err.count("\n") == 1


class SmallRead(Read):
    """As a case's, of a smaller ledger."""

    entries = 2000


@pytest.fixture(scope="module")
def bookie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBookie]:
    with one_bookie(tmp_path_factory.mktemp("bench") / "cluster") as running:
        yield running


COMMON = {"per_s", "p50_us", "p99_us", "p999_us", "bookie_us", "client_us", "memory_mb"}


@pytest.mark.parametrize(
    ("what", "more"),
    [
        (Append(1), {"disk_p50_us"}),
        (Append(20, size_bytes=100, ledgers=4, connections=2), set()),
        (SmallRead(10, "first pass"), set()),
        (SmallRead(10, "hot", 64), set()),
        (SmallRead(10, "hot", is_random=True), set()),
        (TailRead(20, every=4), {"tail_p50_us", "tail_p99_us", "tail_p999_us"}),
        (ReadDuringWrites(20, 5), {"reads_per_s", "read_p50_us", "read_p99_us", "read_p999_us"}),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2])
def test_each_load_of_dev_bench_gives_its_figures(
    bookie: OneBookie, what: object, more: set[str], protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Read, "entries", SmallRead.entries)
    measure = next(
        function for kind, function in bookie_loads.ON_ONE_BOOKIE.items() if isinstance(what, kind)
    )
    bookie.protocol = protocol
    figures = measure(bookie, what, 0.05)
    check_figures(figures, more)


@pytest.mark.parametrize("ledgers", [1, 3])
def test_a_sustained_load_counts_all_bytes_and_what_stays_in_the_journal(
    bookie: OneBookie, ledgers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie, "steady_bytes", MIB)
    bookie.protocol = 0
    what = Append(100, size_bytes=16 * KIB, ledgers=ledgers, seconds_min=20.0)
    figures = bookie_loads.append(bookie, what, 0.2)
    check_figures(figures, {"disk_bytes", "kept_share"})
    assert figures["disk_bytes"] > 0.5
    # The index counts what the journal wrote a little before.
    assert figures["kept_share"] < 2


def test_bytes_to_disk_are_counted_until_nothing_is_left_to_write(
    bookie: OneBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the bookie's own metrics and by the kernel: its flushes are in both."""
    monkeypatch.setattr(bookie, "steady_bytes", MIB)
    monkeypatch.setattr(bookie, "flush_interval_s", 0.0)
    bookie.protocol = 0
    before_bytes = bookie_loads.kernel_written_bytes(bookie)
    figures = bookie_loads.disk_bytes(bookie, DiskBytes(100, size_bytes=16 * KIB), 0.3)
    assert set(figures) == {"mb_per_s", "disk_bytes", "ahead_mb", "kept_share"}
    assert figures["disk_bytes"] > 1
    written_bytes = figures["disk_bytes"] * figures["mb_per_s"] * 1e6 * 0.3
    written_bytes += figures["ahead_mb"] * 1e6
    assert written_bytes <= bookie_loads.kernel_written_bytes(bookie) - before_bytes


@pytest.mark.long
def test_cold_reads_of_dev_bench_give_their_figures(
    bookie: OneBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie starts anew for them, whatever the load speaks."""
    monkeypatch.setattr(Read, "entries", SmallRead.entries)
    bookie.protocol = 0
    check_figures(bookie_loads.ON_ONE_BOOKIE[Read](bookie, SmallRead(10, "cold", 64), 0.05), set())


def check_figures(figures: dict[str, float], more: set[str]) -> None:
    assert set(figures) == COMMON | more
    assert all(value >= 0 for value in figures.values())
    assert figures["per_s"] > 0
    assert figures["memory_mb"] > 0


def test_random_reads_begin_at_entries_all_over_the_ledger(bookie: OneBookie) -> None:
    """And each is the one that was asked for: the load checks its bytes."""
    bookie.protocol = 0
    ledger_id = bookie.create_ledger()
    count = bookie.write(ledger_id, 1000)
    with bookie.load([ledger_id], window=4, is_random=True) as load:
        load.read(0.05, [count])
        assert load.result().errors == 0
        assert load.result().entries > 0
    # Of a ledger that is said to be a million times as long, nearly no entry is there; all of the first ones are.
    # Eight go out together, however slow this machine is.
    with bookie.load([ledger_id], window=8, is_random=True) as load:
        load.read(0.001, [count * 1_000_000])
        assert load.result().first_error == "NO_ENTRY"


@pytest.mark.long
def test_a_bookie_of_another_tree_runs_that_trees_code(tmp_path: Path) -> None:
    """The other tree is this one by another path; its client library is measured with that tree's Python."""
    other = tmp_path / "other"
    other.symlink_to(ROOT)
    with bookies_of(other), one_bookie(tmp_path / "cluster") as running:
        supervisor = Path(f"/proc/{running.processes()['supervisor']}")
        assert f"PYTHONPATH={other}".encode() in (supervisor / "environ").read_bytes().split(b"\0")
        assert str(other / ".venv/bin/python").encode() in (
            supervisor / "cmdline"
        ).read_bytes().split(b"\0")
        assert bookie_loads.append(running, Append(5), 0.05)["per_s"] > 0


@pytest.mark.long
def test_the_client_library_is_measured_on_three_bookies() -> None:
    figures = Tree("this tree").measure(Replicated(10), 0.1)
    assert set(figures) == COMMON
    assert figures["per_s"] > 0


@pytest.mark.long
def test_the_client_library_is_measured_beside_the_load_in_c() -> None:
    figures = Tree("this tree").measure(BesideC(pairs=1), 0.0)
    assert set(figures) == {"p50_us", "c_p50_us", "behind_c_us", "client_us"}
    assert figures["behind_c_us"] == pytest.approx(figures["p50_us"] - figures["c_p50_us"])


@pytest.mark.long
def test_a_restart_is_measured_to_the_first_write() -> None:
    figures = Tree("this tree").measure(Restart(mib=1), 0.0)
    assert set(figures) == {"first_write_s", "bookie_cpu_s", "memory_mb"}
    assert figures["first_write_s"] > 0


class RespServer(socketserver.ThreadingTCPServer):
    """As much of Redis as the load needs: each XADD gets an id, or, from the `refused`-th on, an error."""

    daemon_threads = True

    def __init__(self, refused: int) -> None:
        super().__init__(("127.0.0.1", 0), RespHandler)
        self.refused = refused
        self.commands: list[list[bytes]] = []


class RespHandler(socketserver.StreamRequestHandler):
    server: RespServer

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := self.rfile.readline():
                words = []
                for _ in range(int(line[1:])):
                    words.append(self.rfile.read(int(self.rfile.readline()[1:])))
                    assert self.rfile.read(2) == b"\r\n"
                self.server.commands.append(words)
                if len(self.server.commands) >= self.server.refused:
                    self.wfile.write(b"-OOM command not allowed\r\n")
                    return
                self.wfile.write(b"$15\r\n1764111111111-0\r\n")


def redis_load(
    *arguments: object, refused: int = 1_000_000
) -> tuple[subprocess.CompletedProcess[str], RespServer]:
    program = build_program(["bench_redis.c"], [], "release")
    with RespServer(refused) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        command = [program, server.server_address[1], *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
        server.shutdown()
        thread.join()
    return done, server


def test_the_load_of_redis_adds_whole_entries_to_all_streams_and_counts_replies() -> None:
    window, size, streams, connections = 8, 100, 3, 2
    done, server = redis_load(window, 0.2, size, streams, connections)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert {command[0] for command in server.commands} == {b"XADD"}
    assert {command[1] for command in server.commands} == {b"s0", b"s1", b"s2"}
    assert {len(command[4]) for command in server.commands} == {size}
    # Those of the warm-up are not counted, nor those whose replies came after the end.
    assert 0 < answer["adds"] < len(server.commands)
    assert 0 < answer["latency_us"]["p50"] <= answer["latency_us"]["p99"]


def test_the_load_of_redis_ends_at_an_error() -> None:
    done, _ = redis_load(4, 5, 100, 1, 1, refused=50)
    assert done.returncode == 1
    assert "OOM command not allowed" in done.stderr
