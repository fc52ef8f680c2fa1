"""Metadata is lost, and comes back out of the bookies' directories: each acknowledged entry, and nothing deleted.

INV-M8, INV-M9, INV-M10.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient

import fastbk
from fastbk.admin.metadata_backup import ArchiveWriter, Ledger, Ledgers, read_archive
from fastbk.errors import MetadataOnHold, NoSuchLedger
from fastbk.meta.uri import open_store, parse_zookeeper
from fastbk.meta.zookeeper.admin import Cookies
from fastbk.model.ids import BookieId
from fastbk.native.disk import Disk
from fastbk.producers.owner import StreamOwner
from fastbk.storage.identity import read_identity, write_identity
from fastbk.storage.last_metadata import NAME, LastMetadata, read_last_metadata
from fastbk.stream.kind import table_of
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.metadata import new_cluster
from tests.fixtures.stream_owners import produced
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace

SETTINGS = {"gc": {"interval": "200ms"}, "ledgers": {"flush_interval": "200ms"}}
BOOKIES = 4
APACHE_COOKIE = b'4\nbookieHost: "host:3181"\n'
WAIT_S = 60.0


class World:
    """A cluster, and what was acknowledged to each of its ledgers."""

    def __init__(
        self, cluster: LocalCluster, uri: str, shape: tuple[int, int, int] = (3, 3, 2)
    ) -> None:
        """`shape`: ensemble size and quorums of ledgers that are simply written."""
        self.cluster = cluster
        self.uri = uri
        self.shape = shape
        self.acked: dict[int, list[bytes]] = {}

    @property
    def directories(self) -> list[Path]:
        return [one.directory for one in self.cluster.bookies]

    async def fill(self) -> None:
        """Write ledgers that are closed, left open, and have changed their ensemble while being written."""
        async with fastbk.connect(self.uri) as client:
            for quorums in ((3, 3, 2), (3, 2, 2), (2, 2, 2)):
                async with await client.create_ledger(*quorums) as writer:
                    await self._append(writer, 30)
            opened = await client.create_ledger(3, 2, 2)
            await self._append(opened, 25)
            changed = await client.create_ledger(3, 2, 2)
            await self._append(changed, 10)
            member = changed.metadata.fragments[-1].ensemble[0]
            self.cluster.bookies[self._number(member)].kill()
            await self._append(changed, 10)
            assert len(changed.metadata.fragments) > 1

    async def write(self, count: int) -> None:
        """Write closed ledgers."""
        async with fastbk.connect(self.uri) as client:
            for _ in range(count):
                async with await client.create_ledger(*self.shape) as writer:
                    await self._append(writer, 20)

    def kill(self) -> None:
        for bookie in self.cluster.bookies:
            bookie.kill()
            bookie.wait_gone()

    def start(self) -> None:
        boots = [one.boots for one in self.cluster.bookies]
        for bookie in self.cluster.bookies:
            bookie.spawn()
        for number, before in enumerate(boots):
            self.cluster.wait_ready(number, before + 1)

    def _number(self, bookie_id: str) -> int:
        return [one.name for one in self.cluster.bookies].index(bookie_id)

    async def _append(self, writer: fastbk.LedgerWriter, count: int) -> None:
        acked = self.acked.setdefault(writer.ledger_id, [])
        entries = [b"%d-%d" % (writer.ledger_id, len(acked) + n) for n in range(count)]
        await asyncio.gather(*map(writer.append, entries))
        acked += entries

    async def delete(self, ledger_id: int) -> None:
        async with fastbk.connect(self.uri) as client:
            await client.delete_ledger(ledger_id)

    async def compare(self, deleted: int) -> None:
        """Read everything back; the deleted ledger is not there."""
        async with fastbk.connect(self.uri) as client:
            for ledger_id, entries in self.acked.items():
                if ledger_id == deleted:
                    continue
                reader = await client.open_ledger(ledger_id)
                assert [bytes(one.data) async for one in reader.read()] == entries, ledger_id
            with pytest.raises(NoSuchLedger):
                await client.open_ledger(deleted)
            new = await client.create_ledger(*self.shape)
            assert new.ledger_id > max(self.acked)
            await new.close()

    def seen_by_all(self, ledger_ids: set[int]) -> bool:
        seen: set[int] = set()
        for one in self.directories:
            seen |= read_last_metadata(one / "ledgers")[0].keys()
        return ledger_ids <= seen

    def someone_saw_deleted(self, ledger_id: int) -> bool:
        return any(ledger_id in read_last_metadata(one / "ledgers")[1] for one in self.directories)

    def collect(self, folder: Path, cli: Cli) -> list[str]:
        files = []
        for one in self.directories:
            files.append(str(folder / f"{one.name}.collected"))
            cli("metadata", "collect", "--data", str(one), "--to", files[-1])
        return files


def lose(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def test_every_acknowledged_entry_is_there_after_metadata_was_lost(tmp_path: Path) -> None:
    """Twice: what holds of all ledgers holds of those that only their holders know, too."""
    path = tmp_path / "metadata.sqlite"
    uri = new_cluster(path)
    with LocalCluster(
        BOOKIES, settings=SETTINGS, metadata_uri=uri, data=tmp_path / "c", write_services=0
    ) as cluster:
        world = World(cluster, uri)
        asyncio.run(world.fill())
        for bookie in cluster.bookies:
            if not bookie.is_running:
                bookie.spawn()
        cluster.wait_ready()
        deleted = min(world.acked)
        wait_until(lambda: world.seen_by_all(set(world.acked)), "all ledgers are seen", WAIT_S)
        asyncio.run(world.delete(deleted))
        wait_until(lambda: world.someone_saw_deleted(deleted), "the deletion is seen", WAIT_S)
        world.kill()
        cut_a_start_short(cluster.bookies[0].directory / "journal")
        is_made_anew(world, path, tmp_path, deleted)
        world.kill()
        for one in world.directories:
            notes = one / "ledgers" / NAME
            _, gone = read_last_metadata(one / "ledgers")
            notes.unlink(missing_ok=True)
            keep_deletions(one / "ledgers", list(gone))
        is_made_anew(world, path, tmp_path, deleted)
        Cli(uri)("metadata", "confirm", "--yes")
        asyncio.run(world.compare(deleted))


def is_made_anew(world: World, path: Path, folder: Path, deleted: int) -> None:
    """Lose metadata while no bookie runs, make it anew, start the bookies, and read everything back."""
    lose(path)
    cli = Cli(world.uri)
    files = world.collect(folder, cli)
    done = json.loads(cli("metadata", "rebuild", *files, "--json"))
    assert done["created"] == len(world.acked) - 1
    again = json.loads(cli("metadata", "rebuild", *files, "--json"))
    assert (again["created"], again["updated"]) == (0, 0)
    assert again["unchanged"] == done["created"]
    store = open_store(world.uri)
    with pytest.raises(MetadataOnHold):
        store.delete_ledger(max(world.acked))
    store.close()
    world.start()
    asyncio.run(world.compare(deleted))


def cut_a_start_short(directory: Path) -> None:
    """Leave what a start leaves that is killed when it is counted in the first of its directories."""
    with Disk(directory, "plain") as disk:
        identity = read_identity(disk, str(directory))
        assert identity is not None
        write_identity(
            disk, str(directory), msgspec.structs.replace(identity, starts=identity.starts + 1)
        )


def keep_deletions(directory: Path, ranges: list[tuple[int, int]]) -> None:
    file = LastMetadata(directory)
    file.see_deleted([one for first, last in ranges for one in range(first, last + 1)])
    file.close()


def damage_ledger(backup: Path, other: Path, ledger_id: int) -> None:
    """Write the same backup, in which one ledger's metadata is cut short; its checksums are right."""
    with other.open("wb") as file:
        writer = ArchiveWriter(file)
        for frame in read_archive(backup):
            if isinstance(frame, Ledgers):
                cut = [
                    one.metadata[: -5 if one.ledger_id == ledger_id else None]
                    for one in frame.items
                ]
                replaced = zip(frame.items, cut, strict=True)
                frame.items = [Ledger(one.ledger_id, raw, one.version) for one, raw in replaced]
            writer.write(frame)


