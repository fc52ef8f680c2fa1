from __future__ import annotations

import json
import os

import pytest

from fastbk.observe import logs


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_bound", {})
    monkeypatch.setattr(logs, "_style", "json")
    monkeypatch.setattr(logs, "_level", 20)
    monkeypatch.setattr(logs, "_has_priorities", False)


def test_a_line_is_one_json_object_with_what_was_bound(capfd: pytest.CaptureFixture[str]) -> None:
    logs.bind(role="journal", index=0)
    logs.info("journal.rolled", file_id=7, name="ä b")
    (line,) = capfd.readouterr().err.splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info", "event": "journal.rolled", "role": "journal", "index": 0, "file_id": 7,
        "name": "ä b",
    }  # fmt: skip


def test_lines_below_the_level_are_not_written(capfd: pytest.CaptureFixture[str]) -> None:
    logs.debug("ledger.seen")
    assert capfd.readouterr().err == ""


def test_a_terminal_gets_one_readable_line(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure(style="text", level="debug")
    logs.bind(role="worker", index=1)
    logs.warning("frame.refused", reason="two words", count=3)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.split()[1:] == [
        "warning", "worker[1]", "frame.refused", 'reason="two', 'words"', "count=3"]  # fmt: skip


def test_a_line_is_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    logs.error("much.said", text="x" * 100_000)
    (line,) = capfd.readouterr().err.splitlines()
    assert len(line) < 16_384
    assert json.loads(line)["cut_bytes"] > 100_000


def test_a_value_of_any_kind_is_written_somehow(capfd: pytest.CaptureFixture[str]) -> None:
    logs.info("thing.seen", thing=object(), error=ValueError("no"))
    assert json.loads(capfd.readouterr().err)["error"] == "no"


def test_text_of_others_is_escaped_and_ends_no_process(capfd: pytest.CaptureFixture[str]) -> None:
    hostile = "a\ud800\x1b[2J\x9b\u202e"
    for style, shown in (
        ("json", r"a\\ud800\u001b[2J\u009b\u202e"),
        ("text", r"a\ud800\x1b[2J\x9b\u202e"),
    ):
        logs.configure(style=style)
        logs.warning("thing.seen", reason=hostile, parts=[hostile], error=ValueError(hostile))
        (line,) = capfd.readouterr().err.splitlines()
        assert line.isprintable()
        assert shown in line


def test_a_traceback_is_readable_on_a_terminal_and_forges_no_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs.configure(style="text")
    trace = "Traceback\n  File x\n12:00:00.000 error  supervisor  \x1b[31mforged"
    logs.error("process.failed", trace=trace, code=1)
    first, *rest = capfd.readouterr().err.splitlines()
    assert first.endswith("code=1")
    assert rest[:3] == ["    trace:", "    | Traceback", "    |   File x"]
    assert rest[3:] == [r"    | 12:00:00.000 error  supervisor  \x1b[31mforged"]


def test_the_journal_of_systemd_learns_how_grave_a_line_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = os.fstat(2)
    monkeypatch.setenv(logs.JOURNAL_STREAM, f"{stream.st_dev}:{stream.st_ino}")
    logs.configure(level="debug")
    for level in logs.LEVELS:
        logs.write(level, "thing.seen", {})
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("{")[0] for line in lines] == ["<7>", "<6>", "<4>", "<3>"]
    logs.configure(style="text")
    logs.error("thing.failed", trace="one\ntwo")
    assert {line[:3] for line in capfd.readouterr().err.splitlines()} == {"<3>"}, (
        "each line has its own"
    )
    monkeypatch.setenv(logs.JOURNAL_STREAM, f"{stream.st_dev}:{stream.st_ino + 1}")
    logs.configure()
    logs.error("thing.failed")
    assert "<3>" not in capfd.readouterr().err, "it was redirected to a file"


def test_a_limit_logs_at_once_and_then_one_line_in_ten_seconds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    now_s = [0.0]
    log = logs.LimitLog("client.refused", lambda: now_s[0])
    for _ in range(1000):
        log.note("a")
    now_s[0] = logs.LOG_INTERVAL_S
    log.note("a")
    found = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(one["count"], one["total"]) for one in found] == [(1, 1), (1000, 1001)]


def test_names_that_somebody_else_chooses_fill_neither_log_nor_memory(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log = logs.LimitLog("client.refused", lambda: 0.0)
    for number in range(1000):
        log.note(f"reason {number}")
    assert len(log.counts) == logs.LIMITS_MAX + 1
    assert log.counts[logs.OTHERS] == 1000 - logs.LIMITS_MAX
    assert len(capfd.readouterr().err.splitlines()) == logs.LIMITS_MAX + 1
