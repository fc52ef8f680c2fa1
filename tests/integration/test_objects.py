"""Objects on real bookies: `fastbk object ...`, `fastbk.sync`, and uploaders that are killed. INV-O1 to INV-O4."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.errors import ObjectExists
from fastbk.model.ledger import OBJECT_KEY
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli

DATA = random.Random(7).randbytes((5 << 20) + 777)
UPLOADER = """
import sys
import fastbk.sync
with fastbk.sync.connect(sys.argv[1]) as client:
    with fastbk.sync.Objects(client.namespace("backups")).writer("killed") as writer:
        while True:
            writer.write(bytes(1 << 20))
            print(writer.size_bytes, flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, write_services=0) as running:
        yield running


@pytest.fixture
def cli(cluster: LocalCluster) -> Iterator[Cli]:
    made = Cli(cluster.metadata_uri)
    yield made
    made.end()


@pytest.fixture
def objects(cluster: LocalCluster) -> Iterator[fastbk.sync.Objects]:
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        namespace = client.namespace("backups")
        namespace.create(exist_ok=True)
        yield fastbk.sync.Objects(namespace)
        namespace.delete(recursive=True)


def test_objects_without_await(objects: fastbk.sync.Objects, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        info = objects.put("a/1", file, metadata={"step": "1"})
    assert info.sha256 == hashlib.sha256(DATA).hexdigest()
    with objects.open("a/1") as reader:
        assert reader.size_bytes == len(DATA)
        assert reader.read(3 << 20, (3 << 20) + 5) == DATA[3 << 20 :][:5]
        assert b"".join(reader.chunks()) == DATA
    assert objects.get("a/1") == DATA and not objects.verify("a/1")
    with pytest.raises(ObjectExists):
        objects.put("a/1", b"other")
    with pytest.raises(ZeroDivisionError), objects.writer("b") as writer:
        writer.write(DATA)
        raise ZeroDivisionError
    with objects.writer("c") as writer:
        writer.write(b"small")
    assert [one.name for one in objects.list()] == ["a/1", "c"]
    assert objects.usage() == (2, len(DATA) + 5)
    objects.delete("c")
    assert [one.name for one in objects.list("")] == ["a/1"]


def test_the_commands(cli: Cli, objects: fastbk.sync.Objects, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(DATA)
    put = cli.json("object", "put", "backups", "x/1", str(source), "--set", "step=1")
    assert (put["bytes"], put["metadata"]) == (len(DATA), {"step": "1"})
    assert "already" in cli.fails("object", "put", "backups", "x/1", str(source))
    cli("object", "get", "backups", "x/1", str(target))
    assert target.read_bytes() == DATA and not target.with_name("target.part").exists()
    assert cli.run("object", "get", "backups", "x/1", "--start=2", "--end=9")[1] == DATA[2:9]
    assert cli.run("object", "put", "backups", "x/2", stdin=b"piped")[0] == 0
    assert objects.get("x/2") == b"piped"
    assert cli.run("object", "put", "backups", "x/2", "--replace", stdin=b"new")[0] == 0
    assert objects.get("x/2") == b"new"
    listed = cli.json("object", "list", "backups", "x/")
    assert [one["name"] for one in listed["objects"]] == ["x/1", "x/2"]
    assert put["sha256"] in cli("object", "info", "backups", "x/1")
    assert cli.json("object", "verify", "backups", "x/1") == {"name": "x/1", "damages": []}
    assert "there is no object x/3" in cli.fails("object", "get", "backups", "x/3")
    assert "would delete object x/2" in cli("object", "delete", "backups", "x/2", "--dry-run")
    cli("object", "delete", "backups", "x/2", "-y")
    assert cli.json("object", "list", "backups")["objects"] == listed["objects"][:1]


def test_a_killed_uploader_leaves_a_draft_that_the_janitor_ends(
    cluster: LocalCluster, objects: fastbk.sync.Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", UPLOADER, cluster.metadata_uri], stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None and process.stdout.readline()
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        assert list(objects.list()) == []
    with fastbk.sync.connect(cluster.metadata_uri) as client:

        def count() -> int:
            return sum(OBJECT_KEY in info.metadata.custom for info in client.list_ledgers())

        assert count() == 3
        pass_once(cluster)
        assert count() == 3  # who has begun it may come back
        monkeypatch.setattr("fastbk.stream.object_records.UPLOAD_KEPT_S", -1.0)
        pass_once(cluster)
        assert count() == 0


def pass_once(cluster: LocalCluster) -> None:
    """Have a janitor pass once, in this process."""
    import asyncio

    import fastbk
    from fastbk.stream.janitor import Janitor

    async def run() -> None:
        async with fastbk.connect(cluster.metadata_uri) as client:
            await Janitor(client).pass_once()

    asyncio.run(run())
