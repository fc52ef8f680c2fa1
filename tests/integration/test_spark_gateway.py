"""Spark through a metadata gateway, by the environment alone: what tokens allow jobs, and what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.security.credentials import Credentials
from fastbk.spark.session import light_home
from tests.fixtures.guarded_cluster import GuardedCluster
from tests.fixtures.spark import SETTINGS

pytestmark = pytest.mark.timeout(600)

JOB_S = 250
NAMESPACES = ("shop", "shop/*")
JOB = f"""
import sys
from pyspark.errors import PySparkException
from fastbk.spark.session import as_error, session

spark = session("gateway", "local[2]", **{SETTINGS!r})
rows = spark.range(0, 1000, numPartitions=2).selectExpr("cast(id as string) value")


def write(frame, stream, **options):
    frame.write.format("fastbk").mode("append").options(stream=stream, **options).save()


def read(stream):
    return spark.read.format("fastbk").option("stream", stream).load()


def follow(stream, sink, checkpoint, **options):
    records = spark.readStream.format("fastbk").options(stream=stream, startingOffsets="earliest", **options).load()
    made = sink(records.select("key", "value").writeStream).option("checkpointLocation", checkpoint)
    query = made.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(one["numInputRows"] for one in query.recentProgress)


def show(what, act):
    try:
        print("SHOWN", what, act(), flush=True)
    except PySparkException as error:
        print("SHOWN", what, as_error(error) or error, flush=True)

"""
WRITER = """
def into(stream):
    return lambda to: to.format("fastbk").options(stream=stream, create="true")

failing = spark.range(0, 400000, numPartitions=1).selectExpr("string(if(id = 399999, raise_error('mine'), id)) value")
show("written", lambda: write(rows, "shop/orders", create="true"))
show("failed", lambda: write(failing, "shop/orders"))
show("read", lambda: read("shop/orders").count())
show("followed", lambda: follow("shop/orders", into("shop/eu/copy"), sys.argv[1], readerName="copier",
                                maxEntriesPerTrigger="600"))
show("others", lambda: write(rows, "bank/orders", create="true"))
"""
READER = """
show("read", lambda: read("shop/eu/copy").selectExpr("sum(int(cast(value as string)))").first()[0])
show("followed", lambda: follow("shop/orders", lambda to: to.format("noop"), sys.argv[1], readerName="watcher"))
show("written", lambda: write(rows, "shop/orders"))
show("created", lambda: write(rows, "shop/new", create="true"))
"""


@pytest.fixture(scope="module")
def guarded(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedCluster]:
    with GuardedCluster(tmp_path_factory.mktemp("gateway"), zookeeper_server) as made:
        yield made


def run(
    guarded: GuardedCluster, folder: Path, credentials: Credentials, steps: str
) -> dict[str, str]:
    """Run a job with a token; return what it showed of each step."""
    folder.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FASTBK_")},
        **guarded.tls.environment(),
        **credentials.environment(),
        "FASTBK_METADATA": guarded.uri,
        "SPARK_HOME": str(light_home(folder)),
    }
    done = subprocess.run(
        [sys.executable, "-c", JOB + steps, str(folder / "checkpoint")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shown = (
        line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("SHOWN ")
    )
    return {what: text for what, text in shown}


@pytest.mark.long
def test_jobs_do_what_their_tokens_allow(guarded: GuardedCluster, tmp_path: Path) -> None:
    writer = guarded.token(
        tmp_path / "writer", "read", "add", namespaces=NAMESPACES, subject="writer"
    )
    shown = run(guarded, tmp_path / "job-writer", writer, WRITER)
    assert (shown["written"], shown["read"], shown["followed"]) == ("None", "1000", "1000"), shown
    assert "mine" in shown["failed"] and "its token is limited to namespaces" in shown["others"], (
        shown
    )

    reader = guarded.token(tmp_path / "reader", "read", namespaces=NAMESPACES, subject="reader")
    shown = run(guarded, tmp_path / "job-reader", reader, READER)
    assert (shown["read"], shown["followed"]) == ("499500", "1000"), shown
    for step in ("written", "created"):
        assert (
            "Unauthorized: token:reader may not" in shown[step]
            and "needs the operation add" in shown[step]
        )
    # It ends by the first refusal: there are two tasks, and the driver's creation.
    denied = [
        line
        for line in guarded.gateways[0].audited("request.denied")
        if line["principal"] == "token:reader"
    ]
    assert 2 <= len(denied) <= 3, denied

    with fastbk.sync.connect(guarded.uri, tls=guarded.tls, credentials=reader) as client:
        orders = client.namespace("shop").stream("orders")
        assert {one.name for one in orders.cursors()} == {"copier", "watcher"}
        # What the failed write left is gone, although the writer may not delete.
        assert orders.drafts() == []
        ledgers = list(client.list_ledgers())
        assert {one.metadata.namespace for one in ledgers} == {"shop", "shop/eu"}
        segments = (
            orders.info().segments + client.namespace("shop/eu").stream("copy").info().segments
        )
        assert len(ledgers) == segments
