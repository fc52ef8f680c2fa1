"""Upgrades on real bookies: the format level, rolls, and the version before in one cluster with this one."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import fastbk
import fastbk.sync
from fastbk.devcluster import DevCluster
from fastbk.errors import ConfigError, StorageError
from fastbk.exit_codes import FAILED, INTERRUPTED, REFUSED, USAGE
from fastbk.formats import LEVEL_FIRST, LEVEL_MAX
from fastbk.meta import open_store
from fastbk.meta.format_level import POLL_INTERVAL_S, raise_level
from fastbk.model.ids import BookieId
from fastbk.model.missing_replica import MissingReplica
from fastbk.testing import LocalCluster
from tests.fixtures import released
from tests.fixtures.cli import Cli
from tests.fixtures.metadata import forget_level, new_cluster, set_level
from tests.fixtures.pages import page
from tests.fixtures.released import ReleasedCluster, released_tree
from tests.fixtures.restart_server import restart_server, restarts_into
from tests.fixtures.shared_cluster import renewed_cluster
from tests.fixtures.wait import DEADLINE_S, wait_until, wait_until_async

pytestmark = pytest.mark.waits

__all__ = ["released_tree"]

ENTRIES = 60


cluster = renewed_cluster


def has_hold(uri: str) -> bool:
    """Return whether healing is held."""
    _, state, _ = Cli(uri).answer("cluster", "heal", "status")
    return bool(state["hold"]["until_ms"])


def data_of(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d/" % (ledger_id, entry_id) * (entry_id % 7 + 1)


def write(uri: str) -> int:
    with fastbk.sync.connect(uri) as client, client.create_ledger(3, 3, 2) as writer:
        writer.append_many([data_of(writer.ledger_id, one) for one in range(ENTRIES)])
        return int(writer.ledger_id)


def check(uri: str, ledger_id: int) -> None:
    with fastbk.sync.connect(uri) as client:
        found = [bytes(one.data) for one in client.open_ledger(ledger_id).read()]
    assert found == [data_of(ledger_id, one) for one in range(ENTRIES)]


def made_by_older(cluster: LocalCluster) -> Cli:
    """Leave the cluster as one that an older version made; return commands for it."""
    with closing(open_store(cluster.metadata_uri)) as store:
        forget_level(store)
    return Cli(cluster.metadata_uri)


def test_an_older_cluster_is_finalized_once_and_a_new_one_need_not_be(
    cluster: LocalCluster,
) -> None:
    """INV-U2."""
    cli = Cli(cluster.metadata_uri)
    assert cli.json("cluster", "status")["format_level"] == LEVEL_MAX
    assert "format level" not in cli("cluster", "status")
    made_by_older(cluster)
    assert cli.json("cluster", "status")["format_level"] == LEVEL_FIRST
    assert "format level 1: older versions may join; once none has to, `fastbk" in cli(
        "cluster", "status"
    )
    assert cli.json("cluster", "finalize", "--dry-run")["dry_run"] is True
    assert "give --yes" in cli.fails("cluster", "finalize", code=USAGE)
    assert cli.json("cluster", "status")["format_level"] == LEVEL_FIRST
    assert cli.json("cluster", "finalize", "--yes")["level"] == LEVEL_MAX
    assert cli("cluster", "finalize") == (
        f"the cluster has format level {LEVEL_MAX}; this version has none above {LEVEL_MAX}\n"
    )
    assert "format level" not in cli("cluster", "status")


def test_nothing_starts_in_a_cluster_whose_level_it_lacks(tmp_path: Path) -> None:
    """INV-U2."""
    cluster = DevCluster(tmp_path, 1)
    store = open_store(cluster.metadata_uri)
    raise_level(store, LEVEL_MAX + 1)
    store.close()
    (bookie,) = cluster.bookies
    with pytest.raises(StorageError, match=f"finalized at format level {LEVEL_MAX + 1}"):
        cluster.start()
    bookie.spawn()
    assert bookie.wait_gone() == REFUSED, "systemd does not try again"
    cli = Cli(cluster.metadata_uri)
    for name in ("janitor", "autorecovery"):
        assert "Start a version that has the level" in cli.fails(name, code=USAGE)


@pytest.mark.parametrize(
    "name",
    [
        "janitor",
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ("autorecovery", "gateway", "console")
        ),
    ],
)
def test_what_runs_ends_when_the_level_rises_above_its_own(name: str, tmp_path: Path) -> None:
    """INV-U5: within `POLL_INTERVAL_S`, and says what to do."""
    uri = new_cluster(tmp_path / "metadata.sqlite")
    config = tmp_path / "gateway.toml"
    config.write_text(f'[gateway]\nlisten = "127.0.0.1:0"\n[metadata]\nuri = "{uri}"\n')
    options = {
        "janitor": ["--interval", "3600"],
        "autorecovery": [],
        "gateway": ["--config", str(config)],
        "console": ["--listen", "127.0.0.1:0", "--audit", str(tmp_path / "audit.jsonl")],
    }
    environment = {**os.environ, "FASTBK_METADATA": uri}
    log = tmp_path / "log"
    command = [sys.executable, "-m", "fastbk.cli", name, *options[name]]
    with (
        closing(open_store(uri)) as store,
        open(log, "wb") as output,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        ) as process,
    ):
        try:
            wait_until(lambda: f"{name}.started" in log.read_text(), f"{name} to start")
            set_level(store, LEVEL_MAX + 1)
            assert process.wait(timeout=POLL_INTERVAL_S + DEADLINE_S) == USAGE
        finally:
            process.kill()
            set_level(store, LEVEL_MAX)
    assert f"was finalized at format level {LEVEL_MAX + 1}" in log.read_text()
    assert "Start a version that has the level" in log.read_text()


async def test_cursors_of_patterns_come_with_the_level_that_has_them(cluster: LocalCluster) -> None:
    """INV-U4, from an older cluster to a finalized one."""
    cli = made_by_older(cluster)
    async with fastbk.connect(cluster.metadata_uri) as client:
        space = client.namespace("shop")
        async with space.stream("orders").writer(create=True) as writer:
            await writer.append(b"one")
        with pytest.raises(
            ConfigError, match="Upgrade or stop them, then run `fastbk cluster finalize`"
        ):
            await space.cursor("*", "billing").open()
        code, answer, _ = await cli.answer_async("cluster", "finalize", "--dry-run")
        assert code == 0
        for word in ("cursors of patterns", "janitors of older versions have to be stopped before"):
            assert word in answer["action"], answer
        await cli.answer_async("cluster", "finalize", "--yes")
        async with space.cursor("*", "billing", tail=False) as cursor:
            assert [one.value async for one in cursor] == [b"one"]


# --- rolls ----------------------------------------------------------------------------------------------------------


async def test_a_roll_restarts_each_bookie_once_keeps_all_entries_and_they_read_the_new_level(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """INV-U3; and INV-U1: within `POLL_INTERVAL_S`, without another restart."""
    cli = await asyncio.to_thread(made_by_older, cluster)
    ledger_id = await asyncio.to_thread(write, cluster.metadata_uri)
    boots = [one.pids["supervisor"] for one in cluster.bookies]
    async with restart_server(tmp_path, restarts_into(cluster, None)) as command:
        _, planned, _ = await cli.answer_async("cluster", "roll", "--restart", command, "--dry-run")
        assert [one["bookies"] for one in planned["steps"]] == [
            ["bookie-1"],
            ["bookie-2"],
            ["bookie-3"],
        ]
        assert [one.pids["supervisor"] for one in cluster.bookies] == boots
        code, done, said = await cli.answer_async("cluster", "roll", "--restart", command)
    assert (code, done["restarted"]) == (0, ["bookie-1", "bookie-2", "bookie-3"]), said
    assert done["stopped"] == "" and set(done["seconds"]) == set(done["restarted"])
    assert not {one.pids["supervisor"] for one in cluster.bookies} & set(boots)
    status = await asyncio.to_thread(cli.run, "cluster", "heal", "status", "--json")
    assert json.loads(status[1])["hold"]["until_ms"] == 0, "the hold is over"
    await asyncio.to_thread(check, cluster.metadata_uri, ledger_id)

    def have(level: int) -> bool:
        lines = [page(one, "/metrics")[1] for one in cluster.bookies]
        return all(f'format_level="{level}"' in one for one in lines)

    assert await asyncio.to_thread(have, LEVEL_FIRST), "as they were started"
    await asyncio.to_thread(cli, "cluster", "finalize", "--yes")
    await wait_until_async(lambda: asyncio.to_thread(have, LEVEL_MAX), "the level on all bookies")


async def test_a_roll_stops_at_a_bookie_that_does_not_come_back(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """INV-U3: and goes on there."""
    cli = Cli(cluster.metadata_uri)
    good, fails = restarts_into(cluster, None), [True]

    async def restart(bookie_id: str) -> None:
        if bookie_id == "bookie-2" and fails.pop():
            raise ValueError("no such host: b2")
        await good(bookie_id)

    async with restart_server(tmp_path, restart) as command:
        words = ("cluster", "roll", "--restart", command)
        code, done, said = await cli.answer_async(*words)
        assert code == FAILED and done["restarted"] == ["bookie-1", "bookie-2"]
        assert "no such host: b2" in done["stopped"] and done["next_from"] == "bookie-2"
        assert "--from bookie-2" in said
        fails.append(False)
        code, done, said = await cli.answer_async(*words, "--from", "bookie-2")
    assert (code, done["restarted"]) == (0, ["bookie-2", "bookie-3"]), said


async def test_a_roll_that_waits_for_copies_says_so_where_nobody_makes_them(
    cluster: LocalCluster,
) -> None:
    cli = Cli(cluster.metadata_uri)
    async with fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(3, 3, 2) as writer:
            await writer.append(b"x")
        missing = MissingReplica(BookieId("bookie-2"), 0, 0)
        await client.call_store(lambda store: store.marks.update(writer.ledger_id, add=[missing]))
    words = (
        "cluster",
        "roll",
        "--restart",
        "true {bookie}",
        "--check",
        "marks",
        "--whole-timeout",
        "1s",
        "--ready-timeout",
        "2s",
    )
    code, done, _ = await cli.answer_async(*words)
    assert (code, done["restarted"]) == (FAILED, [])
    assert (
        "copies are missing" in done["stopped"]
        and "no `fastbk autorecovery` runs" in done["stopped"]
    )


def test_an_interrupted_roll_prints_the_command_that_goes_on(cluster: LocalCluster) -> None:
    """With the cluster that was named: another one may be in use."""
    cli = Cli("sqlite:/not/this/one")
    uri, command = cluster.metadata_uri, "sleep 1 # {bookie}"
    process = cli.start(
        "cluster", "roll", "--metadata", uri, "--restart", command, "--check", "marks", "-q"
    )
    try:
        wait_until(lambda: has_hold(uri), "the roll has begun")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        cli.end()
    again = f"fastbk cluster roll --metadata {uri} --restart {shlex.quote(command)} --check marks --from bookie-1"
    assert process.returncode == INTERRUPTED and again in said, said
    assert not has_hold(uri)


@pytest.mark.long
async def test_a_roll_stops_where_nothing_was_restarted_or_another_bookie_is_down(
    cluster: LocalCluster,
) -> None:
    """INV-U3."""
    cli = Cli(cluster.metadata_uri)
    words = ("cluster", "roll", "--restart", "true {bookie}", "--ready-timeout", "2s")
    code, done, _ = await cli.answer_async(*words)
    assert code == FAILED and "no new start of bookie bookie-1" in done["stopped"]
    await cluster.stop_bookie_async(2)
    _, _, said = await cli.answer_async(*words, "--dry-run")
    assert "would stop before its first step: bookie bookie-3 is down" in said
    code, done, _ = await cli.answer_async(*words)
    assert (code, done["restarted"]) == (FAILED, [])
    assert "bookie bookie-3 is down" in done["stopped"]
    said = await asyncio.to_thread(cli.fails, "cluster", "roll", "--restart", "true", code=USAGE)
    assert "write {bookie} where the bookie's id belongs" in said


# --- both versions --------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_both_versions_serve_each_others_clients_in_one_cluster(released_tree: Path) -> None:
    """Bookies of both, clients of both: each reads what the other wrote, ledgers and streams."""
    async with ReleasedCluster(3) as cluster:
        uri, cli = cluster.metadata_uri, Cli(cluster.metadata_uri)

        async def old(*words: str, stdin: bytes = b"") -> bytes:
            return await asyncio.to_thread(released.run, released_tree, uri, *words, stdin=stdin)

        async def new(*words: str, stdin: bytes = b"") -> bytes:
            return await asyncio.to_thread(lambda: cli.raw(*words, stdin=stdin))

        expected: dict[str, bytes] = {}
        records = b""
        await old("namespace", "create", "shop")
        await old("stream", "create", "shop/orders")
        for step in range(4):  # 0, 1, 2 and 3 of three bookies are new
            for name, fastbk_of in (("old", old), ("new", new)):
                lines = b"".join(b"%s %d %d\n" % (name.encode(), step, one) for one in range(500))
                ledger_id = (await fastbk_of("ledger", "write", stdin=lines)).decode().strip()
                expected[ledger_id] = lines
                await fastbk_of("stream", "append", "shop/orders", stdin=lines)
                records += lines
            for reader in (old, new):
                for ledger_id, lines in expected.items():
                    assert await reader("ledger", "read", ledger_id, "--raw") == lines
                assert await reader("stream", "read", "shop/orders", "--payload") == records
            if step < 3:
                code, answer, _ = await cli.answer_async("cluster", "finalize", "--yes")
                assert code == FAILED and len(answer["reasons"]) == 3 - step
                await restarts_into(cluster, None)(cluster.bookies[step].name)
        code, answer, _ = await cli.answer_async("cluster", "finalize", "--yes")
        assert (code, answer["level"]) == (0, LEVEL_MAX)