@pytest.mark.long
def test_a_backup_is_completed_and_loses_what_a_bookie_saw_deleted(tmp_path: Path) -> None:
    """Streams come from the backup, ledgers that are newer from the bookies; newer segments are attached by hand."""
    path = tmp_path / "metadata.sqlite"
    uri = new_cluster(path)
    with LocalCluster(
        3, settings=SETTINGS, metadata_uri=uri, data=tmp_path / "c", write_services=0
    ) as cluster:
        world = World(cluster, uri)
        asyncio.run(world.write(2))
        deleted = min(world.acked)
        cli = Cli(uri)
        cli("namespace", "create", "shop")
        cli("stream", "create", "shop/orders")
        cli("stream", "append", "shop/orders", stdin=b"one\ntwo\n")
        wait_until(lambda: world.seen_by_all(set(world.acked)), "all ledgers are seen", WAIT_S)
        backup = str(tmp_path / "backup")
        taken = json.loads(cli("metadata", "backup", "--to", backup, "--json"))
        assert (taken["ledgers"], taken["bookies"]) == (3, 3)
        assert json.loads(cli("metadata", "check", backup, "--json")) == taken
        asyncio.run(world.write(2))
        asyncio.run(world.delete(deleted))
        cli("stream", "append", "shop/orders", stdin=b"three\n")
        newer = max(map(int, cli("ledger", "list").split()))
        changed = json.loads(cli("metadata", "diff", backup, "--json", code=1))["differences"]
        assert {(one["kind"], one["change"]) for one in changed} >= {
            ("ledger", "added"),
            ("ledger", "deleted"),
        }
        wait_until(
            lambda: world.seen_by_all({newer} | set(world.acked) - {deleted}), "new ones", WAIT_S
        )
        wait_until(lambda: world.someone_saw_deleted(deleted), "the deletion is seen", WAIT_S)
        world.kill()
        lose(path)
        rebuild = (
            "metadata",
            "rebuild",
            *world.collect(tmp_path, cli),
            "--backup",
            backup,
            "--json",
        )
        done = json.loads(cli(*rebuild))
        assert (done["created"], done["deleted"]) == (3, 1)
        assert done["streams"] == {}, "the backup has its record"
        assert done["unlisted"] == {"shop/orders": [newer]}, (
            "its record is older than its last segment"
        )
        again = json.loads(cli(*rebuild))
        assert (again["created"], again["updated"], again["deleted"]) == (0, 0, 0)
        assert cli.json("metadata", "show")["instance_id"] == taken["instance_id"]
        # An older version may have backed up a ledger that nobody can read now: the bookies know it (INV-M17).
        older, unreadable = str(tmp_path / "older"), sorted(world.acked)[1]
        damage_ledger(Path(backup), Path(older), unreadable)
        words = [older if one == backup else one for one in rebuild]
        told = json.loads(Cli(f"sqlite:{tmp_path}/other")(*words, code=1))
        assert told["created"] == done["created"] + 1
        (named,) = told["not_restored"]
        assert named.startswith(f"ledger {unreadable}: ")
        world.start()
        asyncio.run(world.compare(deleted))
        assert cli.raw("stream", "read", "shop/orders") == b"1.0.0\tone\n1.0.1\ttwo\n"
        for _ in range(2):
            assert cli("stream", "attach", "shop/orders", str(newer)) == "2.0.0\n"
        assert cli.raw("stream", "read", "shop/orders") == b"1.0.0\tone\n1.0.1\ttwo\n2.0.0\tthree\n"
        cli("metadata", "confirm", "--yes")


