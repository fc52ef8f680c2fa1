"""`fastbk inspect`: text, JSON, filters, salvage and exit codes, on a bookie's real files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from fastbk.cli.__main__ import main
from tests.fixtures.bookie_image import FENCED, Image, make_image


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(tmp_path_factory.mktemp("bookie"))


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def lines(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("journal", "batch"),
        ("entrylog", "run"),
        ("locations", "location"),
        ("manifest", "live_bytes"),
        ("mark", "generation"),
        ("identity", "incarnation"),
        ("cookie", "instance_id"),
        ("audit", "reason=test"),
    ],
)
def test_every_kind_in_text_and_json(
    image: Image, capsys: pytest.CaptureFixture[str], kind: str, says: str
) -> None:
    directory = image.journal if kind == "journal" else image.ledgers
    code, out, _ = run(capsys, kind, directory)
    assert code == 0
    assert says in out
    code, out, _ = run(capsys, kind, directory, "--json")
    assert code == 0
    assert all("what" in line for line in lines(out))


def test_filters(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "journal", image.journal, "--json", "--ledger", 3, "--entry", 7)
    found = [line for line in lines(out) if line["what"] == "entry"]
    assert {(line["ledger_id"], line["entry_id"]) for line in found} == {(3, 7)}
    _, out, _ = run(capsys, "journal", image.journal, "--json", "--ledger", FENCED)
    assert {line["what"] for line in lines(out)} == {"header", "fence", "end", "total"}
    _, out, _ = run(capsys, "locations", image.ledgers, "--json", "--ledger", 3, "--entry", 25)
    found = [line for line in lines(out) if line["what"] == "location"]
    assert [(line["first_entry_id"], line["last_entry_id"]) for line in found] == [(20, 39)]
    _, out, _ = run(capsys, "entrylog", image.files("0*.log")[0], "--json", "--limit", 2)
    assert len(lines(out)) == 2
    _, out, _ = run(capsys, "journal", image.journal, "--json", "--summary")
    assert {line["what"] for line in lines(out)} == {"header", "end", "total"}


def test_salvage(image: Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "salvaged"
    code, _, err = run(capsys, "journal", image.journal, "--salvage", target, "--limit", 1)
    assert code == 0
    assert f"{len(image.entries)} entries of 4 ledgers" in err
    found = {}
    for path in target.iterdir():
        for line in lines(path.read_text()):
            assert path.name == f"{line['ledger_id']}.jsonl"
            found[line["ledger_id"], line["entry_id"]] = base64.b64decode(str(line["entry"]))
    assert found == image.entries
    code, _, err = run(capsys, "journal", image.journal, "--salvage", target)
    assert code == 1
    assert "name another directory" in err


def test_salvage_to_stdout_is_nothing_but_entries(
    image: Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = image.files("0*.log")[0]
    raw = bytearray(path.read_bytes())
    raw[4100] ^= 1
    bad = tmp_path / path.name
    bad.write_bytes(raw)
    code, out, err = run(capsys, "entrylog", bad, "--salvage", "-")
    assert code == 1
    assert "no run can be read here" in err
    for line in lines(out):
        entry = base64.b64decode(str(line["entry"]))
        assert image.entries[int(str(line["ledger_id"])), int(str(line["entry_id"]))] == entry


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["journal", "/no/such"], "/no/such"),
        (["entrylog", "."], "holds no entrylog files"),
        (["manifest", "."], "holds no manifest"),
        (["cookie", "."], "VERSION"),
    ],
)
def test_what_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    assert says in err
    assert err.count("\n") == 1


def test_damage_is_exit_code_1_and_a_torn_tail_is_not(
    image: Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = image.files("*.journal")[0]
    raw = bytearray(path.read_bytes())
    (tmp_path / path.name).write_bytes(raw[: len(raw) // 2 + 100])
    assert run(capsys, "journal", tmp_path / path.name)[0] == 0
    raw[8192 + 200] ^= 1
    (tmp_path / path.name).write_bytes(raw)
    code, out, err = run(capsys, "journal", tmp_path / path.name, "--ledger", 77)
    assert code == 1
    assert "damage" in out
    assert "damaged place" in err
