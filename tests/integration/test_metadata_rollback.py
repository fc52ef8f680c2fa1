"""Metadata that is restored from an older copy: no ledger id is used again, nothing is deleted, nothing wrong is read.

The bookies are killed, and started on the copy. Metadata is on hold until an operator confirms it, or restores the
newer metadata and confirms that. INV-M2 to INV-M5. The same in ZooKeeper: test_metadata_ensemble.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fastbk
from fastbk.cli.__main__ import main
from fastbk.errors import MetadataOnHold, NoSuchLedger
from fastbk.meta.rollback import RESERVE_IDS
from fastbk.storage.metadata_mark import NAME
from fastbk.stream.janitor import Janitor
from fastbk.testing import LocalCluster
from tests.fixtures.metadata import new_cluster
from tests.fixtures.pages import json_page, metrics
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper_ensemble import ZooKeeperEnsemble

SETTINGS = {"gc": {"interval": "200ms"}, "ledgers": {"flush_interval": "200ms"}}
ENTRIES = 40
WAIT_S = 60.0


class SqliteMetadata:
    """Metadata that is copied and restored while no bookie runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "metadata.sqlite"
        self.uri = new_cluster(self._file)

    def copy(self, name: str) -> None:
        with (
            closing(sqlite3.connect(self._file)) as source,
            closing(sqlite3.connect(self._folder / name)) as target,
        ):
            source.backup(target)

    def restore(self, name: str) -> None:
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._file}{ending}").unlink(missing_ok=True)
        shutil.copy(self._folder / name, self._file)


class World:
    """A cluster, its metadata, and what was written to each ledger."""

    def __init__(
        self,
        cluster: LocalCluster,
        metadata: SqliteMetadata | ZooKeeperEnsemble,
        shape: tuple[int, int, int] = (3, 3, 2),
    ) -> None:
        """`shape`: ensemble size and quorums of the ledgers."""
        self.cluster = cluster
        self.shape = shape
        self.metadata = metadata
        self.written: dict[int, list[bytes]] = {}

    def kill(self) -> None:
        for bookie in self.cluster.bookies:
            bookie.kill()
        for bookie in self.cluster.bookies:
            bookie.wait_gone()

    def start(self) -> None:
        boots = [one.boots for one in self.cluster.bookies]
        for bookie in self.cluster.bookies:
            bookie.spawn()
        for number, before in enumerate(boots):
            self.cluster.wait_ready(number, before + 1)

    def restart_on(self, copy: str) -> None:
        """Kill every bookie, restore a copy, and start them on it."""
        self.kill()
        self.metadata.restore(copy)
        self.start()

    def write(self, count: int) -> list[int]:
        return asyncio.run(self._write(count))

    async def _write(self, count: int) -> list[int]:
        ids = []
        async with fastbk.connect(self.metadata.uri) as client:
            for _ in range(count):
                async with await client.create_ledger(*self.shape) as writer:
                    assert writer.ledger_id not in self.written, "an id was used again"
                    entries = [
                        b"%d-%d-%d" % (writer.ledger_id, len(self.written), n)
                        for n in range(ENTRIES)
                    ]
                    await asyncio.gather(*map(writer.append, entries))
                self.written[writer.ledger_id] = entries
                ids.append(writer.ledger_id)
        return ids

    def read(self, ledger_ids: list[int]) -> None:
        """Read these ledgers, each entry as it was written."""
        asyncio.run(self._read(ledger_ids))

    async def _read(self, ledger_ids: list[int]) -> None:
        async with fastbk.connect(self.metadata.uri) as client:
            for ledger_id in ledger_ids:
                reader = await client.open_ledger(ledger_id)
                found = [bytes(one.data) async for one in reader.read()]
                assert found == self.written[ledger_id]

    def delete(self, ledger_id: int) -> None:
        async def run() -> None:
            async with fastbk.connect(self.metadata.uri) as client:
                await client.delete_ledger(ledger_id)

        asyncio.run(run())

    async def pass_of_janitor(self) -> None:
        async with fastbk.connect(self.metadata.uri) as client:
            await Janitor(client).pass_once(thorough=True)

    def is_not_there(self, ledger_id: int) -> None:
        async def run() -> None:
            async with fastbk.connect(self.metadata.uri) as client:
                await client.open_ledger(ledger_id)

        with pytest.raises(NoSuchLedger):
            asyncio.run(run())

    def pages(self, path: str) -> list[Any]:
        """A page of every bookie."""
        return [json_page(bookie, path) for bookie in self.cluster.bookies]

    def wait_stored(self, ledger_id: int) -> None:
        """Wait until every bookie has stored that metadata had this ledger."""

        def is_stored() -> bool:
            paths = [one.directory / "ledgers" / NAME for one in self.cluster.bookies]
            marks = [json.loads(one.read_text()) for one in paths]
            return all(one["highest_id"] >= ledger_id for one in marks)

        wait_until(is_stored, f"every bookie stores that there was a ledger {ledger_id}", WAIT_S)

    def wait_cycles(self, candidates_max: int) -> None:
        """Wait until gc on every bookie was held, and found at most so many ledgers that metadata does not list.

        Fewer are candidates where a bookie had not seen metadata list one before: those wait for gc's other rule.
        """

        def is_held() -> bool:
            cycles = [page.get("cycle") for page in self.pages("/gc")]
            return all(
                one and one["candidates"] <= candidates_max and "on hold" in one["stopped"]
                for one in cycles
            )

        wait_until(is_held, "gc is held on every bookie", WAIT_S)

    def cli(self, *words: str) -> int:
        return main([*words, "--metadata", self.metadata.uri])


