"""One bad record of each kind, planted in sqlite or a real ZooKeeper, against whatever lists or reads (INV-M17).

Nobody fails, everything else is found as before, the bad record is named once, and it can be removed or written anew.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import fastbk
from fastbk.admin.bad_records import find_bad_records, remove_bad_record
from fastbk.admin.bookie_identity import known_bookies
from fastbk.admin.cluster import marked
from fastbk.admin.metadata_backup import backup, restore
from fastbk.admin.metadata_rebuild import remade_store, unlisted_segments
from fastbk.autorecovery.auditor import Auditor, MarkingScan
from fastbk.autorecovery.state import ClusterState, WorkerReport
from fastbk.autorecovery.worker import MarkedLedgers
from fastbk.console.process import PAGES
from fastbk.errors import ConfigError, MetadataOnHold
from fastbk.formats import LEVEL_MAX
from fastbk.gc.dead_ledgers import Cluster, DeadLedgers
from fastbk.limits import RateLimit
from fastbk.meta import open_store, records
from fastbk.meta.api import (
    BookieIdentity,
    BookieService,
    DirectoryIdentity,
    Endpoint,
    Lease,
    MetadataStore,
)
from fastbk.meta.format_level import LEVEL_PATH, raise_level, read_or_first
from fastbk.meta.health_records import BACKUP_PATH as BACKUP_PATH
from fastbk.meta.health_records import read_last_backup
from fastbk.meta.records import Change
from fastbk.meta.replica_marks import path_of
from fastbk.meta.rollback import HOLD_PATH, MARK_PATH, UNREADABLE_ID, Mark, confirm_hold, raise_mark
from fastbk.meta.sqlite.store import SqliteStore
from fastbk.meta.zookeeper.paths import Layout, Paths, ledger_path
from fastbk.model.missing_replica import MissingReplica
from fastbk.overview.poller import CursorReader, HealingReader
from fastbk.replication.repair_options import CopyRate
from fastbk.security.rights import OPERATIONS
from fastbk.stream.client import Client
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.namespace.tree import ROOT_ID
from fastbk.stream.paths import (
    entry_path,
    namespace_path,
    stored_path,
    stream_path,
    usage_path,
)
from tests.fixtures.console import console_of
from tests.fixtures.gateway_store import behind_gateway, principal
from tests.fixtures.metadata import metadata
from tests.fixtures.zookeeper import ZooKeeperPlace

BAD, LEDGERS, GONE = 2, 4, 900
"""The ledger of which things are bad, all that there are, and one that bookies hold and metadata does not list."""
B1, B2 = "b1:3181", "b2:3181"


@dataclass
class World:
    """A small cluster's metadata, a way round its drivers, and the ids of what is in it."""

    uri: str
    store: MetadataStore
    folder: Path
    place: ZooKeeperPlace | None
    ids: dict[str, str] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)

    @property
    def paths(self) -> Paths:
        assert self.place is not None
        return Paths(self.place.path())

    def plant(self, statement: str, node: Callable[[Paths], str], raw: bytes) -> None:
        """Write bytes behind the driver's back: by an SQL statement, or into a node, which is made if it is missing."""
        if self.place is None:
            with closing(sqlite3.connect(self.uri.partition(":")[2])) as db:
                text = raw.decode() if "identity" in statement or "service" in statement else raw
                assert db.execute(statement, (text,)).rowcount == 1
                db.commit()
            return
        client = self.place.client()
        path = node(self.paths)
        if client.exists(path):
            client.set(path, raw)
        else:
            client.create(path, raw, makepath=True)
        client.stop()
        client.close()

    def put(self, path: str, raw: bytes) -> str:
        """Write a record, whatever is there; return its path."""
        (found,) = self.store.records.read([path])
        self.store.records.change([Change(path, raw, None if found is None else found.version)])
        return path


