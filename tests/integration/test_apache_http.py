"""Apache's HTTP endpoints, one by one, on a bookie that runs; those about AutoRecovery on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fastbk
from fastbk.apache.http.answers import StoreThreads
from fastbk.apache.http.pages import AutoRecoveryPages
from fastbk.devcluster import Bookie
from fastbk.errors import ConfigError, NoSuchLedger, NotEnoughBookies
from fastbk.meta import open_store
from fastbk.meta.replica_marks import UnderreplicatedLedger
from fastbk.meta.zookeeper.store import ZooKeeperStore
from fastbk.model.missing_replica import MissingReplica
from fastbk.testing import LocalCluster
from fastbk.web.page_server import Request, Response
from tests.fixtures.pages import page
from tests.fixtures.wait import wait_until_async
from tests.fixtures.zookeeper import ZooKeeperPlace

V1 = "/api/v1/"
SETTINGS = {"bookie": {"read_only_persists": True}, "gc": {"interval": "1h"}}


class Pages:
    """The pages of the only bookie of a cluster, asked beside the loop."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    async def raw(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        return await asyncio.to_thread(page, self.cluster.bookies[0], path, method, body)

    async def get(self, path: str) -> Any:
        status, text = await self.raw("GET", V1 + path)
        assert status == 200, text
        return json.loads(text)

    async def put(self, path: str, value: object) -> tuple[int, str]:
        return await self.raw("PUT", V1 + path, json.dumps(value))


