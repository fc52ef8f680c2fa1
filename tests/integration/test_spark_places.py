"""Places of jobs on a file system of Hadoop's that is not this machine's disk by name: claims, manifests, deletions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

import fastbk.sync
from fastbk.errors import ConfigError, StorageError
from fastbk.spark.jobs import archive, ingest, rebuild, restore
from fastbk.spark.jobs.claims import HadoopFiles, Owner, claimed, files_of
from fastbk.spark.jobs.ingest import IngestPlan
from fastbk.spark.jobs.rebuild import RebuildPlan
from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

AT_ONCE = 8
T = TypeVar("T")


@pytest.fixture(scope="module")
def mounted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A folder as Hadoop's ViewFileSystem has it, which creates as its local one does: not exclusively."""
    folder = tmp_path_factory.mktemp("mounted")
    context: Any = spark.sparkContext
    settings = context._jsc.hadoopConfiguration()
    settings.set("fs.viewfs.mounttable.jobs.link./data", folder.as_uri())
    return "viewfs://jobs/data", folder


def together(acts: list[Callable[[], T]]) -> list[T]:
    with ThreadPoolExecutor(len(acts)) as pool:
        return [one.result() for one in [pool.submit(act) for act in acts]]


def test_of_runs_that_begin_in_one_moment_at_most_one_counts(
    spark: SparkSession, mounted: tuple[str, Path]
) -> None:
    place, folder = mounted
    assert isinstance(files_of(spark, f"{place}/race/claims"), HadoopFiles)
    begin, all_began = threading.Barrier(AT_ONCE), threading.Barrier(AT_ONCE)

    def run() -> str:
        files = files_of(spark, f"{place}/race/claims")
        with ExitStack() as stack:
            begin.wait(60)
            try:
                claim = stack.enter_context(claimed(files, lambda: 0))
            except ConfigError:
                claim = None
            all_began.wait(60)
            if claim is None:
                return "refused"
            try:
                claim.check()
            except StorageError:
                return "does not count"
            return "counts"

    for _ in range(10):
        found = together([run] * AT_ONCE)
        assert found.count("counts") <= 1, found
        assert not list((folder / "race" / "claims").glob("run=*"))


class Shop:
    """A stream, and a place there for what is made of it."""

    def __init__(self, spark: SparkSession, uri: str, client: fastbk.sync.Client, to: str) -> None:
        self.spark, self.uri, self.to = spark, uri, to
        self._space = client.namespace(to.rpartition("/")[2])
        self._space.create()
        self.stream = self._space.create_stream("orders")

    def append(self, count: int) -> None:
        with self.stream.writer() as writer:
            for at in range(count):
                writer.append(b"%d" % at, key=b"k%d" % (at % 7))

    def payloads(self, name: str) -> list[bytes]:
        with self._space.stream(name).reader(tail=False) as reader:
            return [bytes(one.payload) for one in reader]

    def run_twice(self, job: Callable[..., object]) -> None:
        """Run it; then once more, while another run has the place, and after that was taken over."""
        self.append(30)
        patiently(job)
        files = files_of(self.spark, f"{self.to}/claims")
        other = Owner("process 1 on elsewhere", "another machine", 1, "5", "then")
        assert files.create("run=000009", other.text())
        with pytest.raises(ConfigError, match="run 9 of process 1 on elsewhere"):
            job()
        self.append(5)
        patiently(partial(job, take_over=True))
        assert not [one for one in files.names() if one.startswith("run=")]


@pytest.fixture
def shop(
    spark: SparkSession,
    cluster: LocalCluster,
    client: fastbk.sync.Client,
    mounted: tuple[str, Path],
    own_name: str,
) -> Shop:
    return Shop(spark, cluster.metadata_uri, client, f"{mounted[0]}/{own_name}")


def test_an_archive_there_is_gone_on_with_and_restored(shop: Shop) -> None:
    path = shop.stream.path
    shop.run_twice(partial(archive.run, shop.spark, shop.uri, shop.to, streams=path))
    lines = [line for _, line in archive.lines_of(shop.spark, shop.to)]
    assert [(line.first_seq, line.end_seq) for line in lines] == [(0, 30), (30, 35)]
    again = path.replace("orders", "again")
    patiently(partial(restore.run, shop.spark, shop.uri, shop.to, path, again))
    assert shop.payloads("again") == shop.payloads("orders")


def test_a_state_there_is_brought_up_to_date(shop: Shop) -> None:
    plan = RebuildPlan(stream=shop.stream.path, to=shop.to)
    shop.run_twice(partial(rebuild.run, shop.spark, shop.uri, plan))
    state = rebuild.state_of(shop.spark, shop.to).collect()
    wanted = {b"k%d" % (at % 7): at for at in [*range(30), *range(5)]}
    assert {bytes(row.key): int(bytes(row.value)) for row in state} == wanted


def test_a_manifest_there_says_which_files_were_taken(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "a b%20.txt").write_text("k1\nk2\n")
    stream = shop.stream.path.replace("orders", "files")
    plan = IngestPlan(stream=stream, manifest=shop.to, create=True)
    shop.run_twice(partial(ingest.run, shop.spark, shop.uri, [str(tmp_path)], plan))
    assert shop.payloads("files") == [b"k1", b"k2"]
