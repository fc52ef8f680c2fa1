"""A bookie on what was imported from a recorded Apache bookie: clients that know the metadata read everything."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.cli.__main__ import main
from fastbk.meta.uri import open_store
from tests.fixtures import apache_disk
from tests.fixtures.wait import wait_until


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
        with (tmp_path / "log").open("wb") as log:
            command = [sys.executable, "-m", "fastbk.cli", "bookie", "--config", str(config)]
            process = subprocess.Popen(command, stderr=log, env=dict(os.environ))
        try:
            wait_until(lambda: process.poll() is not None or store.list_bookies(), "start", 60)
            assert process.poll() is None, (tmp_path / "log").read_text()
            _read_all(uri, recorded)
        finally:
            process.terminate()
            process.wait(30)


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
