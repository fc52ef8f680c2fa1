"""Files of every released version, as a killed bookie left them: this version reads, serves and extends them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import fastbk
from fastbk.devcluster import DevCluster
from fastbk.formats import FORMATS
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.style.tree import ROOT
from tools.golden_release import ARCHIVE, EXPECTED

GOLDEN = ROOT / "tests" / "golden"
RELEASES = sorted(one.name for one in GOLDEN.iterdir() if one.name[0].isdigit())
SETTINGS = {"journal": {"first_file_size": "24MiB", "file_size": "24MiB"}}


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """The files of a version in a folder of their own, and its ledgers by what they are."""
    golden = GOLDEN / request.param
    with tarfile.open(golden / ARCHIVE) as archive:
        archive.extractall(tmp_path)  # our own archive
    return tmp_path, json.loads((golden / EXPECTED).read_text())


def header_version(path: Path) -> int:
    """Return the version behind the magic of a file with a binary header."""
    return int.from_bytes(path.read_bytes()[8:12], "little")


def test_they_are_of_the_versions_that_the_table_names(
    release: tuple[Path, dict[str, int]],
) -> None:
    """The archive is what it says: no file was written by this version, and none is missing."""
    bookie = release[0] / "bookie-1"
    found = {
        "journal file": header_version(min((bookie / "journal").glob("*.journal"))),
        "entry log": header_version(*(bookie / "ledgers" / "logs").iterdir()),
        "locations file": header_version(*(bookie / "ledgers" / "locations").iterdir()),
        "manifest": header_version(bookie / "ledgers" / "manifest.0"),
        "cookie": int((bookie / "journal" / "current" / "VERSION").read_text().split()[0]),
        "identity": json.loads((bookie / "ledgers" / "identity.json").read_text())["format"],
    }
    readable = {one.name: range(one.read_min, one.written[one.since] + 1) for one in FORMATS}
    assert {name: version in readable[name] for name, version in found.items()} == dict.fromkeys(
        found, True
    )
    assert (bookie / "ledgers" / "unclean").exists(), "it was killed"


async def test_a_bookie_of_this_version_serves_and_extends_them(
    release: tuple[Path, dict[str, int]],
) -> None:
    folder, ledgers = release
    async with LocalCluster(1, data=folder, settings=SETTINGS) as cluster:
        async with fastbk.connect(cluster.metadata_uri) as client:
            closed = await client.open_ledger(ledgers["closed"])
            assert [bytes(one.data) async for one in closed.read()] == [
                b"closed %d" % one for one in range(300)
            ]
            hmac = await client.open_ledger(ledgers["hmac"], password=b"secret")
            assert [bytes(one.data) async for one in hmac.read()] == [
                b"hmac %d" % one for one in range(20)
            ]
            with pytest.raises(fastbk.NoSuchLedger):
                await client.open_ledger(ledgers["deleted"])
            # Acknowledged to a writer that nobody closed, and in the journal alone.
            recovered = await client.open_ledger(ledgers["open"])
            assert [bytes(one.data) async for one in recovered.read()] == [
                b"open %d" % one for one in range(100)
            ]
            orders = client.namespace("shop").stream("orders")
            async with orders.writer() as writer:
                await writer.append(b"order 260", key=b"k2")
            async with orders.reader("earliest") as records:
                for number in range(261):
                    record = await anext(records)
                    assert isinstance(record, fastbk.Record)
                    assert bytes(record.payload) == b"order %d" % number
                    assert record.key == b"k%d" % (number % 3)
            async with orders.cursor("billing") as cursor:
                record = await anext(cursor)
                assert isinstance(record, fastbk.Record)
                assert bytes(record.payload) == b"order 50", "the cursor goes on where it was"
                cursor.ack(record)
            async with await client.create_ledger(1, 1, 1) as fresh:
                await fresh.append(b"of this version")
            assert fresh.ledger_id > max(ledgers.values())
        await cluster.restart_bookie_async(0)
        async with fastbk.connect(cluster.metadata_uri) as client:
            again = await client.open_ledger(fresh.ledger_id)
            assert [bytes(one.data) async for one in again.read()] == [b"of this version"]


def test_the_offline_check_finds_no_fault_in_them(release: tuple[Path, dict[str, int]]) -> None:
    folder, _ = release
    cluster = DevCluster(folder, 1, settings=SETTINGS)
    config = cluster.bookies[0]._write_config()
    answer = Cli(cluster.metadata_uri).json("bookie", "check", "--config", str(config))
    findings = answer["findings"]
    assert isinstance(findings, list)
    # Notes say that it was killed.
    assert {one["severity"] for one in findings} == {"note"} and answer["entries"]