@dataclass(frozen=True)
class Kind:
    """A bad record.

    Attributes:
        plant: plants it; returns the name that it has to be listed by, "": it repairs itself, or goes with its session.
        loses: what readers do not find any more, and need not.
        is_repaired: a reader has written it anew.
        repair: what an operator does; None: he removes it by its name.
    """

    plant: Callable[[World], str]
    loses: frozenset[str] = frozenset()
    repair: Callable[[World, Client], Awaitable[None]] | None = None
    is_repaired: bool = False


MARK = frozenset({f"marked {BAD}", f"copies missing of {BAD}", f"apache's {BAD}"})


def ledger(raw: bytes) -> Kind:
    def plant(world: World) -> str:
        world.plant(
            f"UPDATE ledgers SET metadata = ? WHERE ledger_id = {BAD}",
            lambda paths: ledger_path(paths.root, Layout.HIERARCHICAL, BAD),
            raw,
        )
        return f"ledger {BAD}"

    return Kind(plant, frozenset({f"ledger {BAD}", *MARK}))


def identity(raw: bytes) -> Kind:
    def plant(world: World) -> str:
        statement = f"UPDATE identities SET identity = ? WHERE bookie_id = '{B2}'"
        world.plant(statement, lambda paths: paths.identity(B2), raw)
        return f"identity of bookie {B2}"

    return Kind(plant, frozenset({f"identity {B2}"}))


def registration(raw: bytes) -> Kind:
    def plant(world: World) -> str:
        statement = f"UPDATE bookies SET service = ? WHERE bookie_id = '{B2}'"
        world.plant(statement, lambda paths: paths.registration(B2, writable=True), raw)
        return f"registration of bookie {B2}"

    async def repair(world: World, client: Client) -> None:
        world.leases[1].close()

    return Kind(plant, frozenset({f"address {B2}"}), repair)


def record(path: Callable[[World], str], raw: bytes, *loses: str, repair: object = None) -> Kind:
    def plant(world: World) -> str:
        return world.put(path(world), raw)

    return Kind(plant, frozenset(loses), repair)  # type: ignore[arg-type]


def of_coordination(path: str, node: str, raw: bytes, *loses: str) -> Kind:
    """A record of AutoRecovery's in sqlite, a node of Apache's in ZooKeeper: both go, or are written anew, in time."""

    def plant(world: World) -> str:
        if world.place is None:
            world.put(path, raw)
        else:
            world.plant("", lambda paths: f"{paths.root}/underreplication/{node}", raw)
        return ""

    return Kind(plant, frozenset(loses))


def passing(names: Sequence[str], *loses: str) -> Kind:
    """Records that their owners write anew."""

    def plant(world: World) -> str:
        for name in names:
            world.put(f"autorecovery/{name}", b"garbage")
        return ""

    return Kind(plant, frozenset(loses))


def bucket(world: World) -> str:
    world.plant("", lambda paths: paths.deleted_bucket(BAD), b"1,x")
    return ""


def odd_name(world: World) -> str:
    world.plant(
        "INSERT INTO records VALUES ('streams/zz/a b', 1, ?)",
        lambda paths: f"{paths.records}/streams/zz/a b",
        b"x",
    )
    return "streams/zz/a b"


async def confirm(world: World, client: Client) -> None:
    assert confirm_hold(world.store, UNREADABLE_ID)


async def set_namespace(world: World, client: Client) -> None:
    await client.namespace("bad").set_policy(fastbk.PolicyPatch(roll_bytes=1 << 20))


async def delete_stream(world: World, client: Client) -> None:
    await client.namespace("bad").delete_stream("inside")


async def set_stream(world: World, client: Client) -> None:
    await (
        client.namespace("bad").stream("inside").set_policy(fastbk.PolicyPatch(roll_bytes=1 << 20))
    )


async def create_below(world: World, client: Client) -> None:
    await client.namespace("bad").create_stream("new")


async def write_mark(world: World, client: Client) -> None:
    raise_mark(world.store, Mark(highest_id=LEDGERS))