def is_held(page: dict[str, Any]) -> bool:
    """Whether a bookie's page says that metadata is on hold; data is served all the same."""
    assert page["ready"]
    return any(one["name"] == "metadata_hold" for one in page["conditions"])


def test_a_rollback_of_metadata_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = SqliteMetadata(tmp_path)
    bookies = 2  # each of them is restarted three times
    with LocalCluster(
        bookies, data=tmp_path / "data", metadata_uri=metadata.uri, settings=SETTINGS
    ) as cluster:
        world = World(cluster, metadata, (2, 2, 2))
        early = world.write(3)
        metadata.copy("older")
        wait_until(lambda: world.cli("cluster", "status") == 0, "all bookies are up again", WAIT_S)
        late = world.write(3)
        world.wait_stored(late[-1])
        metadata.copy("newer")
        world.restart_on("older")

        # Reported: by the command, by the cluster, by each bookie.
        assert world.cli("metadata", "status") == 1
        assert world.cli("cluster", "status") == 1
        assert "metadata is on hold" in capsys.readouterr().out
        on_hold = [metrics(one)["fastbk_supervisor_metadata_on_hold"] for one in cluster.bookies]
        assert on_hold == [1] * bookies
        assert all(is_held(one) for one in world.pages("/readyz"))
        # No id again, nothing wrong read, nothing deleted.
        again = world.write(2)
        assert min(again) > late[-1] + RESERVE_IDS / 2
        world.read(early + again)
        for ledger_id in late:
            world.is_not_there(ledger_id)
        world.wait_cycles(len(late))
        with pytest.raises(MetadataOnHold):
            world.delete(early[0])
        # The hold survives restarts, and the same restore once more, which loses what was written since, too.
        world.restart_on("older")
        assert world.cli("metadata", "status") == 1
        world.wait_cycles(len(late) + len(again))
        # The newer metadata finds everything that it ever had.
        world.restart_on("newer")
        assert world.cli("metadata", "status") == 1
        world.read(early + late)
        world.wait_cycles(len(again))
        # An operator confirms, and life goes on: what is not listed goes, what is listed stays.
        assert world.cli("metadata", "confirm", "--yes") == 0
        world.delete(early[0])
        wait_until(
            lambda: all(
                one["cycle"] and one["cycle"]["candidates"] == 0 and not one["cycle"]["stopped"]
                for one in world.pages("/gc")
            ),
            "gc has deleted what is not listed",
            WAIT_S,
        )
        assert min(world.write(2)) > max(again)
        world.read(early[1:] + late)
        assert world.cli("metadata", "status") == 0
        wait_until(
            lambda: not any(is_held(one) for one in world.pages("/readyz")),
            "bookies know that the hold is over",
            WAIT_S,
        )
