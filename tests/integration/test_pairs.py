"""A bookie of two journal/index pairs (A19): what it takes on either is there after every crash, fenced as it was,
listed and deleted as in a bookie of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fastbk
from fastbk.cli.__main__ import main
from fastbk.devcluster.processes import CONFIG_NAME, toml_text
from fastbk.errors import Error
from fastbk.storage.identity import even_shards, pair_of
from fastbk.testing import LocalCluster
from tests.fixtures.confirmed import wait_until_confirmed
from tests.fixtures.logs import json_lines
from tests.fixtures.pages import page
from tests.fixtures.pairs import by_pair, pair_settings
from tests.fixtures.wait import wait_until

LEDGERS = 12
ENTRIES = 40
SHARDS = even_shards(2)


def entry(ledger_id: int, number: int) -> bytes:
    return b"%d/%d " % (ledger_id, number) * 40


async def fill(writer: fastbk.client.LedgerWriter, first: int, count: int) -> None:
    waiting = [writer.append_nowait(entry(writer.ledger_id, first + n)) for n in range(count)]
    assert list(await asyncio.gather(*waiting)) == list(range(first, first + count))


async def check_whole(client: fastbk.Client, ledger_id: int, count: int) -> None:
    reader = await client.open_ledger(ledger_id, recovery=False)
    found = [bytes(one.data) for one in await reader.read_unconfirmed(0, count - 1)]
    await reader.close()
    assert found == [entry(ledger_id, number) for number in range(count)]


async def test_two_pairs_serve_and_survive_as_one(tmp_path: Path) -> None:
    """A19, INV-D3, INV-F1."""
    data = tmp_path / "data"
    settings = pair_settings(data, 2, {"gc": {"interval": "200ms"}})
    async with LocalCluster(1, data=data, settings=settings) as cluster:
        bookie = cluster.bookies[0]
        names = {"supervisor", "worker.0", "journal", "journal.1", "index", "index.1", "gc"}
        assert set(bookie.pids) == names
        async with fastbk.connect(cluster.metadata_uri) as client:
            writers = [await client.create_ledger(1, 1, 1) for _ in range(LEDGERS)]
            ids = [writer.ledger_id for writer in writers]
            places = by_pair(ids, SHARDS)
            assert set(places) == {0, 1}, "both pairs have ledgers"
            await asyncio.gather(*(fill(writer, 0, ENTRIES) for writer in writers))
            # a process of the second pair is missed as any other
            for name in ("journal.1", "index.1"):
                boots = bookie.boots
                await cluster.kill_async(0, name)
                await cluster.wait_ready_async(0, boots + 1)
            await asyncio.gather(*(fill(writer, ENTRIES, ENTRIES) for writer in writers))
            # A ledger of each pair is recovered by somebody else: its writer is fenced off.
            fenced = [writers[ids.index(places[pair][0])] for pair in (0, 1)]
            for writer in fenced:
                reader = await client.open_ledger(writer.ledger_id, recovery=True)
                assert await reader.last_add_confirmed() == 2 * ENTRIES - 1
                await reader.close()
                with pytest.raises(Error):
                    await writer.append(b"too late")
            await cluster.kill_async(0, "supervisor")
            await cluster.start_bookie_async(0)
        async with fastbk.connect(cluster.metadata_uri) as client:
            for ledger_id in ids:
                await check_whole(client, ledger_id, 2 * ENTRIES)
            doomed = [places[pair][-1] for pair in (0, 1)]
            await wait_until_confirmed(cluster.bookies)
            for ledger_id in doomed:
                await client.delete_ledger(ledger_id)
            for pair in (0, 1):
                log = bookie.directory / f"ledgers.{pair}" / "audit.log"
                await asyncio.to_thread(
                    wait_until, lambda log=log, pair=pair: doomed[pair] in dropped(log), "gc in both pairs", 30
                )  # fmt: skip
            for ledger_id in set(ids) - set(doomed):
                await check_whole(client, ledger_id, 2 * ENTRIES)
        text = page(bookie, "/metrics")[1]
        assert "fastbk_journal_" in text
        for pair in (0, 1):
            assert f'pair="{pair}"' in text


def dropped(log: Path) -> set[int]:
    return {ledger_id for line in json_lines(log) for ledger_id in line.get("ledgers", ())}


@pytest.mark.parametrize(
    "point",
    [
        "index.flush_before_mark",
        "index.replay_before_flush",
        pytest.param("index.manifest_before_mirror", marks=pytest.mark.long),
    ],
)
async def test_a_crash_between_the_flushes_of_two_pairs_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """P20: each pair has a mark of its own, so none is moved by what the other has flushed (BOOKKEEPER-3329)."""
    data = tmp_path / "data"
    # Frequent flushes: the pair that dies at its third leaves the other somewhere in between.
    settings = pair_settings(data, 2, {"ledgers": {"flush_interval": "100ms"}})
    died = tmp_path / "died"
    monkeypatch.setenv("FASTBK_KILL_POINT_FILE", str(died))
    monkeypatch.setenv("FASTBK_KILL_POINT", f"{point}:{1 if 'replay' in point else 3}")
    async with LocalCluster(1, data=data, settings=settings) as cluster:
        async with fastbk.connect(cluster.metadata_uri) as client:
            writers = [await client.create_ledger(1, 1, 1) for _ in range(LEDGERS)]
            assert {pair_of(writer.ledger_id, SHARDS) for writer in writers} == {0, 1}
            done = 0
            while not died.exists() or done < ENTRIES:
                await asyncio.gather(*(fill(writer, done, 10) for writer in writers))
                done += 10
            boots = cluster.bookies[0].boots
            await cluster.kill_async(0, "supervisor")
            await cluster.start_bookie_async(0)
            assert cluster.bookies[0].boots != boots
        async with fastbk.connect(cluster.metadata_uri) as client:
            for writer in writers:
                await check_whole(client, writer.ledger_id, done)
    assert died.exists()


async def test_a_bookie_gets_a_second_pair_and_moves_a_part_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A19, INV-D3: `expand` adds directories, `move-shards` moves a part of the ledgers there, fences included."""
    data = tmp_path / "data"
    async with LocalCluster(1, data=data, settings=pair_settings(data, 1)) as cluster:
        bookie = cluster.bookies[0]
        async with fastbk.connect(cluster.metadata_uri) as client:
            writers = [await client.create_ledger(1, 1, 1) for _ in range(LEDGERS)]
            ids = [writer.ledger_id for writer in writers]
            await asyncio.gather(*(fill(writer, 0, ENTRIES) for writer in writers))
            fenced = writers[-1]
            reader = await client.open_ledger(fenced.ledger_id, recovery=True)
            await reader.close()
            assert await asyncio.to_thread(run_cli, bookie.directory, "move-shards", "--even") == 75
            assert "in use by a running bookie" in capsys.readouterr().err
            assert await cluster.stop_bookie_async(0) == 0
            for section, keys in pair_settings(data, 2).items():
                bookie.sections[section].update(keys)
            (bookie.directory / CONFIG_NAME).write_text(toml_text(bookie.sections))
            assert await asyncio.to_thread(run_cli, bookie.directory, "expand") == 0
            await cluster.start_bookie_async(0)
            assert "index.1" in bookie.pids
            for ledger_id in ids:
                await check_whole(client, ledger_id, ENTRIES)
            assert not list((bookie.directory / "ledgers.1" / "logs").iterdir()), (
                "no shard moves by itself"
            )
            assert await cluster.stop_bookie_async(0) == 0
            assert await asyncio.to_thread(run_cli, bookie.directory, "move-shards", "--even") == 0
            assert list((bookie.directory / "ledgers.1" / "logs").iterdir())
            await cluster.start_bookie_async(0)
            for ledger_id in ids:
                await check_whole(client, ledger_id, ENTRIES)
            with pytest.raises(Error):
                await fenced.append(b"too late")
            await asyncio.gather(*(fill(writer, ENTRIES, ENTRIES) for writer in writers[:-1]))
            await cluster.kill_async(0, "supervisor")
            await cluster.start_bookie_async(0)
        async with fastbk.connect(cluster.metadata_uri) as client:
            for writer in writers[:-1]:
                await check_whole(client, writer.ledger_id, 2 * ENTRIES)
            await check_whole(client, fenced.ledger_id, ENTRIES)


def run_cli(directory: Path, verb: str, *arguments: str) -> int:
    return main(["bookie", verb, "--config", str(directory / CONFIG_NAME), *arguments])