async def with_producers(uri: str) -> dict[bytes, int]:
    """Have producers append to a stream by owners that die, one of which only opened names; return its table."""
    async with fastbk.connect(uri) as client:
        stream = await client.namespace("shop").create_stream("tills")
        for life, count in enumerate((3, 0, 2)):
            owner = await StreamOwner.take_over(await stream.context(), f"service:{life}")
            await produced(owner, b"till-1", count)
            await produced(owner, b"till-%d" % (2 + life), 0)
            owner.abandon()
        await stream.set_kind("writer")  # it closes the last segment
        await stream.set_kind("producers")
    return await table_of_tills(uri)


async def table_of_tills(uri: str) -> dict[bytes, int]:
    """Return the last numbers of a stream of producers."""
    async with fastbk.connect(uri) as client:
        stream = client.namespace("shop").stream("tills")
        assert (await stream.info()).kind == "producers"
        context = await stream.context()
        table = await table_of(context, (await context.store.read()).chain)
        return {name: row.last_number for name, row in table.items()}


def test_streams_are_put_together_from_their_ledgers(tmp_path: Path) -> None:
    """No backup: namespaces, streams, positions, sequence numbers and transaction ids come out of the ledgers."""
    path = tmp_path / "metadata.sqlite"
    uri = new_cluster(path)
    with LocalCluster(
        3, settings=SETTINGS, metadata_uri=uri, data=tmp_path / "c", write_services=0
    ) as cluster:
        world, cli = World(cluster, uri), Cli(uri)
        lines = b"".join(b"%d\n" % one for one in range(300))
        cli("namespace", "create", "shop/eu")
        for stream, parts in (("shop/eu/orders", 3), ("plain", 1), ("shop/cut", 4)):
            for part in range(1, parts + 1):
                end = len(lines) * part // parts if part < parts else len(lines)
                end = lines.rfind(b"\n", 0, end) + 1
                cli("stream", "append", stream, "--create", "--resume", stdin=lines[:end])
        cli("stream", "truncate", "shop/cut", "--before", "seq:200", "--yes")
        deleted = set(map(int, cli("ledger", "list").split()))
        cli("stream", "delete", "plain", "--yes")
        deleted -= set(map(int, cli("ledger", "list").split()))
        cli("stream", "append", "plain", "--create", "--resume", stdin=lines)
        table = asyncio.run(with_producers(uri))
        names = ("shop/eu/orders", "plain", "shop/cut", "shop/tills")
        before = {one: cli.raw("stream", "read", one, "--json") for one in names}
        ledgers = set(map(int, cli("ledger", "list").split()))
        wait_until(lambda: world.seen_by_all(ledgers), "all ledgers are seen", WAIT_S)
        wait_until(
            lambda: all(map(world.someone_saw_deleted, deleted)), "the deletion is seen", WAIT_S
        )
        world.kill()
        lose(path)
        done = json.loads(cli("metadata", "rebuild", *world.collect(tmp_path, cli), "--json"))
        assert len(done["streams"]) == 4
        world.start()
        put_back = json.loads(cli("stream", "reattach", "--json"))
        assert {one["stream"] for one in put_back["streams"]} == set(names)
        assert all(one["is_made"] for one in put_back["streams"])
        again = {one: cli.raw("stream", "read", one, "--json") for one in names}
        assert again["shop/eu/orders"] == before["shop/eu/orders"]
        assert again["plain"] == before["plain"]
        assert again["shop/tills"] == before["shop/tills"]
        notes = {one["stream"]: " ".join(one["notes"]) for one in put_back["streams"]}
        assert "fastbk stream kind shop/tills producers" in notes["shop/tills"], "the level is lost"
        cli("cluster", "finalize", "--yes")
        cli("stream", "kind", "shop/tills", "producers")
        assert asyncio.run(table_of_tills(uri)) == table
        assert again["shop/cut"].endswith(before["shop/cut"]), "where it was truncated is lost"
        assert cli("stream", "reattach") == "no stream lacks segments\n"
        more = lines + b"one more\n"
        cli("stream", "append", "shop/eu/orders", "--resume", stdin=more)
        records = [
            json.loads(one)
            for one in cli.raw("stream", "read", "shop/eu/orders", "--json").splitlines()
        ]
        assert len(records) == 301, "nothing is missing or twice"
        cli("metadata", "confirm", "--yes")