async def write_level(world: World, client: Client) -> None:
    raise_level(world.store, LEVEL_MAX)


DEEP = b"[" * 100_000
HEAD = b"BookieMetadataFormatVersion\t"
NUMBERS = b'{"version":1,"missing":[{"bookie":"b","first":-1,"last":1e999}]}'
INSIDE = ("stream bad/inside", "gateway's stream bad/inside")
GOOD = metadata(9, (B1, B2)).to_bytes()
HELD = ("collected", "made", "passed")
KINDS: dict[str, Kind] = {
    "ledger: garbage": ledger(b"garbage \xff\x1b[2J"),
    "ledger: nothing": ledger(b"\x00"),
    "ledger: cut off": ledger(GOOD[:-3]),
    "ledger: of a version to come": ledger(HEAD + b"4\n" + GOOD.partition(b"\n")[2]),
    "ledger: of a version of 5,000 digits": ledger(HEAD + b"9" * 5000 + b"\n"),
    "ledger: ends before its begin": ledger(
        metadata(9, (B1, B2))
        .to_bytes()
        .replace(b"\x20\x09", b"\x20\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1)
    ),
    "ledger: huge": ledger(HEAD + b"2\n" + b'password: "' + b"x" * 900_000),
    "identity: garbage": identity(b"garbage"),
    "identity: of another bookie": identity(
        b'{"bookie_id": "other", "incarnation": "1", "directories": []}'
    ),
    "identity: deep": identity(DEEP),
    "registration: garbage": registration(b"garbage"),
    "mark: garbage": replace(record(lambda _: path_of(BAD), b"{", *MARK), is_repaired=True),
    "mark: numbers": replace(record(lambda _: path_of(BAD), NUMBERS, *MARK), is_repaired=True),
    "mark: name": record(lambda _: "under_replicated/zz/nonsense", b"{}"),
    "lock": of_coordination("autorecovery/locks/0000000000000002", "locks/urL0000000002", b'x: "'),
    "vote": of_coordination(
        "autorecovery/votes/0000000000000000", "auditorelection/V_0000000000", b'x: "', "elected"
    ),
    "delay": of_coordination("autorecovery/lost_bookie_delay", "lostBookieRecoveryDelay", b"soon"),
    "check": of_coordination(
        "autorecovery/checks/checkallledgersctime", "checkallledgersctime", b"\xff"
    ),
    "apache's mark": of_coordination(
        "autorecovery/other", "ledgers/0000/0000/0000/0003/urL0000000003", b'x: "'
    ),
    "healing: all of its state": passing(
        ("settings", "hold", "maintenance", "lost_bookies", "audit", "leases", "workers/w1"),
        "worker w1",
    ),
    "deleted ids": Kind(bucket),
    "a name that no record has": Kind(odd_name),
    "namespace": record(
        lambda world: namespace_path(world.ids["bad"]), b"garbage", repair=set_namespace
    ),
    "namespace: itself its parent": record(
        lambda world: namespace_path(world.ids["bad"]), DEEP, repair=set_namespace
    ),
    "entry": record(lambda world: entry_path(world.ids["bad"], "inside"), b"garbage", *INSIDE),
    "usage": record(lambda world: usage_path(world.ids["bad"]), b"garbage", repair=create_below),
    "usage: of the root": record(lambda _: usage_path(ROOT_ID), b"garbage"),
    "stored": record(lambda world: stored_path(world.ids["bad"]), b"garbage"),
    "stream: deleted by its name": record(
        lambda world: stream_path(world.ids["inside"]), b"garbage", repair=delete_stream
    ),
    "stream: set anew": record(
        lambda world: stream_path(world.ids["inside"]), b'{"namespace":5}', repair=set_stream
    ),
    "hold": record(lambda _: HOLD_PATH, b"garbage", *HELD, repair=confirm),
    "hold: deep": record(lambda _: HOLD_PATH, DEEP, *HELD, repair=confirm),
    "rollback mark": record(
        lambda _: MARK_PATH, b"garbage", "collected", "made", repair=write_mark
    ),
    "format level": record(lambda _: LEVEL_PATH, b"garbage", repair=write_level),
    "last backup": record(lambda _: BACKUP_PATH, b"garbage"),
}
NOT_IN_SQLITE = {"deleted ids"}
IN_ZOOKEEPER = NOT_IN_SQLITE | {
    "ledger: garbage", "ledger: huge", "identity: garbage", "registration: garbage", "a name that no record has",
    "lock", "vote", "delay", "check", "apache's mark", "mark: garbage", "entry", "hold",
}  # fmt: skip
"""What its driver reads or names itself. Of all else it hands out the bytes, as of the last three."""


# --- readers ------------------------------------------------------------------------------------------------------


async def ledgers(world: World, client: Client) -> set[str]:
    found = {f"ledger {one.ledger_id}" async for one in client.list_ledgers()}
    return found | {f"id {one}" for one in world.store.list_ledgers()}


async def bookies(world: World, client: Client) -> set[str]:
    listed = await client.list_bookies()
    found = {f"alive {one.service.bookie_id}" for one in listed}
    found |= {f"address {one.service.bookie_id}" for one in listed if one.service.client_endpoint()}
    known = known_bookies(world.store)
    found |= {f"known {one.bookie_id}" for one in known}
    return found | {f"identity {one.bookie_id}" for one in known if one.incarnation != "unreadable"}


async def streams(world: World, client: Client) -> set[str]:
    found = {f"stream {one.path}" async for one in client.namespace("").streams(recursive=True)}
    for path in ("shop", "bad"):
        place = client.namespace(path)
        if await place.exists() and await place.stream_count() >= 0:
            await place.stored_bytes()
            found.add(f"namespace {path}")
    return found | {f"listed {one.path}" async for one in client.namespace("").namespaces()}


async def marks(world: World, client: Client) -> set[str]:
    found = {f"marked {one.ledger_id}" for one in await client.marks.list()}
    found |= {f"copies missing of {one.ledger_id}" async for one in marked(client)}
    return found | {f"apache's {one.ledger_id}" for one in world.store.marks.under_replicated()} - {
        "apache's 3"
    }


async def auditor(world: World, client: Client) -> set[str]:
    await Auditor(client, "a", CopyRate()).audit_bookies()
    lost = (await ClusterState(client.records).lost_bookies.read()).lost
    if set(lost) - {B2}:
        return set()
    await MarkingScan(client, ClusterState(client.records)).run(lambda: {B1: 5}, lambda: True)
    return {"audited"}


async def worker(world: World, client: Client) -> set[str]:
    read = MarkedLedgers(client)
    await read.read({B1, B2})
    reports = await ClusterState(client.records).workers()
    return {f"marked {one}" for one in read.live_copies} | {f"worker {one}" for one in reports}


async def coordination(world: World, client: Client) -> set[str]:
    for _ in world.store.coordination.locks():
        pass
    world.store.coordination.worker_of(BAD)
    with closing(open_store(world.uri)) as other:
        vote = other.coordination.vote("b9")
        assert other.coordination.auditor()
        is_elected = vote.is_elected()
        vote.close()
    return {"elected"} if is_elected else set()


@dataclass
class Local:
    """What a bookie holds."""

    deleted: list[int] = field(default_factory=list)

    def ids(self) -> array[int]:
        return array("q", [*range(LEDGERS), GONE])

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        self.deleted += ledger_ids
        return len(ledger_ids)


async def gc(world: World, client: Client) -> set[str]:
    local = Local()
    collector = DeadLedgers(local, world.store, Cluster(world.store), RateLimit(1e6))  # type: ignore[arg-type]
    collector.run(), collector.run()
    assert set(local.deleted) <= {GONE}, "no ledger that metadata lists"
    return {"collected"} if local.deleted else set()


async def janitor(world: World, client: Client) -> set[str]:
    try:
        await Janitor(client, JanitorOptions(thorough_every=1)).pass_once(thorough=True)
    except MetadataOnHold:
        return set()
    return {"passed"}


async def backups(world: World, client: Client) -> set[str]:
    path = world.folder / "backup"
    summary = backup(world.store, path)
    with closing(
        remade_store(f"sqlite:{world.folder}/restored.sqlite", summary.head.instance_id)
    ) as other:
        restore(other, path)
        found = {f"ledger {one}" for one in other.list_ledgers()}
        found |= {f"identity {one.bookie_id}" for one in other.list_identities()}
    for one in world.folder.glob("restored.sqlite*"):
        one.unlink()
    return found


async def segments(world: World, client: Client) -> set[str]:
    return {f"unlisted {one}" for one in unlisted_segments(world.store).unlisted}


async def creation(world: World, client: Client) -> set[str]:
    try:
        ledger_id = world.store.next_ledger_id()
        world.store.create_ledger(ledger_id, metadata(1))
        world.store.delete_ledger(ledger_id)
    except (MetadataOnHold, fastbk.StorageError):
        return set()
    return {"made"}


async def overview(world: World, client: Client) -> set[str]:
    await HealingReader(client).read()
    await CursorReader(client, 10).read()
    read_or_first(world.store)
    read_last_backup(world.store)
    return {"shown"}


async def gateway(world: World, client: Client) -> set[str]:
    store, _ = behind_gateway(world.store, principal(*OPERATIONS))
    found = {f"gateway's id {one}" for one in store.list_ledgers()}
    store.read_ledgers(list(range(LEDGERS)))
    async with Client(store) as theirs:
        found |= {
            f"gateway's stream {one.path}"
            async for one in theirs.namespace("").streams(recursive=True)
        }
    return found | {f"gateway's alive {one.service.bookie_id}" for one in store.list_bookies()}


READERS = (
    ledgers, bookies, streams, marks, auditor, worker, coordination, gc, janitor, backups, segments, creation,
    overview, gateway,
)  # fmt: skip


async def found_by_all(world: World, client: Client) -> set[str]:
    return {one for read in READERS for one in await read(world, client)}


_found_in: dict[str, set[str]] = {}


async def found_in_whole(where: str, world: World, client: Client) -> set[str]:
    """Return what readers find in a world without a bad record: all worlds in one kind of store begin the same."""
    if where not in _found_in:
        _found_in[where] = await found_by_all(world, client)
    return _found_in[where]


# --- the world ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def world_in(
    kind: str, request: pytest.FixtureRequest, folder: Path
) -> AsyncIterator[tuple[World, Client]]:
    place: ZooKeeperPlace | None = None
    uri = f"sqlite:{folder}/metadata.sqlite"
    if kind == "zookeeper":
        place = request.getfixturevalue("zookeeper")
        uri = place.uri()
    # Nobody renews its leases, and readers take long on a busy machine.
    with closing(
        open_store(uri) if place else SqliteStore(uri.removeprefix("sqlite:"), lease_s=3600)
    ) as store:
        world = World(uri, store, folder, place)
        for ledger_id in range(LEDGERS):
            store.next_ledger_id()
            store.create_ledger(ledger_id, metadata(9, (B1, B2)))
            store.marks.update(ledger_id, add=[MissingReplica(B1, 0, 5)])
        for number, name in enumerate((B1, B2)):
            store.write_identity(
                BookieIdentity(name, number, (DirectoryIdentity("d", "journal"),)), None
            )
            here = BookieService(name, number, (Endpoint("127.0.0.1", 1),))
            world.leases.append(store.register_bookie(here, writable=True))
        raise_mark(store, Mark(highest_id=LEDGERS))
        async with Client(store) as client:
            for path, name in (("shop", "good"), ("bad", "inside")):
                await client.namespace(path).create(fastbk.PolicyPatch(bytes_max=1 << 40))
                stream = await client.namespace(path).create_stream(name)
                world.ids[name] = (await stream.context()).stream_id
            for path in ("shop", "bad"):
                world.ids[path] = (await client.namespace(path)._catalog.place((path,))).here.id
            await ClusterState(client.records).worker("w1").put(WorkerReport(counter=1))
            yield world, client


