"""Apache's endpoints about AutoRecovery, on a real ZooKeeper; and where there is none."""

from __future__ import annotations

import json

from fastbk.apache.http.auto_recovery_pages import NO_ZOOKEEPER, AutoRecoveryPages
from fastbk.meta.zookeeper_marks import UnderreplicatedLedger
from fastbk.meta.zookeeper_underreplication import Underreplication
from fastbk.server.admin.http import Request, Response
from tests.fixtures.zookeeper import ZooKeeperPlace


class Asked:
    def __init__(self, uri: str) -> None:
        self._pages = AutoRecoveryPages(uri).pages()

    async def __call__(
        self, method: str, name: str, body: str = "", **query: str
    ) -> tuple[int, str]:
        answer: Response = await self._pages[name](Request(method, query, body.encode()))
        return answer[0], answer[2].decode()


async def test_switch_marks_and_delay_are_the_nodes_of_zookeeper(zookeeper: ZooKeeperPlace) -> None:
    ask = Asked(zookeeper.uri())
    with Underreplication(zookeeper.location()) as nodes:
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
        assert await ask("GET", "who_is_auditor") == (404, "No auditor elected")
        assert (await ask("GET", "decommission"))[0] == 404


async def test_without_zookeeper_it_says_so() -> None:
    ask = Asked("sqlite:/nowhere.sqlite")
    assert await ask("GET", "who_is_auditor") == (404, f"Exception when get.{NO_ZOOKEEPER}")
