"""What `./dev bench spark` and `spark-memory` hold fastbk against, and by which rule memory counts as flat."""

from __future__ import annotations

import os
import subprocess
import sys

from fastbk.arrow import stream_schema
from fastbk.devcluster import memory_pss_bytes
from tools.bench_spark_memory import judged, slope
from tools.spark_memory_source import RECORD_BYTES, MemoryRows
from tools.spark_processes import cpu_s, processes


def test_rows_of_memory_have_the_columns_of_a_stream_and_the_parts_that_were_asked_for() -> None:
    reader = MemoryRows({"parts": "[20, 7]", "batchRows": "8"}).reader(MemoryRows({}).schema())
    found = [list(reader.read(part)) for part in reader.partitions()]
    assert [[batch.num_rows for batch in batches] for batches in found] == [[8, 8, 4], [7]]
    for batch in (one for batches in found for one in batches):
        assert batch.schema == stream_schema()
        assert {len(value.as_py()) for value in batch["value"]} == {RECORD_BYTES}


def test_memory_that_grows_is_not_flat_and_one_that_falls_or_wavers_is() -> None:
    def after(a_minute: float, wave: float = 0.0) -> list[tuple[float, float]]:
        return [(at, 200e6 + a_minute * at / 60 + wave * (at % 10)) for at in range(0, 600, 5)]

    assert judged(after(0), 600)["flat"]
    assert judged(after(-3e6), 600)["flat"]
    assert judged(after(0, 4e6), 600)["flat"]
    assert not judged(after(6e6), 600)["flat"]
    assert judged(after(6e6), 600)["mb_a_minute"] == 6.0
    assert not judged([(0.0, 1.0)], 600)["flat"], "nothing is known of its end"
    assert slope([(1.0, 5.0)]) == 0.0


def test_processes_below_this_one_are_found_with_their_memory() -> None:
    before = processes()
    assert {one.pid for one in before} >= {os.getpid()}
    command = [sys.executable, "-c", "sum(range(3_000_000)); print(1, flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        after = processes()
        assert child.pid in {one.pid for one in after}
        assert memory_pss_bytes([child.pid]) > 1_000_000
        assert cpu_s(before, after)["bookies"] > 0, "what is no JVM of Spark's counts as theirs"
        child.stdin.close()
    assert memory_pss_bytes([child.pid]) == 0