@contextmanager
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give what is logged as bad, by its path."""
    told: list[str] = []

    def note(event: str, /, **fields: object) -> None:
        assert event == "metadata.bad_record"
        told.append(str(fields["path"]))

    monkeypatch.setattr(records, "_named", records._NamedRecords())
    monkeypatch.setattr(records._log, "error", note)
    yield told


CASES = [
    pytest.param(name, where, id=f"{name} in {where}")
    for where, names in (("sqlite", KINDS.keys() - NOT_IN_SQLITE), ("zookeeper", IN_ZOOKEEPER))
    for name in KINDS
    if name in names
]


@pytest.mark.parametrize(("name", "where"), CASES)
async def test_a_bad_record_stops_nobody(
    name: str, where: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """INV-M17."""
    kind = KINDS[name]
    async with world_in(where, request, tmp_path) as (world, client):
        before = await found_in_whole(where, world, client)
        assert {"collected", "made", "passed", "elected", f"ledger {BAD}"} <= before
        with named(monkeypatch) as told:
            listed = kind.plant(world)
            async with Client(world.store) as fresh:
                after = await found_by_all(world, fresh)
            assert before - after <= kind.loses
            assert len(told) == len(set(told)), "each is named once"
            if not listed:
                return
            # What is in a listing has its fault there, and the janitor tells of its streams itself.
            assert listed in told or listed in caplog.text
            if kind.is_repaired:
                return
            assert [one.path for one in find_bad_records(world.store)] == [listed]
            if kind.repair is not None:
                async with Client(world.store) as fresh:
                    await kind.repair(world, fresh)
            elif name == "a name that no record has":
                with pytest.raises(ConfigError, match="not one of fastbk's"):
                    remove_bad_record(world.store, listed)
                return
            else:
                if listed == f"identity of bookie {B2}":
                    with pytest.raises(fastbk.MetadataConflict, match="running"):
                        remove_bad_record(world.store, listed)
                    world.leases[1].close()
                remove_bad_record(world.store, listed)
            assert find_bad_records(world.store) == []


async def test_what_can_be_read_is_not_removed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with world_in("sqlite", request, tmp_path) as (world, _):
        for name in (
            "ledger 1",
            f"identity of bookie {B1}",
            namespace_path(world.ids["bad"]),
            "../x",
            "",
        ):
            with pytest.raises(ConfigError, match="cannot be read"):
                remove_bad_record(world.store, name)
        assert len(world.store.list_ledgers()) == LEDGERS


async def test_pages_of_the_console_go_on(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Pages of many show the others; the page of a bad one says what is wrong with it."""
    async with world_in("sqlite", request, tmp_path) as (world, _):
        for name, kind in KINDS.items():
            if name not in NOT_IN_SQLITE and kind.loses.isdisjoint(INSIDE):
                kind.plant(world)
        world.put(path_of(1), b"{")
        async with console_of(world.uri, tmp_path) as (_, visitor):
            for path in PAGES:
                if "{" not in path and path != "/series":
                    page = await visitor.get(path)
                    assert page.status == 200, (path, page.text)
            listed = (await visitor.get("/ledgers")).text
            assert 'href="/ledger/1"' in listed and f"ledger {BAD}: ledger metadata" in listed
            assert "the mark of ledger 1 is damaged" in (await visitor.get("/ledger/1")).text
            for path, name in (
                (f"/ledger/{BAD}", f"ledger {BAD}"),
                ("/namespace/bad", world.ids["bad"]),
            ):
                page = await visitor.get(path)
                assert page.status == 503 and name in page.text
            assert (await visitor.get("/stream/shop/good")).status == 200
