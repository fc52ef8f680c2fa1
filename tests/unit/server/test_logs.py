import json

import pytest

from fastbk.observe import logs


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_bound", {})
    monkeypatch.setattr(logs, "_style", "json")
    monkeypatch.setattr(logs, "_level", 20)


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
