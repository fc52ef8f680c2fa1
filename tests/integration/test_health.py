"""`cluster status`, `top`, the console's page, `doctor` and `/readyz` agree, in each state of real bookies."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import fastbk
from fastbk.console.problems import problems_of
from fastbk.doctor.examine import examine
from fastbk.doctor.report import Status
from fastbk.model.missing_replica import MissingReplica
from fastbk.overview.values import Severity
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.pages import json_page, page
from tests.fixtures.wait import wait_until_async

WAIT_S = 60.0


class _View:
    """What the console's list of problems needs of its view."""

    def __init__(self, overview: object) -> None:
        self.overview = overview
        self.streams = type("Streams", (), {"error": ""})()

    def bookie(self, bookie_id: str) -> object:
        return next((one for one in self.overview.bookies if one.bookie_id == bookie_id), None)  # type: ignore[attr-defined]


class Verdicts:
    """What all five say now."""

    def __init__(self, cluster: LocalCluster, client: fastbk.Client) -> None:
        self._cluster = cluster
        self._client = client
        self._cli = Cli(cluster.metadata_uri)

    async def read(self) -> dict[str, object]:
        from fastbk.overview.poller import OverviewPoller

        code, status, _ = await self._cli.answer_async("cluster", "status")
        assert (code == 0) == (status["verdict"] == "well")
        top_code, top, _ = await self._cli.answer_async("top", "--json", "--interval", "0.5")
        assert (top_code == 0) == (top["verdict"] == "well")
        async with OverviewPoller(self._client, cursors_max=0) as poller:
            await poller.settled(10.0)
            listed = problems_of(_View(await poller.poll()), ())  # type: ignore[arg-type]
        own: set[str] = set()
        for bookie in self._cluster.bookies:
            with contextlib.suppress(OSError):
                found = await asyncio.to_thread(json_page, bookie, "/readyz")
                own |= {one["text"] for one in found["verdict_reasons"]}
        return {
            "status": status["verdict"],
            "top": top["verdict"],
            "names": {one["name"] for one in status["reasons"]},
            "top_names": {one["name"] for one in top["reasons"]},
            "console": max((one.severity for one in listed), default=Severity.OK) >= Severity.WARN,
            "readyz": own,
            "texts": {one["text"] for one in status["reasons"]},
        }


async def agreed(verdicts: Verdicts, verdict: str, name: str | None, *, is_own: bool = True) -> None:
    """Wait until all say so; `is_own`: it is a fact of one bookie that runs, so its own page says it, too."""
    found: dict[str, object] = {}

    async def is_agreed() -> bool:
        found.update(await verdicts.read())
        if found["status"] != verdict or found["top"] != verdict:
            return False
        if found["console"] != (verdict != "well"):
            return False
        if name is None:
            return not found["readyz"]
        if name not in found["names"] or name not in found["top_names"]:  # type: ignore[operator]
            return False
        return not is_own or bool(found["readyz"] & found["texts"])  # type: ignore[operator]

    await wait_until_async(is_agreed, f"all say {verdict} by {name}", WAIT_S)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[LocalCluster, fastbk.Client, Verdicts]]:
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        yield cluster, client, Verdicts(cluster, client)


async def test_all_five_agree_in_each_state(tmp_path: Path) -> None:
    async with running() as (cluster, client, verdicts):
        await agreed(verdicts, "well", None)
        bookie = cluster.bookies[0]
        page(bookie, "/api/v1/bookie/state/readonly", "PUT", '{"readOnly": true}')
        await agreed(verdicts, "degraded", "read_only")
        # The file has port 0 for the page: doctor is given the one that it got.
        text = (bookie.directory / "bookie.toml").read_text()
        config = tmp_path / "bookie.toml"
        listen = f'\\g<1>"127.0.0.1:{bookie.http_port}"'
        config.write_text(re.sub(r'(\[http\]\s*listen = )"[^"]*"', listen, text))
        found = await asyncio.to_thread(lambda: list(examine(config)))
        findings = [one for one in found if one.name == "health"]
        assert [one.status for one in findings] == [Status.WARN]
        assert findings[0].why.startswith("read-only")
        page(bookie, "/api/v1/bookie/state/readonly", "PUT", '{"readOnly": false}')
        await agreed(verdicts, "well", None)

        async with await client.create_ledger(3, 3, 2) as writer:
            await writer.append(b"x")
        await client.marks.update(writer.ledger_id, add=[MissingReplica(bookie.name, 0, 0)])
        await agreed(verdicts, "in danger", "copies_missing", is_own=False)
        await client.marks.update(writer.ledger_id, remove=[MissingReplica(bookie.name, 0, 0)])

        async with cluster.delayed(1, journal_ms=60), await client.create_ledger(3, 3, 3) as load:
            found: dict[str, object] = {}

            async def is_slow() -> bool:
                for _ in range(60):
                    await load.append(b"x")
                found.update(await verdicts.read())
                return "journal_slow" in found["names"]  # type: ignore[operator]

            await wait_until_async(is_slow, "the journal is called slow", WAIT_S)
            assert found["status"] == "degraded" and found["top"] == "degraded"
            assert found["console"] and found["readyz"] & found["texts"]  # type: ignore[operator]

        await cluster.stop_bookie_async(2)
        await agreed(verdicts, "in danger", "bookie_down", is_own=False)
