"""`./dev bench arrow`: streams and ledgers into Arrow record batches, beside the reader's records and chunks.

Three bookies on this machine, MIB=256 of records of 1 KiB in entries of one and of 64, read from warm caches; the ways
take turns, ROUNDS=3 times, and the best round of each counts. "columns alone": entries that are in memory already, into
batches. Beside the rate: what the client's and the bookies' processors took, MB for each second of the client's, and
seconds of the bookies' for each GB. A table, and JSON in build/bench-arrow.json.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterator

import fastbk.sync
from fastbk.arrow import chunk_batch, ledger_batches, read_stream, stream_schema
from fastbk.native import stream_codec as codec
from fastbk.stream.records import Chunk, chunk_of
from fastbk.stream.sync import SyncStream
from fastbk.testing import LocalCluster
from tools.part import print_table, setting
from tools.spark_processes import processes

RECORD_BYTES = 1024
BATCH = 64
COLUMNS_ROWS = 8192

Figures = dict[str, float]
Way = Callable[[], Iterator[int]]


def filled(stream: SyncStream, count: int, batch: int) -> None:
    with stream.writer() as writer:
        for at in range(0, count, 4096):
            some = [bytes(RECORD_BYTES)] * min(4096, count - at)
            if batch == 1:
                writer.append_many(some)
            else:
                for first in range(0, len(some), batch):
                    writer.append_batch_nowait(some[first : first + batch])
                writer.flush()


def bookies_cpu_s() -> float:
    """Return what the processes below this one took of processors so far."""
    return sum(one.cpu_s for one in processes() if one.pid != os.getpid())


def timed(way: Way) -> Figures:
    """Go through one way once; it yields how many rows it has."""
    bookies_s, cpu_s, began_s = bookies_cpu_s(), time.process_time(), time.perf_counter()
    rows = sum(way())
    took_s = time.perf_counter() - began_s
    cpu_s, bookies_s = time.process_time() - cpu_s, bookies_cpu_s() - bookies_s
    megabytes = rows * RECORD_BYTES / 1e6
    return {
        "rows": rows,
        "rows_per_s": round(rows / took_s),
        "mb_per_s": round(megabytes / took_s),
        "client_cpu_us_per_row": round(cpu_s / rows * 1e6, 2),
        "mb_per_client_cpu_s": round(megabytes / cpu_s),
        "bookies_cpu_s_per_gb": round(bookies_s / megabytes * 1e3, 2),
    }


def ways_of_stream(client: fastbk.sync.Client, name: str) -> dict[str, Way]:
    stream = client.namespace("bench").stream(name)

    def by_chunks() -> Iterator[int]:
        with stream.reader(tail=False) as reader:
            for chunk in reader.chunks(4096):
                assert isinstance(chunk, Chunk)
                yield len(chunk)

    def by_records() -> Iterator[int]:
        with stream.reader(tail=False) as reader:
            for _ in reader:
                yield 1

    def by_batches() -> Iterator[int]:
        for batch in read_stream(client, f"bench/{name}"):
            yield batch.num_rows

    return {"records": by_records, "chunks": by_chunks, "arrow": by_batches}


def ways_of_ledger(client: fastbk.sync.Client, count: int) -> dict[str, Way]:
    """Fill a ledger; return the ways to read it."""
    with client.create_ledger(3, 3, 2) as writer:
        for at in range(0, count, 4096):
            writer.append_many([bytes(RECORD_BYTES)] * min(4096, count - at))
        ledger_id = writer.ledger_id

    def by_entries() -> Iterator[int]:
        with client.open_ledger(ledger_id, recovery=False) as reader:
            for batch in reader.read_batches():
                yield len(batch)

    def by_batches() -> Iterator[int]:
        for batch in ledger_batches(client, ledger_id):
            yield batch.num_rows

    return {"ledger, batches": by_entries, "ledger, arrow": by_batches}


def ways_alone(count: int) -> dict[str, Way]:
    """Return what is done without reading: entries in memory into chunks, chunks into batches."""
    entry = bytes(codec.encode(1, 0, 0, [bytes(RECORD_BYTES)] * BATCH, array("q", range(BATCH))))
    datas = [entry] * (COLUMNS_ROWS // BATCH)
    known, schema = chunk_of(1, 0, datas, 0, 0), stream_schema()

    def chunks() -> Iterator[int]:
        for _ in range(count // COLUMNS_ROWS):
            yield len(chunk_of(1, 0, datas, 0, 0))

    def columns() -> Iterator[int]:
        for _ in range(count // COLUMNS_ROWS):
            yield chunk_batch(known, "bench/alone", schema).num_rows

    return {"chunks alone, 64 an entry": chunks, "columns alone": columns}


def run(mib: int, rounds: int) -> dict[str, Figures]:
    count = mib * 2**20 // RECORD_BYTES
    found: dict[str, list[Figures]] = {}
    with LocalCluster(3) as cluster, fastbk.sync.connect(cluster.metadata_uri) as client:
        client.namespace("bench").create()
        ways = ways_alone(count) | ways_of_ledger(client, count)
        for batch in (1, BATCH):
            filled(client.namespace("bench").create_stream(f"of-{batch}"), count, batch)
            for name, way in ways_of_stream(client, f"of-{batch}").items():
                ways[f"stream, {name}, {batch} an entry"] = way
        for turn in range(rounds + 1):
            for name, way in ways.items():
                figures = timed(way)
                if turn > 0:  # the first one warms all caches
                    found.setdefault(name, []).append(figures)
    return {name: max(some, key=lambda one: one["rows_per_s"]) for name, some in found.items()}


def main() -> dict[str, Figures]:
    figures = run(setting("MIB", 256), setting("ROUNDS", 3))
    print_table(figures)
    return figures
