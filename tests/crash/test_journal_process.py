"""The real journal process: started as the supervisor starts it, killed, drained, fed garbage."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fastbk.native.disk import Disk
from fastbk.native.journal_scan import JournalScan
from fastbk.server.configuration.bookie_config import JournalConfig, Replayed
from fastbk.server.configuration.settings import DiskSettings, JournalSettings, LimitSettings
from fastbk.server.directories import LOCK_NAME
from fastbk.storage.journal_files import ReplayEnd, conclude_replay, find_files, plan_replay
from tests.fixtures.journal_harness import EPOCH, INCARNATION, JournalHarness, Put

DEADLINE_S = 20.0
FILE_BYTES = 16 << 20


class Process:
    """One journal process with this test as supervisor, workers and index."""

    def __init__(
        self, folder: Path, replayed: ReplayEnd | None = None, backend: str = "auto"
    ) -> None:
        self.disk = Disk(folder, "plain")
        self.harness = JournalHarness(self.disk, worker_count=2, ring_bytes=1 << 20, open_journal=False)
        self.lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        self.states = os.memfd_create("states", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        harness = self.harness
        descriptors = {
            "bell": harness.bell,
            "index_bell": harness.index_bell,
            "segment": harness.journal_memory.fd,
            "index_segment": harness.index_memory.fd,
            "states": self.states,
            "lock": self.lock,
        }
        for w in range(2):
            descriptors[f"worker_bell.{w}"] = harness.worker_bells[w]
            descriptors[f"worker_segment.{w}"] = harness.workers[w].fd
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fastbk.server.journal.process", str(theirs.fileno())],
            pass_fds=[theirs.fileno(), *descriptors.values()],
            stderr=subprocess.PIPE,
        )
        theirs.close()
        assert self.receive()["type"] == "hello"
        end = replayed.message() if replayed is not None else {}
        config = JournalConfig(
            bookie_id="127.0.0.1:3181",
            incarnation=INCARNATION,
            pair=0,
            worker_count=2,
            limits=LimitSettings(frame_size_bytes_max=256 * 1024),
            settings=JournalSettings(
                directory=str(folder),
                backend=backend,
                first_file_size_bytes=FILE_BYTES,
                file_size_bytes=FILE_BYTES,
            ),
            disk=DiskSettings(),
            replayed=msgspec.convert(
                {
                    "next_file_id": 1,
                    "predecessor_file_id": 0,
                    "predecessor_sequence": 0,
                    "predecessor_crc": 0,
                    "next_record_sequence": 0,
                    **end,
                },
                Replayed,
            ),
        )
        self.send(
            {
                "type": "configure",
                "role": "journal",
                "index": 0,
                "epoch": EPOCH,
                "config": json.loads(msgspec.json.encode(config)),
                "descriptors": descriptors,
            }
        )

    def send(self, message: dict[str, Any]) -> None:
        self.control.send(msgspec.json.encode(message))

    def receive(self) -> dict[str, Any]:
        self.control.settimeout(DEADLINE_S)
        while True:
            data = self.control.recv(1 << 20)
            assert data, f"the process has ended: {self.errors()}"
            message: dict[str, Any] = msgspec.json.decode(data)
            if message["type"] != "disk":  # how its disk is: said whenever it looks
                return message

    def errors(self) -> str:
        assert self.process.stderr is not None
        self.process.wait(DEADLINE_S)
        return self.process.stderr.read().decode()

    def ring(self) -> None:
        os.eventfd_write(self.harness.bell, 1)

    def wait_verdict(self, put: Put) -> int:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.harness.look()
            verdict = self.harness.verdict(put)
            if verdict is not None:
                return verdict
            os.sched_yield()
        raise AssertionError("not published in time")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.control.close()
        os.close(self.states)
        os.close(self.lock)
        self.harness.close()
        self.disk.destroy()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.close()


def started(running: list[Process], folder: Path, *arguments: Any, **more: Any) -> Process:
    process = Process(folder, *arguments, **more)
    running.append(process)
    assert process.receive()["type"] == "ready"
    return process


def replay(folder: Path, mark: int = 0) -> tuple[ReplayEnd, list[tuple[int, int, bytes]]]:
    with Disk(folder, "plain") as disk:
        plan = plan_replay(find_files(disk, str(folder)), mark, INCARNATION)
        ends, records = [], []
        for file in plan.files:
            with JournalScan(
                disk, file.path, file.file_id, INCARNATION, mark_sequence=mark,
                end_sequence=file.end_sequence, lock=True,
            ) as scan:  # fmt: skip
                for batch in scan:
                    records += [(r.ledger_id, r.entry_id, r.payload) for r in batch.records()]
                ends.append(scan.end)
        return conclude_replay(plan, ends), records


@pytest.mark.parametrize("backend", ["auto", "plain"])
def test_killed_and_started_again(running: list[Process], tmp_path: Path, backend: str) -> None:
    first = started(running, tmp_path, backend=backend)
    puts = []
    for entry_id in range(300):
        puts.append(first.harness.add(1, entry_id, os.urandom(500), worker=entry_id % 2))
        if entry_id % 10 == 0:
            first.ring()
            assert first.wait_verdict(puts[-1]) == 0
    first.ring()
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(DEADLINE_S)
    first.harness.look()
    durable = first.harness.durable()
    assert len(durable) >= 290
    end, records = replay(tmp_path)
    assert not end.damage
    assert {(put.ledger_id, put.entry_id, put.payload) for put in durable} <= set(records)

    second = Process(tmp_path, end, backend=backend)
    running.append(second)
    second.harness.set_mark(end.predecessor_sequence)  # the index has flushed what it replayed
    assert second.receive()["type"] == "ready"
    put = second.harness.add(2, 0, b"after")
    second.ring()
    assert second.wait_verdict(put) == 0
    second.send({"type": "drain"})
    second.ring()
    assert second.receive()["type"] == "drained"
    assert second.process.wait(DEADLINE_S) == 0
    end, records = replay(tmp_path, end.predecessor_sequence)
    assert not end.damage
    assert [(ledger_id, entry_id) for ledger_id, entry_id, _ in records] == [(2, 0)]


def test_a_broken_worker_ends_it_with_a_reason(running: list[Process], tmp_path: Path) -> None:
    process = started(running, tmp_path)
    good = process.harness.add(1, 0, b"good")
    process.ring()
    assert process.wait_verdict(good) == 0
    process.harness.add(1, 1, b"bad", worker=1, body_crc=1)
    process.ring()
    message = process.receive()
    assert message["type"] == "failed"
    assert "worker 1" in message["reason"]
    assert process.process.wait(DEADLINE_S) == 1


def test_an_orphan_ends(running: list[Process], tmp_path: Path) -> None:
    process = started(running, tmp_path)
    process.control.shutdown(socket.SHUT_RDWR)
    assert process.process.wait(DEADLINE_S) == 3


def test_idle_costs_next_to_nothing(running: list[Process], tmp_path: Path) -> None:
    process = started(running, tmp_path)
    put = process.harness.add(1, 0, b"")
    process.ring()
    process.wait_verdict(put)
    before = cpu_s(process.process.pid)
    said, _, _ = select.select([process.control], [], [], 2.0)
    assert not said
    assert cpu_s(process.process.pid) - before < 0.1


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
