"""`fastbk bookie check` and `rebuild-locations` where there is nothing that they could look at."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastbk.cli import __main__ as cli
from fastbk.meta.uri import open_store
from fastbk.server.directories import lock_all
from tests.fixtures import apache_disk

if TYPE_CHECKING:
    from pathlib import Path

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


# `fastbk bookie import`, from the command line to the numbers that it prints.


BOOKIE = apache_disk.recorded("db")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration for the bookie that the recorded one becomes; metadata knows its ledgers."""
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    with closing(open_store(uri)) as store:
        for ledger_id, metadata in BOOKIE.ledgers.items():
            store.create_ledger(ledger_id, metadata)
    path = tmp_path / "bookie.toml"
    path.write_text(
        f'[metadata]\nuri = "{uri}"\n[bookie]\nid = "{BOOKIE.bookie_id}"\n'
        f'[journal]\ndirectory = "{tmp_path}/journal"\n[ledgers]\ndirectory = "{tmp_path}/ledgers"\n'
    )
    return path


def directories() -> list[str]:
    return ["--journal", f"{BOOKIE.folder}/journal", "--ledgers", f"{BOOKIE.folder}/ledgers"]


def test_a_dry_run_and_the_import_say_the_same_numbers(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bookie", "import", "--config", str(config), *directories()]
    assert cli.main([*command, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not (config.parent / "ledgers").exists()
    assert cli.main([*command, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    same = ("ledgers", "entries", "bytes", "left_out_ledgers", "left_out_entries", "open_ledgers")
    assert [done[name] for name in same] == [found[name] for name in same]
    assert (done["ledgers"], done["in_limbo"], done["open_ledgers"]) == (6, 1, 1)
    assert done["left_out_entries"] == 5
    assert done["damage"] == done["told"] == []
    index = done["index"]
    assert index == found["index"]
    assert (index["ledgers"], index["unlisted_ledgers"], index["entries"]) == (3, 1, 20)
    # The recovery of ledger 6 added its last entry once more.
    assert (index["in_place"], index["missing_entries"], done["journal_entries"]) == (20, 0, 23)


def test_an_index_may_be_left_alone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bookie", "import", "--config", str(config), *directories(), "--json"]
    assert cli.main([*command, "--index", "ignore"]) == 0
    index = json.loads(capsys.readouterr().out)["index"]
    assert (index["read"], index["ledgers"], index["not_checked"]) == ([], 0, 20)


def test_indexes_in_directories_of_their_own_are_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bookie that has its indexes elsewhere: without them nothing is found, and that is told."""
    elsewhere, logs = config.parent / "indexes", config.parent / "logs"
    shutil.copytree(BOOKIE.folder / "ledgers", logs)
    for name in ("ledgers", "locations"):
        (elsewhere / "current").mkdir(parents=True, exist_ok=True)
        (logs / "current" / name).rename(elsewhere / "current" / name)
    command = ["bookie", "import", "--config", str(config), "--dry-run"]
    named = [f"--journal={BOOKIE.folder}/journal", f"--ledgers={logs}"]
    assert cli.main([*command, *named, "--index=require"]) != 0
    assert "indexDirectories" in capsys.readouterr().err
    assert cli.main([*command, *named, "--index=require", f"--indexes={elsewhere}"]) == 0
    assert "20 where the index has them" in capsys.readouterr().out
    conf = config.with_name("bk_server.conf")
    conf.write_text(
        f"journalDirectories={BOOKIE.folder}/journal\nledgerDirectories={logs}\nindexDirectories={elsewhere}\n"
    )
    assert cli.main([*command, "--from-conf", str(conf), "--index=require"]) == 0
    assert "the index lists 3 ledgers" in capsys.readouterr().out


def test_what_is_missing_is_told_and_the_exit_code_says_so(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = config.parent / "logs"
    shutil.copytree(BOOKIE.folder / "ledgers", logs)
    (logs / "current" / "0.log").unlink()
    command = ["bookie", "import", "--config", str(config), "--dry-run"]
    named = [f"--journal={BOOKIE.folder}/journal", f"--ledgers={logs}"]
    assert cli.main([*command, *named]) == 1
    said = capsys.readouterr()
    assert "20 entries, of which 20 of 2 ledgers are missing" in said.out
    assert "entries 0 to 11 of ledger 0 should be here" in said.err


def test_apaches_configuration_names_the_directories(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = config.with_name("bk_server.conf")
    conf.write_text(
        f"journalDirectories={BOOKIE.folder}/journal\nledgerDirectories={BOOKIE.folder}/ledgers\n"
    )
    assert cli.main(["bookie", "import", "--config", str(config), "--from-conf", str(conf)]) == 0
    assert "imported: 6 ledgers" in capsys.readouterr().out


def test_apaches_own_directories_are_no_target(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = config.read_text().replace(f"{config.parent}/ledgers", f"{BOOKIE.folder}/ledgers/ours")
    config.write_text(text)
    assert cli.main(["bookie", "import", "--config", str(config), *directories()]) != 0
    assert "name others in the new bookie's file" in capsys.readouterr().err
    assert not (BOOKIE.folder / "ledgers" / "ours").exists()


def test_directories_have_to_be_named_once(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bookie", "import", "--config", str(config)]) != 0
    assert "give --from-conf" in capsys.readouterr().err
