"""An operator's walk on three ZooKeeper servers: metadata restored and rebuilt, a journal repaired, a roll, a gateway.

Streams and ledgers are the same, byte for byte, after each of these.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.gateways import GatewayProcess
from tests.fixtures.restart_server import restart_server, restarts_into
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper_ensemble import ZooKeeperEnsemble
from tests.integration.test_journal_damage import ENTRIES, data_of, fill, flip_one_byte
from tests.integration.test_metadata_rebuild import SETTINGS, World

SICK = 1
WAIT_S = 60.0


class Walk:
    """One cluster and its operator, who notes how long each step took."""

    def __init__(self, cluster: LocalCluster, ensemble: ZooKeeperEnsemble, folder: Path) -> None:
        self.cluster = cluster
        self.ensemble = ensemble
        self.folder = folder
        self.cli = Cli(ensemble.uri)
        self.world = World(cluster, ensemble.uri)
        self.lines = b"".join(b"%d\n" % one for one in range(2000))
        self.streams: dict[str, bytes] = {}
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began_s, 1)

    def append(self, stream: str, more: bytes) -> None:
        self.streams[stream] = self.streams.get(stream, b"") + more
        self.cli("stream", "append", stream, "--create", "--resume", stdin=self.streams[stream])

    def records(self) -> dict[str, bytes]:
        return {one: self.cli.raw("stream", "read", one, "--json") for one in self.streams}

    def segments(self) -> list[fastbk.SegmentInfo]:
        """What metadata says of a stream."""
        with fastbk.sync.connect(self.ensemble.uri) as client:
            return client.namespace("shop").stream("orders").segments()

    def compare(self) -> None:
        """Read all payloads and entries."""
        for stream, lines in self.streams.items():
            assert self.cli.raw("stream", "read", stream, "--payload") == lines, stream
        for ledger_id, entries in self.world.acked.items():
            assert self.cli.raw("ledger", "read", str(ledger_id), "--raw") == b"".join(entries), (
                ledger_id
            )

    def loses_all_metadata(self) -> None:
        """Backup, wipe, restore; then a rebuild, which finds the segments that are newer than the backup."""
        cli, backup = self.cli, str(self.folder / "backup")
        cli("namespace", "create", "shop")
        self.append("shop/orders", self.lines)
        asyncio.run(self.world.write(5))
        with self.step("backup"):
            cli("metadata", "backup", "--to", backup)
        known, before = dict(self.streams), self.records()
        segments = self.segments()
        self.append("shop/orders", b"".join(b"%d\n" % one for one in range(2000, 3000)))
        self.append("shop/late", self.lines)
        asyncio.run(self.world.write(5))
        after = self.records()
        ledgers = set(map(int, cli("ledger", "list").split()))
        wait_until(lambda: self.world.seen_by_all(ledgers), "all ledgers are seen", WAIT_S)
        self.world.kill()
        self.ensemble.wipe()
        with self.step("restore"):
            cli("metadata", "restore", backup)
        assert self.segments() == segments
        self.world.start()
        assert {one: cli.raw("stream", "read", one, "--json") for one in known} == before
        for bookie in self.cluster.bookies:
            bookie.request_stop()  # what is killed is registered until its session ends
        for bookie in self.cluster.bookies:
            bookie.wait_gone()
        with self.step("collect and rebuild"):
            cli("metadata", "rebuild", *self.world.collect(self.folder, cli), "--backup", backup)
        # What comes next lies in the journal alone.
        self.cluster.bookies[SICK].sections["ledgers"]["flush_interval"] = "1h"
        with self.step("bookies start"):
            self.world.start()
        with self.step("reattach"):
            found = cli("stream", "reattach")
        assert "shop/orders: 1 segment put back\n" in found
        assert "shop/late, made anew: 1 segment put back\n" in found
        assert self.records() == after
        self.append("shop/orders", b"last\n")
        cli("metadata", "confirm", "--yes")
        self.compare()

    def has_a_damaged_journal(self) -> None:
        """One byte flipped at rest: found at the start, told by the verdict, repaired, and forgotten."""
        cli, sick = self.cli, self.cluster.bookies[SICK]
        newest = asyncio.run(self.fill())
        self.world.acked[newest] = [data_of(newest, one) for one in range(ENTRIES)]
        self.cluster.kill(SICK)
        sick.wait_gone()
        flip_one_byte(sick, data_of(newest, 7))
        sick.sections["ledgers"]["flush_interval"] = "200ms"
        with self.step("start with a damaged journal"):
            self.cluster.start_bookie(SICK)
        assert '"journal.damaged"' in sick.log_path.read_text()
        code, _, said = cli.answer("cluster", "status")
        assert code == 1, said
        self.compare()
        with self.step("bookie repair"):
            code, answer, said = cli.answer("bookie", "repair", sick.name)
        assert (code, answer["entries_lost"]) == (0, 0), said
        assert answer["entries_copied"] > 0
        with self.step("until the verdict is well"):
            wait_until(
                lambda: cli.run("cluster", "status")[0] == 0,
                "nothing of the damage is left",
                WAIT_S,
            )
        code, answer, said = cli.answer("cluster", "under-replicated", "--verify")
        assert (code, answer["missing"]) == (0, []), said

    async def fill(self) -> int:
        async with fastbk.connect(self.ensemble.uri) as client:
            return await fill(client, 3, 3, 2)

    async def rolls(self) -> None:
        with self.step("roll of three"):
            async with restart_server(self.folder, restarts_into(self.cluster, None)) as command:
                code, done, said = await self.cli.answer_async(
                    "cluster", "roll", "--restart", command
                )
        assert (code, len(done["restarted"])) == (0, 3), said

    def uses_a_gateway(self) -> None:
        """Versions of records are those of three servers there, too."""
        gateway = GatewayProcess(self.folder / "gateway", self.ensemble.uri, None)
        gateway.start()
        try:
            direct, self.cli = self.cli, Cli(gateway.uri)
            with self.step("through a gateway"):
                self.append("shop/orders", b"through a gateway\n")
                assert (
                    self.cli.raw("stream", "read", "shop/orders", "--payload")
                    == self.streams["shop/orders"]
                )
            self.cli = direct
        finally:
            assert gateway.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_operator_walks_from_a_backup_to_a_roll(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path / "zookeeper") as ensemble:
        uri, data = ensemble.uri, tmp_path / "c"
        with LocalCluster(
            3, settings=SETTINGS, metadata_uri=uri, data=data, write_services=0
        ) as cluster:
            walk = Walk(cluster, ensemble, tmp_path)
            walk.loses_all_metadata()
            walk.has_a_damaged_journal()
            asyncio.run(walk.rolls())
            walk.append("shop/orders", b"after the roll\n")
            walk.uses_a_gateway()
            walk.compare()
            code, answer, said = walk.cli.answer("ledger", "audit")
            assert (code, answer["is_whole"]) == (0, True), said
            print("seconds:", walk.seconds)
