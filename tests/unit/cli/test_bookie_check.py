"""`fastbk bookie check` and `rebuild-locations` where there is nothing that they could look at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastbk.cli import __main__ as cli
from fastbk.server.directories import lock_all

VERBS = ("check", "rebuild-locations")


def configured(folder: Path, *, make: bool = True) -> Path:
    """Write a bookie's configuration, with directories that are empty, or missing."""
    for name in ("journal", "ledgers") if make else ():
        (folder / name).mkdir()
    path = folder / "bookie.toml"
    path.write_text(
        f'[metadata]\nuri = "sqlite:{folder}/metadata.sqlite"\n[bookie]\nid = "me"\n'
        f'[journal]\ndirectory = "{folder}/journal"\n[ledgers]\ndirectory = "{folder}/ledgers"\n'
    )
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_what_cannot_be_looked_at_is_no_damage(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 says that damage was found; scripts that see 2 know nothing about the data."""
    path = configured(tmp_path)
    for more, is_json in (((), False), (("--json",), True)):
        assert cli.main(["bookie", verb, "--config", str(path), *more]) == 2
        captured = capsys.readouterr()
        assert "identity.json" in captured.err
        assert captured.err.splitlines()[-1].startswith("fastbk: ")
        if is_json:
            assert "identity.json" in json.loads(captured.out)["error"]
        else:
            assert captured.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_bookie_that_runs_is_not_looked_at(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path)
    locks = lock_all([str(tmp_path / "journal"), str(tmp_path / "ledgers")], 1.0)
    try:
        assert cli.main(["bookie", verb, "--config", str(path), "--json"]) == 2
    finally:
        for lock in locks:
            lock.close()
    assert json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_configuration_is_one_document_too(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path, make=False)
    assert cli.main(["bookie", verb, "--config", str(path), "--json"]) == 2
    assert "no directory" in json.loads(capsys.readouterr().out)["error"]
    assert not (tmp_path / "ledgers").exists()
