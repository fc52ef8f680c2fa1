"""The main job's last part: Spark reads the ledger, counts and sums it, and says what is in it.

It looks in a process of its own (`python -m demo.spark_stage URI LEDGER FOLDER`), so that a JVM's noise goes to
a file and its end is waited for. What the ledger must be is known by who wrote it, and computed without Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, StorageError
from fastbk.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, SparkSession

PRIME = 2**31 - 1
SECTIONS_SHOWN = 10
STAGE_S = 300.0
STOP_S = 20.0
WITHOUT = "SPARK=0 leaves Spark out"


@dataclass(slots=True)
class Sum:
    """A ledger's entries, their bytes, and a sum over all of them: CRC-32 by place, so order counts, too."""

    entries: int = 0
    size_bytes: int = 0
    crc: int = 0

    def add(self, data: bytes) -> None:
        """Count the next entry."""
        self.entries += 1
        self.size_bytes += len(data)
        self.crc += zlib.crc32(data) * self.entries % PRIME


@dataclass(slots=True)
class Section:
    """Packages of one section of the index: how many, and what they take when they are installed."""

    name: str
    packages: int
    installed_bytes: int


@dataclass(slots=True)
class Seen:
    """What Spark saw, in how many seconds; the largest sections, if the ledger holds a package index."""

    sum: Sum
    seconds: float = 0.0
    sections: list[Section] = field(default_factory=list)


def sum_sections(spark: SparkSession, uri: str, ledger_id: int) -> Seen:
    """Read a ledger once; the records of a package index are parsed on the way."""
    from pyspark.sql import functions as f

    def of_index(name: str, form: str) -> Column:
        return f.regexp_extract(f.col("value").cast("string"), f"(?m)^{name}: ({form})$", 1)

    began_s = time.monotonic()
    rows = spark.read.format("fastbk").options(metadata=uri, ledgers=str(ledger_id)).load()
    parsed = rows.select(
        of_index("Package", "[^\\n]{1,200}").alias("package"),
        of_index("Section", "[^\\n]{1,100}").alias("section"),
        of_index("Installed-Size", "[0-9]{1,12}").alias("installed_kib"),
        f.length("value").alias("size"),
        f.pmod(f.crc32("value") * (f.col("entry") + 1), f.lit(PRIME)).alias("crc"),
    )
    # The index was written again and again: a package counts once.
    packages = parsed.groupBy("section", "package").agg(
        f.count("*").alias("entries"),
        f.sum("size").alias("size"),
        f.sum("crc").alias("crc"),
        f.max(f.expr("try_cast(installed_kib as long)")).alias("installed_kib"),
    )
    sections = packages.rollup("section").agg(
        f.sum("entries"),
        f.sum("size"),
        f.sum("crc"),
        f.count(f.when(f.col("package") != "", 1)).alias("packages"),
        f.sum("installed_kib").alias("kib"),
        f.grouping("section").alias("is_total"),
    )
    found = sections.orderBy(f.desc("is_total"), f.desc("packages"), "section")
    seen = found.limit(1 + SECTIONS_SHOWN).collect()
    seconds = time.monotonic() - began_s
    if not seen or not seen[0].is_total:
        return Seen(Sum(), seconds)  # an empty ledger has no rows to sum
    total, *largest = seen
    return Seen(
        Sum(*(int(total[at] or 0) for at in (1, 2, 3))),
        seconds,
        [
            Section(one.section, one.packages, 1024 * (one.kib or 0))
            for one in largest
            if one.packages
        ],
    )


def differences(wanted: Sum, seen: Sum) -> list[str]:
    """Return what Spark saw otherwise than it was written; empty: nothing."""
    return [
        f"{name}: {was:,} were written, Spark read {found:,}"
        for name, was, found in (
            ("entries", wanted.entries, seen.entries),
            ("bytes", wanted.size_bytes, seen.size_bytes),
            ("sum of checksums", wanted.crc, seen.crc),
        )
        if was != found
    ]


def lines_of(seen: Seen) -> Iterable[str]:
    """Yield what is to be said of it."""
    rate = format_size(int(seen.sum.size_bytes / max(seen.seconds, 1e-9)))
    yield (
        f"Spark read {seen.sum.entries:,} entries, {format_size(seen.sum.size_bytes)} in {seen.seconds:.1f} s:"
        f" {rate}/s, its first query's start in it; entries, bytes and checksums as written"
    )
    if seen.sections:
        width = max(len("section"), *(len(one.name) for one in seen.sections))
        yield f"  {'section':{width}}  packages  installed"
        for one in seen.sections:
            yield f"  {one.name:{width}}  {one.packages:8,}  {format_size(one.installed_bytes):>9}"


def run(
    uri: str, ledger_id: int, folder: Path, on_wait: Callable[[float], None] = lambda _: None
) -> Seen:
    """Look in another process, whose log goes to `folder`/spark.log. Raises ConfigError, StorageError."""
    log, began_s = folder / "spark.log", time.monotonic()
    command = [sys.executable, "-m", "demo.spark_stage", uri, str(ledger_id), str(folder)]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            while True:
                try:
                    out, _ = process.communicate(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    waited_s = time.monotonic() - began_s
                    if waited_s > STAGE_S:
                        raise StorageError(f"Spark took over {STAGE_S:.0f} s; {WITHOUT}") from None
                    on_wait(waited_s)
        finally:
            _end(process)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise StorageError(f"Spark ended with {process.returncode}: {last} ({log}); {WITHOUT}")
    said = json.loads(lines[-1])
    sections = [Section(**one) for one in said["sections"]]
    return Seen(Sum(**said["sum"]), said["seconds"], sections)


def _end(process: subprocess.Popen[str]) -> None:
    """See to it that it has ended; its JVM ends with it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(uri: str, ledger_id: int, folder: Path) -> int:
    """Look, and print what was seen as JSON."""
    try:
        from pyspark import SparkContext

        from fastbk.spark.session import light_home, session
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Spark needs the package {error.name}: pip install 'fastbk[spark]'"
        ) from error
    own = folder.resolve() / "spark"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    os.environ["SPARK_HOME"] = str(light_home(own))
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.local.dir": str(own / "local"),
    }
    spark = session("demo", **settings)
    gateway = SparkContext._gateway
    try:
        print(json.dumps(asdict(sum_sections(spark, uri, ledger_id))), flush=True)
    finally:
        spark.stop()
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(STOP_S)
        shutil.rmtree(own, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
