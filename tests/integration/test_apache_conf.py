"""A bookie that was never told anything but Apache's way: a `.conf` file and `BK_` variables.

Journal, ledger and index directories are one and the same, as many of Apache's bookies have them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import fastbk
import fastbk.sync
from fastbk.cli.__main__ import main
from fastbk.meta.uri import open_store
from tests.fixtures import apache_disk
from tests.fixtures.conf_bookie import running, started
from tests.fixtures.logs import events

CONF = """
# One disk for everything, and a second one beside it.
bookiePort = 3181
allowEphemeralPorts = true
listeningInterface = lo
allowLoopback = true
metadataServiceUri = sqlite:{folder}/metadata.sqlite
journalDirectories = {folder}/disk
ledgerDirectories = {folder}/disk
indexDirectories = {folder}/disk
dbStorage_rocksDB_blockSize = 65536
notAKey = 1
"""


async def test_a_bookie_of_a_conf_file_and_variables_serves(tmp_path: Path) -> None:
    path, log = tmp_path / "bk_server.conf", tmp_path / "log"
    path.write_text(CONF.format(folder=tmp_path))
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    variables = {
        "BK_bookiePort": "0",
        "BK_bookieId": "b1",
        "BK_ledgerDirectories": f"{tmp_path}/disk,{tmp_path}/more",
    }
    for start in range(2):  # the second start finds its directories as the first one left them
        with started(path, log, **variables) as process:
            (told,) = events(log, "bookie.apache_configuration")
            assert told["unknown"] == "notAKey"
            assert "indexDirectories" in told["ignored"]
            async with fastbk.connect(uri) as client:
                async with await client.create_ledger(1, 1, 1) as writer:
                    assert await writer.append(b"hello %d" % start) == 0
                for ledger_id in range(writer.ledger_id + 1):
                    reader = await client.open_ledger(ledger_id)
                    assert [bytes(one.data) async for one in reader.read(0, 0)] == [
                        b"hello %d" % ledger_id
                    ]
        assert process.returncode == 0
    assert (tmp_path / "disk" / "journal" / "identity.json").exists()
    assert (tmp_path / "disk" / "journal" / "pair-1" / "identity.json").exists()
    assert (tmp_path / "more" / "identity.json").exists()


def test_commands_about_a_stopped_bookie_take_its_conf_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = tmp_path / "bk_server.conf", tmp_path / "log"
    path.write_text(CONF.format(folder=tmp_path))
    for name, value in (("BK_bookiePort", "0"), ("BK_bookieId", "b1")):
        monkeypatch.setenv(name, value)
    with started(path, log):
        pass
    assert main(["bookie", "check", "--config", str(path)]) == 0
    assert "whole" in capsys.readouterr().out
    assert main(["doctor", "--config", str(path)]) in (0, 1)
    assert f"{path} makes sense" in capsys.readouterr().out
    assert main(["bookie", "--config", str(path), "--check"]) == 0
    # The same directories under a TOML file of the same meaning.
    capsys.readouterr()
    assert main(["config", "convert", str(path)]) == 0
    converted = tmp_path / "bookie.toml"
    converted.write_text(capsys.readouterr().out)
    assert main(["bookie", "check", "--config", str(converted)]) == 0


def test_a_conf_file_that_asks_for_what_is_missing_does_not_start(tmp_path: Path) -> None:
    path, log = tmp_path / "bk_server.conf", tmp_path / "log"
    path.write_text(CONF.format(folder=tmp_path))
    with running(path, log, BK_bookieAuthProviderFactoryClass="com.example.Provider") as process:
        assert process.wait(60) == 78
    (failed,) = events(log, "bookie.failed")
    assert "BK_bookieAuthProviderFactoryClass" in failed["reason"]
    assert "cannot run here" in failed["reason"]
    assert not (tmp_path / "disk").exists()


def test_the_doctor_names_the_command_that_says_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text(CONF.format(folder=tmp_path) + "zkEnableSecurity=true\n")
    assert main(["doctor", "--config", str(path)]) == 1
    told = capsys.readouterr().out
    assert "zkEnableSecurity = true: nodes in ZooKeeper" in told
    assert f"fastbk config check {path}" in told


@pytest.mark.parametrize("storage", apache_disk.STORAGES)
def test_clients_read_what_apaches_bookie_had_acknowledged(tmp_path: Path, storage: str) -> None:
    recorded = apache_disk.recorded(storage)
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    config = tmp_path / "bookie.toml"
    config.write_text(
        f'[metadata]\nuri = "{uri}"\n[bookie]\nid = "{recorded.bookie_id}"\nlisten = "127.0.0.1:0"\n'
        f'[journal]\ndirectory = "{tmp_path}/journal"\n[ledgers]\ndirectory = "{tmp_path}/ledgers"\n'
    )
    with closing(open_store(uri)) as store:
        for ledger_id, metadata in recorded.ledgers.items():
            store.create_ledger(ledger_id, metadata)
        source = [f"--journal={recorded.folder}/journal", f"--ledgers={recorded.folder}/ledgers"]
        assert main(["bookie", "import", "--config", str(config), *source]) == 0
        with started(config, tmp_path / "log"):
            _read_all(uri, recorded)


def _read_all(uri: str, recorded: apache_disk.Recorded) -> None:
    with fastbk.sync.connect(uri) as client:
        for ledger_id, metadata in recorded.ledgers.items():
            if not metadata.is_closed:
                continue
            with client.open_ledger(ledger_id, password=metadata.password or b"") as reader:
                last = reader.last_add_confirmed()
                assert last == recorded.entries[ledger_id] - 1
                read = {one.entry_id: bytes(one.data) for one in reader.read(0, last)}
            assert read == {n: apache_disk.payload(ledger_id, n) for n in range(last + 1)}
