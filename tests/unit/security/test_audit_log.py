"""The audit log: its chain, its file, and what is left after a crash, a full disk and somebody's changes."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.cli.__main__ import main
from fastbk.errors import StorageError
from fastbk.security.audit_log import AuditLog, Chain, faults, last_of
from fastbk.security.settings import AuditSettings


def opened(path: Path, **changes: Any) -> AuditLog:
    log = AuditLog(AuditSettings(file=str(path), **changes))
    log.open()
    return log


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def events_of(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in lines_of(path)]


def chained(count: int) -> list[bytes]:
    chain = Chain()
    return [chain.line({"event": "e", "number": number}) for number in range(count)]


@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=8), st.text(max_size=50) | st.integers(-(2**60), 2**60), max_size=4
        )
    )
)
def test_whole_lines_have_no_faults(records: list[dict[str, Any]]) -> None:
    chain = Chain()
    lines = [chain.line({"event": "e", "values": record}) for record in records]
    assert list(faults(lines, Chain())) == []
    if lines:
        last = last_of(lines[-1])
        assert last is not None
        assert (last.sequence, last.head) == (chain.sequence, chain.head)


@given(st.integers(2, 8), st.data())
def test_each_change_breaks_the_chain(count: int, data: st.DataObject) -> None:
    lines = chained(count)
    at = data.draw(st.integers(0, count - 2))
    match data.draw(st.sampled_from(["change", "remove", "swap", "repeat", "flip"])):
        case "change":
            lines[at] = lines[at].replace(b'"number":', b'"number":1')
        case "remove":
            del lines[at]
        case "swap":
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
        case "repeat":
            lines.insert(at, lines[at])
        case _:
            byte = data.draw(st.integers(0, len(lines[at]) - 2))
            lines[at] = lines[at][:byte] + bytes([lines[at][byte] ^ 1]) + lines[at][byte + 1 :]
    assert list(faults(lines, Chain()))


def test_a_long_record_is_cut(tmp_path: Path) -> None:
    line = Chain().line({"event": "e", "text": "x" * 100_000})
    assert len(line) < 3000
    assert list(faults([line], Chain())) == []


def test_a_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for _ in range(3):
        log = opened(path)
        log.note(
            "request.denied", principal="user:x", address="10.0.0.1", ledger=5, verdict="no right"
        )
        os.close(log._descriptor)
    assert events_of(path) == ["audit.begun", "request.denied"] * 3
    assert list(faults(lines_of(path), Chain())) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert log.metric_lines()[2:3] == ["fastbk_audit_records_total 2"]


def test_files_are_rotated_and_the_chain_goes_through_them(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = opened(path, file_size_bytes_max=4096, files_max=3)
    for number in range(200):
        log.note("request.denied", number=number)
    os.close(log._descriptor)
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "audit.log",
        "audit.log.1",
        "audit.log.2",
    ]
    lines = [
        line
        for name in ("audit.log.2", "audit.log.1", "audit.log")
        for line in lines_of(tmp_path / name)
    ]
    assert list(faults(lines)) == []
    assert json.loads(lines[-1])["number"] == 199
    assert all((tmp_path / name).stat().st_size <= 4096 for name in ("audit.log.2", "audit.log.1"))


def test_a_cut_end_is_put_aside(tmp_path: Path) -> None:
    """As a power cut leaves it."""
    path = tmp_path / "audit.log"
    os.close(opened(path)._descriptor)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    log = opened(path)
    os.close(log._descriptor)
    assert (tmp_path / "audit.log.1").read_bytes().startswith(whole)
    # The chain goes on behind the last whole line.
    assert list(faults([*lines_of(tmp_path / "audit.log.1")[:1], *lines_of(path)], Chain())) == []


def test_what_cannot_be_written_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    log = opened(path)
    before = path.read_bytes()

    def full(descriptor: int, data: bytes) -> int:
        if descriptor == log._descriptor:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    real = os.write
    monkeypatch.setattr(os, "write", full)
    log.note("lost")
    monkeypatch.setattr(os, "write", real)
    assert path.read_bytes() == before
    log.take({"records": [{"event": "client.refused"}], "dropped": 7, "worker": 1})
    os.close(log._descriptor)
    assert events_of(path)[1:] == ["audit.dropped", "client.refused"]
    assert list(faults(lines_of(path), Chain())) == []
    assert "fastbk_audit_dropped_total 8" in log.metric_lines()


def test_a_file_that_cannot_be_made_anew_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    log = opened(path, file_size_bytes_max=4096)
    real = log._open_file

    def fails() -> None:
        raise OSError(errno.ENFILE, "Too many open files in system")

    monkeypatch.setattr(log, "_open_file", fails)
    while "fastbk_audit_dropped_total 0" in log.metric_lines():
        log.note("filler", text="x" * 1000)
    log.note("lost")
    monkeypatch.setattr(log, "_open_file", real)
    log.note("kept")
    os.close(log._descriptor)
    assert events_of(path) == ["kept"]
    assert "fastbk_audit_dropped_total 2" in log.metric_lines()
    assert list(faults([*lines_of(tmp_path / "audit.log.1"), *lines_of(path)], Chain())) == []


def test_a_worker_that_was_taken_over_writes_nothing_but_records_of_its_own(tmp_path: Path) -> None:
    """Neither number nor time of a line is its choice, nor does it end the supervisor."""
    path = tmp_path / "audit.log"
    log = opened(path)
    forged = {
        "sequence": 7,
        "time": "1970",
        "self": 1,
        "chain": "x",
        "values": {},
        "address": "10.0.0.1",
    }
    log.take(
        {
            "worker": 1,
            "records": [
                {**forged, "event": "audit.ended"},
                {**forged, "event": "request.denied"},
                5,
            ],
        }
    )
    log.take({"worker": 1, "records": 5, "dropped": "many"})
    os.close(log._descriptor)
    assert events_of(path) == ["audit.begun", "unknown", "request.denied"]
    for number, line in enumerate(lines_of(path)[1:], 2):
        read = json.loads(line)
        assert (read["sequence"], read["address"], read["worker"]) == (number, "10.0.0.1", 1)
        assert read["time"] > "2020"
        assert not {"self", "values"} & set(read)
    assert list(faults(lines_of(path), Chain())) == []


def test_a_place_that_is_not_there_keeps_the_bookie_from_starting(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"\[audit\] file"):
        opened(tmp_path / "none" / "audit.log")


def test_the_command_finds_what_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    lines = chained(5)
    path.write_bytes(b"".join(lines))
    head = last_of(lines[-1])
    assert head is not None
    assert main(["audit", "verify", str(path), "--head", head.head]) == 0
    assert "5 lines, 0 faults; ends with number 5" in capsys.readouterr().out
    path.write_bytes(b"".join(lines[:-1]))
    assert main(["audit", "verify", str(path), "--head", head.head]) == 1
    assert "lines are missing at the end" in capsys.readouterr().out
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    assert main(["audit", "verify", str(path)]) == 1
    assert "lines are missing" in capsys.readouterr().out


def test_text_of_others_is_escaped_and_breaks_no_chain(tmp_path: Path) -> None:
    log = opened(tmp_path / "audit.log")
    record = {"event": "client.refused", "address": "::1", "reason": "a\ud800\x1b[2J\u202e"}
    log.take({"worker": 0, "records": [record]})
    assert log.note("page.refused", reason="b\udfff")
    lines = lines_of(tmp_path / "audit.log")
    assert list(faults(lines, Chain())) == []
    assert all(line.decode().removesuffix("\n").isprintable() for line in lines)
    assert [json.loads(line).get("reason") for line in lines[1:]] == [
        "a\\ud800\x1b[2J\u202e",
        r"b\udfff",
    ]