@pytest.mark.long
def test_wiped_zookeeper_is_made_anew(
    zookeeper: ZooKeeperPlace, peek: KazooClient, tmp_path: Path
) -> None:
    """Restored from a backup, and made anew without one; servers that lost their data: test_operator_walk."""
    uri = zookeeper.uri()
    location, backup = parse_zookeeper(uri), str(tmp_path / "backup")

    def wipe() -> None:
        peek.delete(zookeeper.path(), recursive=True)

    with LocalCluster(
        1, settings=SETTINGS, metadata_uri=uri, data=tmp_path / "c", write_services=0
    ) as cluster:
        cli, world = Cli(uri), World(cluster, uri, (1, 1, 1))
        instance_id = cli.json("metadata", "show")["instance_id"]
        asyncio.run(world.write(3))
        deleted = min(world.acked)
        wait_until(lambda: world.seen_by_all(set(world.acked)), "all ledgers are seen", WAIT_S)
        asyncio.run(world.delete(deleted))
        wait_until(lambda: world.someone_saw_deleted(deleted), "the deletion is seen", WAIT_S)
        with closing(Cookies(location)) as cookies:
            cookies.create(BookieId("host:3181"), APACHE_COOKIE)
        cli("metadata", "backup", "--to", backup)
        world.kill()
        wipe()
        cli("metadata", "restore", backup)
        with closing(Cookies(location)) as cookies:
            assert cookies.read(BookieId("host:3181")) == APACHE_COOKIE
        assert "as the backup has it" in cli("metadata", "diff", backup)
        wipe()
        cli("metadata", "rebuild", *world.collect(tmp_path, cli))
        assert cli.json("metadata", "show")["instance_id"] == instance_id
        world.start()
        asyncio.run(world.compare(deleted))
