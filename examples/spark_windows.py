"""Windows over a stream: sales as JSON, summed by shop and five minutes of their own time, back into another stream.

Sales come out of order. A window is closed, and its sums written once, when the watermark has passed its end: ten
minutes behind the latest sale that was seen. What comes later than that is passed by. Each round appends some sales and
runs the query to the end of what is there; it goes on from its checkpoint, and what it writes is there exactly once.

    python examples/spark_windows.py [URI]       (or FASTBK_METADATA; without either, on a cluster of its own)
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import islice

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import fastbk.spark
import fastbk.sync
from fastbk.spark.session import session
from fastbk.testing import LocalCluster

NAMESPACE, SALES, SUMS = "examples/windows", "sales", "sums"
OPENING = datetime(2026, 3, 1, 9, tzinfo=UTC)
LATE = timedelta(minutes=10)
WINDOW = timedelta(minutes=5)
ROUNDS = 2
LATE_SALES = 3
SALES_A_ROUND = 400
QUERY_S = 120
Sums = dict[tuple[str, str], tuple[int, int]]


def sums_by_window(sales: DataFrame) -> DataFrame:
    """Return sales as JSON summed by shop and window, as rows of the sink."""
    parsed = fastbk.spark.json(sales, "shop string, cents long, at timestamp").select("value.*")
    sums = (
        parsed.withWatermark("at", f"{LATE.seconds} seconds")
        .groupBy(f.window("at", f"{WINDOW.seconds} seconds"), "shop")
        .agg(f.count("*").alias("sales"), f.sum("cents").alias("cents"))
    )
    start = f.date_format("window.start", "HH:mm").alias("start")
    columns = f.struct(start, "shop", "sales", "cents")
    return sums.select(f.col("shop").alias("key"), f.to_json(columns).alias("value"))


def run_query(spark: SparkSession, uri: str, checkpoint: str) -> None:
    """Run it to the end of what the stream has now."""
    sales = (
        spark.readStream.format("fastbk")
        .options(metadata=uri, stream=f"{NAMESPACE}/{SALES}", startingOffsets="earliest")
        .load()
    )
    query = (
        sums_by_window(sales)
        .writeStream.format("fastbk")
        .outputMode("append")
        .options(metadata=uri, stream=f"{NAMESPACE}/{SUMS}", create="true")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(QUERY_S):
            raise TimeoutError(f"the query did not end within {QUERY_S} s")
    finally:
        query.stop()


def sales_of(hour: int, rng: random.Random) -> Iterator[tuple[str, int, datetime]]:
    """Yield an hour's sales, each up to nine minutes late, and behind them one of the next hour's first second."""
    opens = OPENING + timedelta(hours=hour)
    for number in range(SALES_A_ROUND):
        at = opens + timedelta(minutes=59) * number / SALES_A_ROUND
        early = timedelta(seconds=rng.randrange(540))
        yield rng.choice(("north", "south")), rng.randrange(1, 5000), max(opens, at - early)
    yield "north", 1, opens + timedelta(hours=1)


def count(sums: Sums, shop: str, cents: int, at: datetime) -> None:
    """Add a sale to the window that it belongs to: the same sums, without Spark."""
    start = at - (at - OPENING) % WINDOW
    key = (start.strftime("%H:%M"), shop)
    number, total = sums.get(key, (0, 0))
    sums[key] = (number + 1, total + cents)


def run(spark: SparkSession, uri: str, checkpoint: str) -> str:
    """Do all of it; return what was found. Raises AssertionError if a sum is not what it should be."""
    rng = random.Random(5)
    wanted: Sums = {}
    late = 0
    with fastbk.sync.connect(uri) as client:
        namespace = client.namespace(NAMESPACE)
        namespace.create(exist_ok=True)
        for name in {SALES, SUMS} & {info.path.rpartition("/")[2] for info in namespace.streams()}:
            namespace.delete_stream(name)
        with namespace.create_stream(SALES).writer() as writer:

            def sell(shop: str, cents: int, at: datetime) -> None:
                sale = {"shop": shop, "cents": cents, "at": at.isoformat()}
                writer.append(json.dumps(sale).encode(), key=shop.encode())

            for hour in range(ROUNDS):
                for minute in range(LATE_SALES if hour else 0):
                    # Of the hour before, whose windows are closed by now.
                    sell("north", 100_000, OPENING + timedelta(hours=hour - 1, minutes=minute))
                    late += 1
                for sale in sales_of(hour, rng):
                    sell(*sale)
                    count(wanted, *sale)
                run_query(spark, uri, checkpoint)
        # The last sale closed what ended ten minutes before it, and no more.
        closed = (OPENING + timedelta(hours=ROUNDS) - LATE).strftime("%H:%M")
        due = {key: sums for key, sums in wanted.items() if key[0] < closed}
        found: Counter[tuple[str, str]] = Counter()
        stream = namespace.stream(SUMS)
        with stream.reader() as reader:
            for record in islice(reader, stream.info().records):
                row = json.loads(record.value)
                key = (row["start"], row["shop"])
                found[key] += 1
                assert due[key] == (row["sales"], row["cents"]), f"{row}, and {due[key]} is right"
    assert found == Counter(due.keys()), "a window is missing, or there twice"
    return (
        f"{sum(number for number, _ in due.values())} sales in {len(due)} windows, each sum as counted"
        f" without Spark; {late} sales came too late"
    )


def main(uri: str | None) -> None:
    """Run it on a cluster: on one of its own, if none is given."""
    with ExitStack() as stack:
        if uri is None:
            uri = stack.enter_context(LocalCluster()).metadata_uri
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        spark = session("windows", spark_sql_shuffle_partitions="2")
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        print(run(spark, uri, f"{folder}/checkpoint"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FASTBK_METADATA") or None)