async def test_every_endpoint_of_one_bookie(tmp_path: Path) -> None:
    async with (
        LocalCluster(1, data=tmp_path / "data", settings=SETTINGS) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        pages = Pages(cluster)
        bookie_id = cluster.bookies[0].name
        async with await client.create_ledger(1, 1, 1) as writer:
            await writer.append(b"hello")

        await check_state_and_files(pages, cluster.bookies[0])
        await check_garbage(pages, cluster.bookies[0])
        await check_by_client(pages, bookie_id, str(writer.ledger_id))
        await check_metadata(pages, bookie_id, str(writer.ledger_id))


async def check_state_and_files(pages: Pages, bookie: Bookie) -> None:
    assert await pages.raw("GET", "/heartbeat") == (200, "OK\n")
    assert await pages.raw("GET", V1 + "bookie/is_ready") == (200, "OK")
    assert await pages.get("bookie/state") == {
        "running": True,
        "readOnly": False,
        "shuttingDown": False,
        "availableForHighPriorityWrites": True,
    }
    info = await pages.get("bookie/info")
    assert 0 < info["freeSpace"] <= info["totalSpace"]
    files = await pages.get("bookie/list_disk_file")
    assert files["journal files"].split("\t")[0].endswith(".journal")
    assert list(await pages.get("bookie/list_disk_file?file_type=index")) == ["index files"]
    assert await pages.get("bookie/last_log_mark") == {
        "LastLogMark: Journal Id - 0(0.txn)": "Pos - 0"
    }
    settings = await pages.get("config/server_config")
    assert settings["bookie.id"] == bookie.name
    assert settings["flushInterval"] == settings["ledgers.flush_interval_ms"]
    assert (await pages.put("config/server_config", {"flushInterval": 1}))[0] == 400


async def check_garbage(pages: Pages, bookie: Bookie) -> None:
    bookie_id = bookie.name
    assert await pages.get("bookie/gc") == {"is_in_force_gc": "false"}
    said = await pages.raw("PUT", V1 + "bookie/gc", "")
    assert said == (200, f'"Triggered GC on BookieServer: {bookie_id}"')
    assert (await pages.raw("POST", V1 + "bookie/gc", "x"))[0] == 405
    assert (await pages.raw("PUT", V1 + "bookie/gc", "{"))[0] == 400
    assert await pages.raw("PUT", V1 + "bookie/gc/suspend_compaction") == (
        400,
        "Empty request body",
    )
    assert (await pages.put("bookie/gc/suspend_compaction", {}))[0] == 400
    said = await pages.put("bookie/gc/suspend_compaction", {"suspendMajor": True})
    assert said == (200, f'"Suspend majorGC on BookieServer: {bookie_id}"')
    suspended = {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"}
    assert await pages.get("bookie/gc/suspend_compaction") == suspended
    await pages.put("bookie/gc/resume_compaction", {"resumeMajor": True})
    assert (await pages.get("bookie/gc/suspend_compaction"))["isMajorGcSuspended"] == "false"

    async def both_have_ended() -> bool:
        (details,) = await pages.get("bookie/gc_details")
        return details["majorCompactionCounter"] == details["minorCompactionCounter"] == 1

    await wait_until_async(both_have_ended, "what was asked for is done and counted", 30.0)
    assert set(await pages.get("bookie/entry_location_compact")) == {
        str(bookie.directory / "ledgers" / "locations")
    }
    assert (await pages.put("bookie/entry_location_compact", {}))[0] == 200
    assert (await pages.raw("PUT", V1 + "bookie/expand_storage"))[0] == 500


async def check_by_client(pages: Pages, bookie_id: str, ledger_id: str) -> None:
    read = f"ledger/read?ledger_id={ledger_id}"
    assert await pages.get(read) == {"0": "hello"}
    assert await pages.get(f"{read}&page=1") == {"Entries for page: ": "1", "0": "hello"}
    assert (await pages.raw("GET", f"{V1}{read}&start_entry_id=2&end_entry_id=1"))[0] == 500
    assert (await pages.raw("GET", V1 + "ledger/read"))[0] == 404
    assert (await pages.raw("GET", V1 + "ledger/read?ledger_id=77"))[0] == 500
    infos = await pages.get("bookie/list_bookie_info")
    assert list(infos) == [bookie_id, "ClusterInfo: "]
    assert re.fullmatch(
        r": \{Free: \d+\([\d.]+[KMGT]B\), Total: \d+\([\d.]+[KMGT]B\)\},", infos[bookie_id]
    )
    assert await pages.get("bookie/sanity") == {"passed": True, "readOnly": False}
    assert list(await pages.get("ledger/list")) == [ledger_id], "the test's own ledger is gone"


async def check_metadata(pages: Pages, bookie_id: str, ledger_id: str) -> None:
    assert await pages.get("ledger/list") == {ledger_id: None}
    raw = await pages.get("ledger/list?print_metadata=true&page=1")
    assert raw[ledger_id].startswith("BookieMetadataFormatVersion\t3\n")
    decoded = await pages.get("ledger/list?print_metadata=true&decode_meta=true")
    assert decoded == await pages.get(f"ledger/metadata?ledger_id={ledger_id}")
    assert decoded[ledger_id]["state"] == "CLOSED"
    assert decoded[ledger_id]["lastEntryId"] == 0
    assert decoded[ledger_id]["allEnsembles"] == {"0": [{"id": bookie_id}]}
    assert (await pages.raw("GET", V1 + "ledger/metadata?ledger_id=77"))[0] == 500
    wrong = await pages.raw("GET", V1 + "ledger/metadata?ledger_id=x")
    assert wrong[0] == 400 and "ledger_id=x: must be a whole number" in wrong[1]
    assert (await pages.raw("GET", V1 + "ledger/metadata"))[0] == 404
    assert await pages.get("bookie/list_bookies") == {bookie_id: None}
    assert await pages.get("bookie/list_bookies?print_hostnames=true") == {bookie_id: "127.0.0.1"}
    assert await pages.get("bookie/list_bookies?type=ro") == {}
    assert (await pages.get("bookie/cluster_info"))["writableBookiesCount"] == 1
    for path in ("bookie/state", "bookie/info", "ledger/list", "bookie/list_bookies"):
        assert (await pages.raw("DELETE", V1 + path))[0] == 404, path
    await check_deletion_fences(pages)
    assert (await pages.raw("GET", V1 + f"ledger/delete?ledger_id={ledger_id}"))[0] == 404
    said = await pages.raw("DELETE", V1 + f"ledger/delete?ledger_id={ledger_id}")
    assert said == (200, f'"Deleted ledger: {ledger_id}"')
    assert await pages.raw("DELETE", V1 + f"ledger/delete?ledger_id={ledger_id}") == said
    assert await pages.get("ledger/list") == {}


async def check_deletion_fences(pages: Pages) -> None:
    """INV-S19: an open ledger's writer went on being acknowledged after its deletion by a page."""
    async with fastbk.connect(pages.cluster.metadata_uri) as client:
        writer = await client.create_ledger(1, 1, 1)
        await writer.append(b"x")
        said = await pages.raw("DELETE", V1 + f"ledger/delete?ledger_id={writer.ledger_id}")
        assert said == (200, f'"Deleted ledger: {writer.ledger_id}"')
        with pytest.raises(NoSuchLedger):
            await writer.append(b"y")


async def test_read_only_by_put_refuses_adds_until_it_is_taken_back_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    async with (
        LocalCluster(1, data=tmp_path / "data", settings=SETTINGS) as cluster,
        fastbk.connect(cluster.metadata_uri, append_timeout=2.0) as client,
    ):
        pages = Pages(cluster)
        writer = await client.create_ledger(1, 1, 1)
        await writer.append(b"before")
        assert json.loads((await pages.put("bookie/state/readonly", {"readOnly": True}))[1]) == {
            "readOnly": True
        }
        assert [one.writable for one in await client.list_bookies()] == [False], (
            "the registration says so by now"
        )
        with pytest.raises(fastbk.errors.Error, match="READ_ONLY: an operator asked for no adds"):
            await writer.append(b"refused")
        reader = await client.open_ledger(writer.ledger_id)
        assert [bytes(one.data) async for one in reader.read(0, 0)] == [b"before"], (
            "reads and recovery go on"
        )

        await cluster.restart_bookie_async(0)
        assert await pages.get("bookie/state/readonly") == {"readOnly": True}
        with pytest.raises(NotEnoughBookies, match="read-only"):
            await client.create_ledger(1, 1, 1)
        await pages.put("bookie/state/readonly", {"readOnly": False})
        assert await pages.get("bookie/state/readonly") == {"readOnly": False}
        async with await client.create_ledger(1, 1, 1) as again:
            await again.append(b"after")
        await cluster.kill_async(0, "journal")
        await cluster.wait_ready_async(0, cluster.bookies[0].boots + 1)
        assert await pages.get("bookie/state/readonly") == {"readOnly": False}


class Asked:
    def __init__(self, uri: str) -> None:
        self._metadata = StoreThreads(uri)
        self._pages = AutoRecoveryPages(self._metadata).pages()

    async def __call__(
        self, method: str, name: str, body: str = "", **query: str
    ) -> tuple[int, str]:
        answer: Response = await self._pages[name](Request(method, query, body.encode()))
        return answer[0], answer[2].decode()

    async def close(self) -> None:
        await self._metadata.close()


async def test_switch_marks_and_delay_are_the_nodes_of_zookeeper(zookeeper: ZooKeeperPlace) -> None:
    ask = Asked(zookeeper.uri())
    with closing(open_store(zookeeper.uri())) as store:
        assert isinstance(store, ZooKeeperStore)
        nodes = store.coordination
        assert await ask("GET", "status") == (200, '{\n  "enabled" : true\n}')
        assert await ask("PUT", "status") == (400, "Param 'enabled' not found in {}")
        assert json.loads((await ask("PUT", "status", enabled="false"))[1]) == {"enabled": False}
        assert not nodes.is_enabled()
        assert await ask("PUT", "trigger_audit") == (
            404,
            "Exception when do operation.Autorecovery is disabled. So giving up!",
        )
        await ask("PUT", "status", enabled="true")
        assert nodes.is_enabled()

        name = "list_under_replicated_ledger"
        assert await ask("GET", name) == (404, "No under replicated ledgers found")
        nodes.mark(UnderreplicatedLedger(7, ("b1", "b2"), 1000))
        nodes.mark(UnderreplicatedLedger(123456, ("b2",), 1000))
        assert await ask("GET", name) == (200, "[ 7, 123456 ]")
        assert await ask("GET", name, missingreplica="b1") == (200, "[ 7 ]")
        assert await ask("GET", name, missingreplica="b2", excludingmissingreplica="b1") == (
            200,
            "[ 123456 ]",
        )
        _, text = await ask("GET", name, printmissingreplica="")
        assert json.loads(text) == {"7": ["b1", "b2"], "123456": ["b2"]}

        name = "lost_bookie_recovery_delay"
        assert (await ask("GET", name))[0] == 404
        said = await ask("PUT", name, '{"delay_seconds": 90}')
        assert said == (200, "Success set lostBookieRecoveryDelay to 90")
        assert nodes.lost_bookie_delay_s() == 90
        assert await ask("GET", name) == (200, "lostBookieRecoveryDelay value: 90")
        assert (await ask("PUT", name, "{}"))[0] == 404
        for wrong in ("-5", '"x"', "true", "1.5", str(2**31), "null"):
            status, said_wrong = await ask("PUT", name, f'{{"delay_seconds": {wrong}}}')
            assert status == 400 and "lostBookieRecoveryDelay" in said_wrong
        assert nodes.lost_bookie_delay_s() == 90
        with pytest.raises(ConfigError, match="enabled=yes: must be true or false"):
            await ask("PUT", "status", enabled="yes")
        assert nodes.is_enabled()
        assert await ask("GET", "who_is_auditor") == (404, "No auditor elected")
        assert (await ask("GET", "decommission"))[0] == 404
    await ask.close()


async def test_with_sqlite_it_is_the_same(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    ask = Asked(uri)
    with closing(open_store(uri)) as store:
        assert await ask("GET", "who_is_auditor") == (404, "No auditor elected")
        vote = store.coordination.vote("b1")
        assert await ask("GET", "who_is_auditor") == (200, "Auditor: b1")
        assert (await ask("PUT", "trigger_audit"))[0] == 200
        assert store.coordination.lost_bookie_delay_s() == 0
        vote.close()
        assert json.loads((await ask("PUT", "status", enabled="false"))[1]) == {"enabled": False}
        assert not store.coordination.is_enabled()
        store.marks.update(7, add=[MissingReplica("b2", 0, 9)])
        _, text = await ask("GET", "list_under_replicated_ledger", printmissingreplica="")
        assert json.loads(text) == {"7": ["b2"]}
    await ask.close()
