"""What an Apache client sends with a wrong digest before the bookie knows which its ledger has: stored as it came, then
found by the scrub of the running bookie and by the check of the stopped one."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Container
from typing import Literal

import pytest

import fastbk
from fastbk.devcluster import Bookie
from fastbk.model.entry import DigestType, digest, master_key
from fastbk.testing import LocalCluster
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import EOK, LEDGER, hear_v3
from tests.fixtures.cli import Cli
from tests.fixtures.hashes import DIGEST_CRC32, DIGEST_CRC32C, DIGEST_HMAC, with_digest
from tests.fixtures.pages import json_page, metrics
from tests.fixtures.wait import wait_until_async
from tests.fixtures.worker_harness import connected

KEY = master_key(b"")
SETTINGS = {"ledgers": {"flush_interval": "200ms"}, "scrub": {"cycle": "1s"}}
BAD = {1, 2, 5}
ENTRIES = 7


def entry(entry_id: int, kind: int, *, is_bad: bool) -> bytes:
    """A bad one has other data, or, with an odd id, another digest."""
    header = struct.pack(">qqqq", LEDGER, entry_id, entry_id - 1, 16 * (entry_id + 1))
    data = b"data of entry %2d" % entry_id
    if kind == DIGEST_HMAC:
        raw = header + digest(DigestType.HMAC, header, data) + data
    else:
        raw = with_digest(kind, header, data)
    at = 35 if entry_id % 2 else len(raw) - 1
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] if is_bad else raw


async def add_all(bookie: Bookie, kind: int, *, bad: Container[int] = BAD) -> None:
    """In one piece, before anybody could have learned of the ledger."""
    client = await connected(bookie.port)
    bodies = [entry(n, kind, is_bad=n in bad) for n in range(ENTRIES)]
    client.send(b"".join(apache.v3_add(n, n, body=bodies[n], key=KEY) for n in range(ENTRIES)))
    assert [(await hear_v3(client)).status for _ in range(ENTRIES)] == [EOK] * ENTRIES
    await client.close()


@pytest.mark.parametrize(("name", "kind"), [("crc32", DIGEST_CRC32), ("hmac", DIGEST_HMAC)])
async def test_what_came_with_a_wrong_digest_is_found_and_not_quarantined(
    name: Literal["crc32", "hmac"], kind: int
) -> None:
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        bookie = cluster.bookies[0]
        async with fastbk.connect(cluster.metadata_uri) as client:
            await client.create_ledger(1, 1, 1, digest=name, ledger_id=LEDGER)
        await add_all(bookie, kind)

        async def found() -> bool:
            ranges = (json_page(bookie, "/scrub"))["bad_digests"]
            return {
                entry_id for one in ranges for entry_id in range(one["first"], one["last"] + 1)
            } == BAD

        await wait_until_async(found, "the scrub has found all of them", 60.0)
        page = json_page(bookie, "/scrub")
        assert page["quarantined"] == []
        assert {one["ledger_id"] for one in page["bad_digests"]} == {LEDGER}
        assert (json_page(bookie, "/info"))["bad_digests"] == len(page["bad_digests"])
        assert metrics(bookie)["fastbk_index_scrub_bad_digests_total"] >= len(BAD)
        assert metrics(bookie)["fastbk_index_scrub_digests_total"] >= ENTRIES
        assert metrics(bookie)["fastbk_index_scrub_damaged_total"] == 0
        said = [
            line for line in bookie.log_path.read_text().splitlines() if "scrub.bad_digest" in line
        ]
        assert len(said) == len(page["bad_digests"]), "once, however many cycles there were"
        cli = Cli(cluster.metadata_uri)
        text = await asyncio.to_thread(cli, "bookie", "info", bookie.name)
        assert "came with a wrong digest" in text
        await cluster.stop_bookie_async(0)
        config = ("bookie", "check", "--config", str(bookie.directory / "bookie.toml"))
        code, checked, _ = await cli.answer_async(*config)
        assert (code, checked["digests"]) == (0, None)
        code, checked, _ = await cli.answer_async(*config, "--metadata", cluster.metadata_uri)
        assert (code, checked["damaged_entries"]) == (1, 0)
        assert (checked["digests"]["checked"], checked["digests"]["bad"]) == (ENTRIES, len(BAD))
        texts = [one["text"] for one in checked["findings"] if one["severity"] == "damage"]
        assert len(texts) == checked["bad_digest_ranges"] > 0
        assert all(f"of ledger 5 came with a wrong {name.upper()} digest" in one for one in texts)
        nowhere = f"sqlite:{bookie.directory}/no-folder/metadata.sqlite"
        code, answer, _ = await cli.answer_async(*config, "--metadata", nowhere)
        assert (code, bool(answer["error"])) == (2, True)


async def test_a_repair_does_not_count_such_a_copy_and_readers_do_without_it() -> None:
    """First copy wins (INV-A5): it can't be replaced in place. It is never taken for a good one either."""
    async with LocalCluster(3, settings=SETTINGS) as cluster:
        uri, sick = cluster.metadata_uri, cluster.bookies[2]
        async with fastbk.connect(uri) as client:
            await client.create_ledger(3, 3, 2, ledger_id=LEDGER)
            for bookie in cluster.bookies:
                await add_all(bookie, DIGEST_CRC32C, bad=BAD if bookie is sick else ())
            reader = await client.open_ledger(LEDGER)
            found = [bytes(one.data) async for one in reader.read(0, ENTRIES - 1)]
            assert found == [b"data of entry %2d" % n for n in range(ENTRIES)]
        for _ in range(2):
            code, answer, said = await Cli(uri).answer_async("bookie", "repair", sick.name)
            assert (code, answer["failed"], answer["entries_lost"]) == (1, 1, 0), said
            assert answer["entries_checked"] <= ENTRIES - len(BAD)


async def test_what_metadata_does_not_have_is_counted_and_holds_nothing_up() -> None:
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        bookie = cluster.bookies[0]
        await add_all(bookie, DIGEST_CRC32C)

        async def counted() -> bool:
            return metrics(bookie)["fastbk_index_scrub_digests_unknown_total"] >= ENTRIES

        await wait_until_async(counted, "they are counted", 60.0)
        page = json_page(bookie, "/scrub")
        assert page["bad_digests"] == page["quarantined"] == []
