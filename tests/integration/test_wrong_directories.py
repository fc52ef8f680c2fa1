"""Real bookies whose disks were mixed up, lost or put back from a copy: they do not start, say why, and go on when it
is put right; nothing acknowledged is missing then (INV-D1). The doctor says beforehand what the start would say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk
from fastbk.devcluster import Bookie
from fastbk.errors import StorageError
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli

ENTRIES = 50


def refusal(cluster: LocalCluster, number: int) -> str:
    """Start a bookie that must not start; return the reason that its log gives."""
    with pytest.raises(StorageError):
        cluster.start_bookie(number)
    line = json.loads(cluster.bookies[number].log_tail(1))
    assert line["event"] == "bookie.failed"
    return str(line["reason"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One bookie, which runs; the last test kills it."""
    with LocalCluster(1) as made:
        yield made


def doctor(bookie: Bookie) -> tuple[int, dict[str, str]]:
    """Exit code, and what the doctor says of the identity."""
    code, out = Cli("").run("doctor", "--config", str(bookie.directory / "bookie.toml"), "--json")
    findings = map(json.loads, out.splitlines())
    (found,) = (each for each in findings if each["name"] == "identity")
    return code, found


def move(one: Path, other: Path) -> None:
    """Exchange two folders."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


async def test_an_old_copy_put_back_is_refused_and_the_newest_goes_on(
    cluster: LocalCluster,
) -> None:
    (bookie,) = cluster.bookies
    await cluster.stop_bookie_async(0)
    for name in ("journal", "ledgers"):
        shutil.copytree(bookie.directory / name, bookie.directory / f"{name}.copy")
    await cluster.start_bookie_async(0)
    ledger_id = await write(cluster)
    await cluster.stop_bookie_async(0)
    for name in ("journal", "ledgers"):
        move(bookie.directory / name, bookie.directory / f"{name}.copy")
    reason = refusal(cluster, 0)
    assert "restored from an old copy" in reason
    code, found = doctor(bookie)
    assert (code, found["status"]) == (1, "fail")
    assert found["why"] in reason and "old copy" in found["fix"]
    for name in ("journal", "ledgers"):
        move(bookie.directory / name, bookie.directory / f"{name}.copy")
    before = sorted((bookie.directory / "journal").iterdir())
    (bookie.directory / "ledgers").rename(bookie.directory / "unmounted")
    assert "ledgers" in refusal(cluster, 0)
    assert not (bookie.directory / "ledgers").exists(), "a refused start makes nothing"
    assert sorted((bookie.directory / "journal").iterdir()) == before
    (bookie.directory / "unmounted").rename(bookie.directory / "ledgers")
    await cluster.start_bookie_async(0)
    await read_all(cluster, ledger_id)


async def test_a_killed_bookie_s_entries_can_be_salvaged_and_the_doctor_finds_nothing_wrong(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (bookie,) = cluster.bookies
    ledger_id = await write(cluster)
    await cluster.kill_async(0)
    journal = str(bookie.directory / "journal")
    Cli("")("inspect", "journal", journal, "--salvage", str(tmp_path / "out"))
    lines = (tmp_path / "out" / f"{ledger_id}.jsonl").read_text().splitlines()
    assert {json.loads(line)["entry_id"] for line in lines} == set(range(ENTRIES))
    assert doctor(bookie)[0] == 0


async def write(cluster: LocalCluster) -> int:
    size = len(cluster.bookies)
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        await client.create_ledger(ensemble=size, write_quorum=size, ack_quorum=size) as writer,
    ):
        for n in range(ENTRIES):
            await writer.append(b"entry %d" % n)
        return writer.ledger_id


async def read_all(cluster: LocalCluster, ledger_id: int) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        reader = await client.open_ledger(ledger_id)
        found = [bytes(entry.data) async for entry in reader.read(0, ENTRIES - 1)]
    assert found == [b"entry %d" % n for n in range(ENTRIES)]
