"""The data pipeline (`./dev pipeline`): this machine's own package records through streams and Spark, there and back.

1. dpkg's packages and the checksums of their files are appended to two streams with `fastbk stream append`.
2. A streaming query on Spark takes them to partitioned Parquet while they are appended; it is stopped, more is
appended, and it goes on from its checkpoint. 3. Its table and a chart; counts and digest are those of a computation
that uses nothing of ours. 4. The streams are archived, restored as new ones, and compared record by record. 5. All
copies are audited; one bit on one bookie is turned over; the audit has to name it; it is healed.
Exit 0 only when all of that agreed. What was found is in fastbk-data/pipeline/report.json.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.errors import PySparkException, PySparkRuntimeError

import fastbk.sync
from demo.__main__ import DATA, SIGNALS, Screen, running_bookies
from demo.pipeline import chart, copies, expected, spark_query
from demo.pipeline.commands import Commands, stderr_into
from demo.pipeline.records import NAMES, WrittenLines, write_lines
from fastbk.errors import Error, StorageError
from fastbk.spark.session import light_home, session
from fastbk.stream.policy import PolicyPatch
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from demo.pipeline.spark_query import QueryRun
    from fastbk.devcluster import DevCluster

ROOT = "pipeline"
LOG, RESTORED = f"{ROOT}/log", f"{ROOT}/restored/files"
POLICY = PolicyPatch(roll_bytes=4 << 20)
"""Some segments, so that parts are cut and ledgers are several."""
BATCHES = 4
"""Micro-batches that all records make, about."""
RECORDS_PER_BATCH_MIN = 500
SPARK = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Thousands of rows: more partitions are more tasks that do nothing.
    "spark.sql.shuffle.partitions": "2",
    # It runs for a minute or two: what the second compiler makes faster does not pay for that compiler.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.log.level": "WARN",
}


class Pipeline:
    """One run. `report`: what each step found, by its name."""

    def __init__(self, cluster: DevCluster, screen: Screen, place: Path) -> None:
        self._cluster = cluster
        self._screen = screen
        self._place = place
        self._commands = Commands(screen, cluster.metadata_uri)
        self._lines: dict[str, WrittenLines] = {}
        self._streams = [f"{LOG}/{name}" for name in NAMES]
        self._told: QueryRun | None = None
        self.step = "set-up"
        self.report: dict[str, Any] = {}

    def run(self) -> None:
        """Do all steps. Raises Error where one fails or finds something else than it should."""
        try:
            with fastbk.sync.connect(self._cluster.metadata_uri) as client:
                self._prepare(client)
                wanted = self._expected()
                spark = self._session()
                self._stream(spark)
                self._compare(spark, wanted)
                self._archive_and_restore(client)
                self._audit(client)
        except PySparkException as error:
            raise StorageError(f"Spark: {spark_query.said_by(error)}") from error

    def _session(self) -> SparkSession:
        """Start Spark; the jobs' commands stop this session and make their own, on the same Java machine."""
        # What py4j says of an interrupt in the middle of a call is no news for whoever interrupted.
        logging.getLogger().setLevel(logging.CRITICAL)
        home = self._place / "spark"
        home.mkdir()
        # In the environment, so that it holds for the jobs' sessions, too.
        os.environ.update(
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_LOCAL_DIRS=str(home / "local"),
            SPARK_HOME=str(light_home(home)),
        )
        try:
            with stderr_into(self._place / "spark.log"):
                return session("pipeline", **SPARK)
        except PySparkRuntimeError as error:
            raise StorageError(
                f"Spark does not start; is Java 17 or later here? {error}"
            ) from error

    @contextmanager
    def _step(self, name: str, title: str) -> Iterator[dict[str, Any]]:
        self.step = name
        self._screen.say(f"\n{title}")
        found: dict[str, Any] = {}
        began_s = time.monotonic()
        yield found
        self.report[name] = {**found, "seconds": round(time.monotonic() - began_s, 2)}

    # --- streams, and Spark's query -----------------------------------------------------------------------------

    def _prepare(self, client: fastbk.sync.Client) -> None:
        with self._step("source", "Source") as found:
            root = client.namespace(ROOT)
            if root.exists():
                root.delete(recursive=True)
            client.namespace(ROOT).create(POLICY)
            client.namespace(LOG).create()
            self._lines = write_lines(self._place / "source")
            found["records"] = {name: one.lines for name, one in self._lines.items()}
            size_bytes = sum(one.path.stat().st_size for one in self._lines.values())
            counts = " and ".join(
                f"{format_count(one.lines, 'record')} of {name}"
                for name, one in self._lines.items()
            )
            self._screen.say(f"dpkg knows {counts}, {format_size(size_bytes)} as lines of JSON")

    def _expected(self) -> expected.Totals:
        with self._step("expected", "What has to come out, by Python alone") as found:
            wanted = expected.totals()
            found.update(msgspec.to_builtins(wanted))
            self._screen.say(
                f"{wanted.packages:,} packages, {wanted.files:,} files,"
                f" {wanted.installed_kib:,} KiB installed; digest {wanted.digest[:16]}…"
            )
            return wanted

    def _stream(self, spark: SparkSession) -> None:
        packages, files = (self._lines[name] for name in NAMES)
        total, half = packages.lines + files.lines, files.lines // 2
        batch = max(RECORDS_PER_BATCH_MIN, total // BATCHES)
        with self._step("streaming", "Streams to Parquet, by a streaming query") as found:
            self._commands.append(self._streams[0], packages.path).end()
            query = spark_query.Query(spark, f"{LOG}/.*", self._place, batch, to_end=False)
            self._screen.say(
                f"a query on {LOG}/.* began, {batch:,} records a micro-batch; files are appended while it runs"
            )
            # A stream that is not there yet when the query begins: it is found.
            appending = self._commands.append(self._streams[1], files.path, half)
            try:
                first = query.until(packages.lines + half, self._so_far)
                appending.end()
            finally:
                appending.kill()
            self._screen.say(
                f"stopped it behind {first.rows:,} records in {first.batches} micro-batches"
            )
            again = self._commands.append(self._streams[1], files.path).end()
            self._screen.say(
                f"{again['passed_over']:,} lines were there before, {again['records']:,} are new"
            )
            query = spark_query.Query(spark, f"{LOG}/.*", self._place, batch, to_end=True)
            second = query.until(None, self._so_far)
            self._screen.say(
                f"gone on from its checkpoint: {second.rows:,} records in {second.batches} micro-batches"
            )
            found["first"], found["second"] = msgspec.to_builtins([first, second])
            found["passed_over"] = again["passed_over"]
            if first.rows + second.rows != total:
                raise StorageError(f"{first.rows + second.rows:,} records of {total:,} were read")

    def _so_far(self, went: QueryRun) -> None:
        if went.rows and went != self._told:
            self._told = went
            batches = format_count(went.batches, "micro-batch", "micro-batches")
            self._screen.progress(f"{format_count(went.rows, 'record')} in {batches}")

    def _compare(self, spark: SparkSession, wanted: expected.Totals) -> None:
        with self._step("table", "Table and chart, from the Parquet") as found:
            rows = spark_query.table(spark, self._place)
            totals = spark_query.totals(rows)
            found.update(msgspec.to_builtins(totals))
            for line in chart.lines_of(totals.sections):
                self._screen.say(line)
            picture = self._place / "packages.png"
            chart.draw(picture, totals.sections, spark_query.largest(rows, chart.LARGEST_SHOWN))
            self._screen.say(f"chart: {picture}")
            if totals != wanted:
                raise StorageError(f"Parquet has {_short(totals)}, dpkg {_short(wanted)}")
            self._screen.say(
                f"as the source: {totals.packages + totals.files:,} records, digest {totals.digest[:16]}…"
            )

    # --- there and back -----------------------------------------------------------------------------------------

    def _archive_and_restore(self, client: fastbk.sync.Client) -> None:
        place = str(self._place / "archive")
        with self._step("archive", "The streams to an archive") as found:
            _, answer, took_s = self._commands.run_here(
                "spark", "archive", place, "--pattern", f"{LOG}/.*", "--json"
            )
            found["streams"] = {one["stream"]: one["records"] for one in answer["streams"]}
            self._screen.say(
                f"{sum(found['streams'].values()):,} records archived and verified in {took_s:.1f} s"
            )
        with self._step("restore", "And back, as a new stream") as found:
            old, new = self._streams[1], RESTORED
            _, answer, took_s = self._commands.run_here(
                "spark", "restore", place, old, new, "--json"
            )
            count = copies.same_records(
                client,
                old,
                new,
                lambda so_far: self._screen.progress(f"{so_far:,} records compared"),
            )
            wanted = self._lines["files"].lines
            if not count == answer["records"] == wanted:
                raise StorageError(f"{new} has {count:,} records, and {wanted:,} were appended")
            found["records"] = count
            self._screen.say(
                f"{new}: restored in {took_s:.1f} s; all {count:,} records are those of {old}, one by one"
            )

    # --- copies -------------------------------------------------------------------------------------------------

    def _audit(self, client: fastbk.sync.Client) -> None:
        ledgers = copies.ledgers_of(client, [*self._streams, RESTORED])
        with self._step("audit", "Every copy of every entry, on all bookies") as found:
            found["clean"] = self._audited(ledgers, is_whole=True)
        with self._step("damage", "The same with one bit turned over") as found:
            victim = copies.choose(client, self._streams[1])
            bookie = next(one for one in self._cluster.bookies if one.name == victim.bookie)
            copies.stop(bookie)
            try:
                path, at = copies.flip(self._commands, bookie, victim)
            finally:
                copies.start(self._cluster, bookie)
            self._screen.say(
                f"{victim}: turned over a bit at byte {at:,} of {path.name}, and started it again"
            )
            found["victim"] = msgspec.to_builtins(victim)
            found["audit"] = self._audited(ledgers, is_whole=False)
            findings = found["audit"]["findings"]
            if len(findings) != 1 or not findings[0].startswith(f"{victim}: "):
                raise StorageError(f"the audit was to name {victim}, and says {findings}")
        with self._step("repair", "Healed, and audited once more") as found:
            _, answer, _ = self._commands.run(
                "bookie", "repair", victim.bookie, "--ledger", str(victim.ledger_id), "--json"
            )
            found["entries_copied"] = answer["entries_copied"]
            self._screen.say(f"{format_count(answer['entries_copied'], 'entry', 'entries')} copied")
            found["audit"] = self._audited(ledgers, is_whole=True)

    def _audited(self, ledgers: list[int], *, is_whole: bool) -> dict[str, Any]:
        code, answer, took_s = self._commands.run_here(
            "spark", "audit", *map(str, ledgers), "--json", good=(0, 1)
        )
        for finding in answer["findings"]:
            self._screen.say(f"  {finding}")
        good = sum(one["good"] for one in answer["bookies"].values())
        self._screen.say(
            f"{format_count(answer['ledgers'], 'ledger')}, {answer['entries']:,} entries,"
            f" {good:,} good copies, {format_count(answer['finding_count'], 'finding')}; {took_s:.1f} s"
        )
        if (code == 0, answer["is_whole"]) != (is_whole, is_whole) or not good:
            raise StorageError("the audit was to find " + ("nothing" if is_whole else "the damage"))
        kept = ("ledgers", "entries", "lost", "finding_count", "findings", "is_whole")
        return {**{name: answer[name] for name in kept}, "good": good}


def _short(totals: expected.Totals) -> str:
    return (
        f"{totals.packages:,} packages, {totals.files:,} files, {totals.installed_kib:,} KiB,"
        f" digest {totals.digest[:16]}…"
    )


def main() -> int:
    """Run the pipeline once; return the exit code."""
    screen = Screen()
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    place = DATA.absolute() / "pipeline"
    pipeline: Pipeline | None = None
    verdict = "not done"
    began_s = time.monotonic()
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        with running_bookies(screen) as cluster:
            screen.say(f"{format_count(len(cluster.bookies), 'bookie')} ready, data in {DATA}")
            screen.say(f"$ export FASTBK_METADATA={cluster.metadata_uri}")
            pipeline = Pipeline(cluster, screen, place)
            pipeline.run()
            verdict = ""
    except Error as error:
        verdict = f"{pipeline.step if pipeline else 'set-up'}: {error}"
    except KeyboardInterrupt:
        verdict = "interrupted"
    finally:
        if pipeline is not None:
            pipeline.report["agreed"] = not verdict
            report = msgspec.json.format(msgspec.json.encode(pipeline.report))
            (place / "report.json").write_bytes(report)
    if verdict:
        screen.say(f"FAILED: {verdict}; what Spark said is in {place / 'spark.log'}")
        return 1
    screen.say(
        f"OK: all of it agreed, in {time.monotonic() - began_s:.0f} s; {DATA}/pipeline has chart, Parquet,"
        " archive and report.json"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
