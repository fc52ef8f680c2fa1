import json
from pathlib import Path

import pytest

from fastbk.cli import __main__ as cli


def test_a_disk_is_measured_bare_and_through_both_backends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["disk", "bench", str(tmp_path), "--seconds", "0.02", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["commits_per_s"] > 0
    assert set(answer["disk_commit_us"]) == {"p50", "p99", "p999", "max"}
    assert answer["disk_commit_us"]["p50"] > 0
    assert set(answer["backends"]) == {"io_uring", "plain"}
    assert answer["backends"]["plain"]["commit_us"]["p50"] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_text_names_each_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["disk", "bench", str(tmp_path), "--seconds", "0.02"]) == 0
    out = capsys.readouterr().out
    assert "commits/s" in out
    assert "\nplain" in out
    assert "\nio_uring" in out


@pytest.mark.parametrize(
    ("words", "code"), [(["/no/such/folder"], 2), (["/", "--seconds", "0"], 2), (["/proc"], 1)]
)
def test_a_wrong_call_is_one_line(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["disk", "bench", *words, "--json"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("fastbk: ")
