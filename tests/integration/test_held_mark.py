"""FASTBK_HOLD_MARK: flushes go on, none of them counts, and the next start replays everything since this one."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastbk.sync
from fastbk.native.disk import Disk
from fastbk.server.index.process import VARIABLE
from fastbk.storage.manifest import Manifest, ManifestSlots
from fastbk.testing import LocalCluster
from fastbk.units import KIB
from tests.fixtures.logs import events
from tests.fixtures.wait import wait_until

SETTINGS: dict[str, dict[str, object]] = {
    "limits": {"frame_size_max": "256KiB"},
    "journal": {"first_file_size": "4MiB", "file_size": "16MiB", "limit": "128MiB"},
    "ledgers": {"write_cache_size": "4MiB", "flush_interval": "200ms", "entry_log_size": "4MiB"},
}
COUNT = 16_000
"""Entries of 1 KiB: several times the write caches, several entry logs."""


def manifest(cluster: LocalCluster) -> Manifest:
    """What a start would find."""
    folder = str(cluster.bookies[0].directory / "ledgers")
    with Disk(folder, "plain", only_reads=True) as disk:
        return ManifestSlots(disk, folder).load()


def entry_of(number: int) -> bytes:
    return number.to_bytes(8, "big") * (KIB // 8)


def check_all(uri: str, ledger_id: int) -> None:
    with (
        fastbk.sync.connect(uri) as client,
        client.open_ledger(ledger_id, recovery=False) as reader,
    ):
        found = [bytes(entry.data) for entry in reader.read(0, COUNT - 1)]
    assert found == [entry_of(number) for number in range(COUNT)]


@pytest.mark.parametrize("ends", ["kill -9", pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_a_start_replays_all_that_came_since_the_mark_was_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with LocalCluster(1, data=tmp_path, settings=SETTINGS) as cluster:
        assert len(events(cluster.bookies[0].log_path, "index.mark_is_held")) == 1
        before = manifest(cluster)
        logs = cluster.bookies[0].directory / "ledgers" / "logs"
        with fastbk.sync.connect(cluster.metadata_uri) as client:
            with client.create_ledger(1, 1, 1) as writer:
                writer.append_many([entry_of(number) for number in range(COUNT)])
                ledger_id = writer.ledger_id
            wait_until(lambda: len(list(logs.iterdir())) >= 3, "flushes")
            # Read from what was flushed, though no manifest on disk names it.
            check_all(cluster.metadata_uri, ledger_id)
            assert manifest(cluster) == before
            if ends == "SIGTERM":
                cluster.stop_bookie(0)
            else:
                cluster.kill(0)
        assert manifest(cluster) == before

        monkeypatch.delenv(VARIABLE)
        cluster.start_bookie(0)
        assert events(cluster.bookies[0].log_path, "journal.replayed")[-1]["records"] == COUNT
        assert manifest(cluster).mark > before.mark
        check_all(cluster.metadata_uri, ledger_id)
        # Nothing is left of the files that no manifest named, and nothing is held any more.
        named = {f"{log.log_id:016x}.log" for log in manifest(cluster).logs}
        wait_until(lambda: {path.name for path in logs.iterdir()} == named, "files to be removed")
        cluster.kill(0)
        cluster.start_bookie(0)
        assert events(cluster.bookies[0].log_path, "journal.replayed")[-1]["records"] == 0
        check_all(cluster.metadata_uri, ledger_id)
