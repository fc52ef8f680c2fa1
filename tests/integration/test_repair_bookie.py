"""`fastbk bookie repair` on real bookies: damaged copies come back, first wins unless it is damaged (INV-A5).

`fastbk ledger audit` names exactly what is damaged or away.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import fastbk
from fastbk.devcluster import Bookie
from fastbk.native import client_codec as codec
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.cli import Cli
from tests.fixtures.pages import json_page, page
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.shared_cluster import renewed_cluster
from tests.fixtures.wait import wait_until_async

ENTRIES = 300
SETTINGS = {
    "gc": {"interval": "200ms"}, "ledgers": {"flush_interval": "200ms"}, "scrub": {"rate": "0B"},
}  # fmt: skip


cluster = renewed_cluster


def data_of(ledger_id: int, entry_id: int) -> bytes:
    return b"entry %d of ledger %d, " % (entry_id, ledger_id) * 4


async def fill(uri: str) -> int:
    async with fastbk.connect(uri) as client, await client.create_ledger(3, 3, 2) as writer:
        await writer.append_many(
            [data_of(writer.ledger_id, entry_id) for entry_id in range(ENTRIES)]
        )
        return writer.ledger_id


def harm(bookie: Bookie, ledger_id: int, victims: list[int]) -> None:
    """Flip a bit of these entries where they lie in its entry logs; it does not run."""
    for path in Path(bookie.directory / "ledgers" / "logs").iterdir():
        raw = bytearray(path.read_bytes())
        for victim in victims:
            at = raw.find(data_of(ledger_id, victim))
            if at >= 0:
                raw[at + 3] ^= 1
        path.write_bytes(raw)


async def statuses(bookie: Bookie, ledger_id: int) -> dict[int, Status]:
    raw = await raw_bookie(bookie)
    try:
        return {
            entry_id: await raw.status(codec.put_read, ledger_id, entry_id)
            for entry_id in range(ENTRIES)
        }
    finally:
        raw.close()


async def quarantined(bookie: Bookie) -> set[int]:
    ranges = (await asyncio.to_thread(json_page, bookie, "/scrub"))["quarantined"]
    return {entry_id for one in ranges for entry_id in range(one["first"], one["last"] + 1)}


async def test_damage_is_found_and_healed_in_place_and_stays_healed(cluster: LocalCluster) -> None:
    """The bookie finds out by itself, says so, and forgets it once it is healed; what is lost whole is made anew."""
    victims = {0, 7, 8, 150, ENTRIES - 1}
    uri, sick = cluster.metadata_uri, cluster.bookies[2]
    cli = Cli(uri)
    ledger_id = await fill(uri)
    await cluster.stop_bookie_async(2)
    config = ("--config", str(sick.directory / "bookie.toml"))
    harm(sick, ledger_id, sorted(victims))
    without, sick.sections["scrub"] = sick.sections["scrub"], {"cycle": "1s"}
    code, answer, _ = await cli.answer_async("bookie", "check", *config)
    assert (code, answer["damaged_entries"]) == (1, len(victims))
    await cluster.start_bookie_async(2)
    found = await statuses(sick, ledger_id)
    assert {one for one, status in found.items() if status != Status.OK} == victims
    assert {found[one] for one in victims} == {Status.CANNOT_TELL}

    async def is_found(expected: set[int]) -> bool:
        return await quarantined(sick) == expected

    await wait_until_async(lambda: is_found(victims), "all damage is found", 30.0)
    words = ("bookie", "repair", sick.name)
    code, answer, said = await cli.answer_async(*words, "--quarantined")
    assert (code, answer["entries_copied"], answer["entries_checked"]) == (0, 5, 0), said
    await wait_until_async(lambda: is_found(set()), "it is out of quarantine", 30.0)
    code, answer, said = await cli.answer_async(*words)
    assert (code, answer["entries_copied"], answer["entries_checked"]) == (0, 0, ENTRIES), said
    await cluster.stop_bookie_async(2)
    for path in (sick.directory / "ledgers" / "locations").iterdir():
        path.unlink()
    strange = sick.directory / "strange.toml"
    other = (sick.directory / "bookie.toml").read_text().replace(f'"{sick.name}"', '"other"', 1)
    strange.write_text(other)
    words = ("bookie", "rebuild-locations", "--config")
    assert (await cli.answer_async(*words, str(strange)))[0] == 2
    assert not list(sick.directory.glob("ledgers/locations-before-*"))
    assert (await cli.answer_async(*words, config[1]))[0] == 0
    code, answer, _ = await cli.answer_async("bookie", "check", *config)
    assert (code, answer["damaged_entries"]) == (0, 0)
    await cluster.start_bookie_async(2)
    raw = await raw_bookie(sick)
    for entry_id in (0, 7, 9, 150):
        assert await raw.read(ledger_id, entry_id) == data_of(ledger_id, entry_id)
    raw.close()
    assert set((await statuses(sick, ledger_id)).values()) == {Status.OK}
    sick.sections["scrub"] = without  # from its next start on


async def test_damage_that_a_read_meets_is_told_everywhere_and_healed(
    cluster: LocalCluster,
) -> None:
    """Without a scrub: the log, an event, the metrics and the quarantine, which a repair then ends."""
    victims = {3, 4, 200}
    uri, sick = cluster.metadata_uri, cluster.bookies[2]
    cli = Cli(uri)
    ledger_id = await fill(uri)
    await cluster.stop_bookie_async(2)
    harm(sick, ledger_id, sorted(victims))
    await cluster.start_bookie_async(2)
    code, answer, _ = await cli.answer_async("bookie", "repair", sick.name, "--quarantined")
    assert (code, answer["ledgers"]) == (0, 0), "nobody has met it yet"
    found = await statuses(sick, ledger_id)
    assert {one for one, status in found.items() if status == Status.CANNOT_TELL} == victims

    async def is_found(expected: set[int]) -> bool:
        return await quarantined(sick) == expected

    await wait_until_async(lambda: is_found(victims), "all damage is found", 30.0)
    metrics = (await asyncio.to_thread(page, sick, "/metrics"))[1]
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    assert sum(float(v) for k, v in values.items() if k.startswith("fastbk_index_quarantined")) == 2
    name = "fastbk_index_damage_found_total"
    assert sum(float(v) for k, v in values.items() if k.startswith(name)) == 2
    assert '"read.damaged"' in sick.log_path.read_text()
    events = (await asyncio.to_thread(json_page, sick, "/events?kind=read.damaged"))["events"]
    told = {(one["values"]["first_entry_id"], one["values"]["last_entry_id"]) for one in events}
    assert told == {(3, 4), (200, 200)}
    assert {one["kind"] for one in events} == {"disk"}
    code, answer, said = await cli.answer_async("bookie", "repair", sick.name, "--quarantined")
    assert (code, answer["entries_copied"]) == (0, len(victims)), said
    await wait_until_async(lambda: is_found(set()), "it is out of quarantine", 30.0)
    assert set((await statuses(sick, ledger_id)).values()) == {Status.OK}


async def test_limbo_ends_in_place_once_all_is_back(cluster: LocalCluster) -> None:
    """A bookie that lost its disks, born again and repaired: what it denies counts again."""
    uri, lost = cluster.metadata_uri, cluster.bookies[2]
    cli = Cli(uri)
    ledger_id = await fill(uri)
    async with fastbk.connect(uri) as client:
        writer = await client.create_ledger(3, 3, 2)
        await writer.append(b"still open when the bookie is lost")
    await cluster.stop_bookie_async(2)
    code, _, said = await cli.answer_async("bookie", "info", lost.name)
    assert code == 1 and "If it is starting, wait" in said and "--http HOST:PORT" in said
    for name in ("journal", "ledgers"):
        shutil.rmtree(lost.directory / name)
    boots = lost.boots
    lost.spawn("--accept-data-loss")
    await cluster.wait_ready_async(2, boots + 1)
    assert set((await statuses(lost, ledger_id)).values()) == {Status.CANNOT_TELL}
    code, _, said = await cli.answer_async("cluster", "under-replicated", "--verify")
    assert code == 1 and f"run `fastbk bookie repair {lost.name}`" in said
    words = ("bookie", "repair", lost.name)
    code, answer, said = await cli.answer_async(*words)
    assert (code, answer["entries_copied"], answer["open"]) == (0, ENTRIES, 1), said
    raw = await raw_bookie(lost)

    async def denied(ledger: int) -> bool:
        return await raw.status(codec.put_read, ledger, ENTRIES + 5) == Status.NO_ENTRY

    await wait_until_async(lambda: denied(ledger_id), "limbo is over", 30.0)
    assert await raw.add(ledger_id, ENTRIES, b"an old writer's") == Status.FENCED
    assert not await denied(writer.ledger_id), "the open one is not whole, and can't be yet"
    raw.close()
    assert set((await statuses(lost, ledger_id)).values()) == {Status.OK}


async def test_every_copy_is_read_and_damage_is_named(cluster: LocalCluster) -> None:
    victims = [0, 7, 8, 150, ENTRIES - 1]
    uri, sick = cluster.metadata_uri, cluster.bookies[2]
    cli = Cli(uri)
    ledger_id = await fill(uri)
    async with fastbk.connect(uri) as client:
        striped = await client.create_ledger(3, 2, 2)
        await striped.append_many([data_of(striped.ledger_id, one) for one in range(ENTRIES)])
        await striped.close()
        still_open = await client.create_ledger(3, 3, 2)
        await still_open.append(b"x")
        code, answer, said = await cli.answer_async("ledger", "audit")
        assert code == 0, said
        assert (answer["ledgers"], answer["open"], answer["entries"]) == (3, 1, 2 * ENTRIES)
        assert sum(one["good"] for one in answer["bookies"].values()) == 5 * ENTRIES
        assert answer["findings"] == []
        assert answer["is_whole"]
        await still_open.close()

    await cluster.stop_bookie_async(2)
    code, answer, said = await cli.answer_async("ledger", "audit", str(ledger_id))
    assert (code, answer["lost"]) == (1, 0), said
    assert answer["findings"] == [
        f"{sick.name}: ledger {ledger_id}, entries 0..{ENTRIES - 1}: the bookie is not up"
    ]
    harm(sick, ledger_id, victims)
    await cluster.start_bookie_async(2)
    code, answer, said = await cli.answer_async("ledger", "audit", str(ledger_id))
    assert code == 1, said
    bookies = answer["bookies"]
    assert (bookies[sick.name]["good"], bookies[sick.name]["bad"]) == (ENTRIES - 5, 5)
    assert [one["bad"] for name, one in bookies.items() if name != sick.name] == [0, 0]
    assert answer["finding_count"] == len(answer["findings"])
    named = {line.split(":")[1].strip() for line in answer["findings"]}
    spans = ("entry 0", "entries 7..8", "entry 150", f"entry {ENTRIES - 1}")
    assert named == {f"ledger {ledger_id}, {span}" for span in spans}
    assert all(line.startswith(f"{sick.name}: ") for line in answer["findings"])
    said_of_it = "damaged or lost: the bookie cannot show it, nor say that it never had it"
    assert all(line.endswith(f": {said_of_it}") for line in answer["findings"])

    code, _, said = await cli.answer_async("ledger", "audit", "987654")
    assert code == 1
    assert said.strip() == "fastbk: there is no ledger 987654"
