"""`fastbk bench append|read`: what one bookie takes and gives, with the load made in C, beside what
its disk can do.

Without a cluster it starts a service of one bookie of its own, in `--data DIR` (kept) or in a
folder under the current directory that it removes. The disk probe writes one durable 4 KiB block at
a time on a pre-written file in the journal's directory, while the load pauses with nothing in
flight: at window 1 a second of it after each second of load, at larger windows only before and
after.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbk.cli.options import add_json, digest_name, note, print_answer
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.units import format_count, format_entries, parse_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from fastbk.devcluster import Bookie
    from fastbk.meta.api import MetadataStore
    from fastbk.model.entry import DigestType
    from fastbk.native.load import DiskProbe, Load, LoadOptions, LoadResult

SAMPLE_COUNT = 1000
PROBE_S = 1.0


class BenchFailed(Error):
    """The load or the check behind it failed."""

    code = -1990


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("what", choices=("append", "read"), help="what is measured")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of load; probes come on top (5)"
    )
    parser.add_argument("--window", type=int, default=100, help="requests outstanding in all (100)")
    parser.add_argument(
        "--size", type=entry_size, default=1024, help="bytes of data an entry (1KiB)"
    )
    parser.add_argument("--ledgers", type=int, default=1, help="ledgers written in turn (1)")
    parser.add_argument("--connections", type=int, default=1, help="connections to the bookie (1)")
    parser.add_argument(
        "--rate",
        type=int,
        default=0,
        help="open loop: so many adds a second, timed from their intended start; 0: closed loop",
    )
    parser.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        default="fastbk",
        help="what the load speaks: ours, or a version of Apache's (fastbk)",
    )
    parser.add_argument(
        "--digest",
        type=digest_name,
        choices=("crc32c", "crc32", "dummy"),
        default="crc32c",
        help="(crc32c)",
    )
    parser.add_argument(
        "--entries-a-read", type=int, default=1, help="read: 1 = singly, more = batch reads (1)"
    )
    parser.add_argument("--metadata", metavar="URI", help="a cluster that runs; or FASTBK_METADATA")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of its own service; kept")
    add_json(parser)


def entry_size(text: str) -> int:
    """Return the bytes that --size names: a plain number, or one with a unit."""
    return parse_size(text if text[-1:].isalpha() else f"{text}B")


def run(options: argparse.Namespace) -> int:
    """Measure, check a sample, print."""
    from fastbk.native.load import LoadError

    _check(options)
    try:
        with service_under_load(options) as service:
            answer = (
                _append(options, service) if options.what == "append" else _read(options, service)
            )
    except LoadError as error:
        raise BenchFailed(str(error)) from error
    print_answer(options, answer, *_lines(answer))
    return 0 if answer["errors"] == 0 and answer["sample"]["wrong"] == 0 else 1


def _check(options: argparse.Namespace) -> None:
    for name in ("window", "ledgers", "connections", "size", "entries_a_read"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    if options.ledgers < options.connections:
        raise ConfigError("--ledgers must be at least --connections: a ledger's adds share one")
    if options.protocol == "v3" and options.entries_a_read > 1:
        raise ConfigError("--entries-a-read: Apache's version 3 has no batch reads")
    if options.seconds <= 0:
        raise ConfigError("--seconds must be above 0")


# ------------------------------------------------------------------ append


def _append(options: argparse.Namespace, service: Service) -> dict[str, Any]:
    from fastbk.native.load import disk_probe

    ids = create_ledgers(options, service)
    load = connect_load(ids, load_options(options, service))
    spent = _Spent(service)
    try:
        with contextlib.ExitStack() as stack:
            probe = None
            if service.journal_directory is not None:
                probe = stack.enter_context(disk_probe(service.journal_directory))
            _alternate(options, load, probe, spent)
            result = load.result()
            pss_mb = service.pss_mb()
            counts = dict(zip(ids, load.entry_counts(), strict=True))
        close_ledgers(options, service, counts)
    finally:
        load.close()
    sample = _check_sample(options, service, counts)
    answer = {
        **_figures("append", "adds_per_s", result, spent),
        "disk_commit_us": {"p50": None, "p99": None, "direct": None},
        "bookie_pss_mb": pss_mb,
        "late": result.late,
        "sample": sample,
        **_conditions(options, service),
    }
    if probe is not None:
        latencies = probe.latencies
        answer["disk_commit_us"] = {
            "p50": round(latencies.percentile_us(50), 1),
            "p99": round(latencies.percentile_us(99), 1),
            "direct": probe.direct,
        }
    return answer


def _alternate(
    options: argparse.Namespace, load: Load, probe: DiskProbe | None, spent: _Spent
) -> None:
    """Load and probe in turn: never both at once, or each would measure the other."""
    if probe is not None and options.window > 1:
        probe.run(PROBE_S)
    left_s = options.seconds
    while left_s > 0:
        slice_s = min(left_s, 1.0) if options.window == 1 else left_s
        with spent.measured():
            load.append(slice_s)
        left_s -= slice_s
        if probe is not None:
            probe.run(PROBE_S)


@dataclass
class _Spent:
    """Processor time while the load ran."""

    service: Service
    bookie_s: float = 0.0
    client_s: float = 0.0

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        bookie_s, client_s = self.service.cpu_seconds(), time.process_time()
        yield
        self.bookie_s += self.service.cpu_seconds() - bookie_s
        self.client_s += time.process_time() - client_s

    def per_entry(self, entries: int) -> dict[str, float | None]:
        """Return microseconds of processor time an entry; None for a bookie whose processes are not ours to see."""
        count = max(entries, 1)
        return {
            "bookie": round(self.bookie_s * 1e6 / count, 3) if self.service.bookie else None,
            "client": round(self.client_s * 1e6 / count, 3),
        }


# ------------------------------------------------------------------ read


def _read(options: argparse.Namespace, service: Service) -> dict[str, Any]:
    """Write for a while, then read it all again and again."""
    from msgspec.structs import replace

    ids = create_ledgers(options, service)
    what = load_options(options, service)
    writing = connect_load(ids, replace(what, window=1000, entries_a_read=1, rate_per_s=0))
    try:
        writing.append(min(options.seconds, 2.0))
        counts = dict(zip(ids, writing.entry_counts(), strict=True))
    finally:
        writing.close()
    close_ledgers(options, service, counts)
    reading = connect_load(ids, replace(what, rate_per_s=0))
    spent = _Spent(service)
    try:
        with spent.measured():
            reading.read(options.seconds, list(counts.values()))
        result = reading.result()
    finally:
        reading.close()
    return {
        **_figures("read", "reads_per_s", result, spent),
        "bookie_pss_mb": service.pss_mb(),
        "entries_written": sum(counts.values()),
        "entries_a_read": options.entries_a_read,
        "sample": {"checked": result.entries, "wrong": result.errors},
        **_conditions(options, service),
    }


# ------------------------------------------------------------------ checking and printing


def _check_sample(
    options: argparse.Namespace, service: Service, counts: dict[int, int]
) -> dict[str, int]:
    """Read entries spread over the ledgers through the Python client, and compare their bytes."""
    import asyncio

    import fastbk
    from fastbk.native.load import entry_data

    async def check() -> tuple[int, int]:
        checked = wrong = 0
        async with fastbk.connect(service.metadata_uri) as client:
            for ledger_id, count in counts.items():
                if count == 0:
                    continue
                reader = await client.open_ledger(ledger_id)
                wanted = max(1, SAMPLE_COUNT // len(counts))
                for entry_id in sorted({count * n // wanted for n in range(wanted)} | {count - 1}):
                    async for entry in reader.read(entry_id, entry_id):
                        checked += 1
                        wrong += bytes(entry.data) != entry_data(options.size, ledger_id, entry_id)
                await reader.close()
        return checked, wrong

    checked, wrong = asyncio.run(check())
    return {"checked": checked, "wrong": wrong}


def _figures(what: str, rate: str, result: LoadResult, spent: _Spent) -> dict[str, Any]:
    """Return what appends and reads have in common; `rate`: what entries a second are called."""
    busy_s = max(result.busy_s, 1e-9)
    return {
        "what": what,
        rate: round(result.entries / busy_s, 1),
        "latency_us": result.latencies.summary_us(),
        "cpu_us_per_entry": spent.per_entry(result.entries),
        "entries": result.entries,
        "errors": result.errors,
        "first_error": result.first_error,
        "megabytes_per_s": round(result.data_bytes / 1e6 / busy_s, 1),
    }


def _conditions(options: argparse.Namespace, service: Service) -> dict[str, Any]:
    return {
        "window": options.window,
        "size_bytes": options.size,
        "ledgers": options.ledgers,
        "connections": options.connections,
        "rate_per_s": options.rate,
        "seconds": options.seconds,
        "digest": options.digest,
        "quorum": {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1},
        "backend": service.facts.get("journal_backend", ""),
        "sync_mode": service.facts.get("journal_sync_mode", ""),
        "bookie_id": service.bookie_id,
    }


def _lines(answer: dict[str, Any]) -> list[str]:
    latency, spent = answer["latency_us"], answer["cpu_us_per_entry"]
    rate = answer.get("adds_per_s", answer.get("reads_per_s", 0.0))
    lines = [
        f"{answer['what']}: {format_entries(answer['entries'])} of {answer['size_bytes']:,} bytes, window"
        f" {answer['window']:,}, {format_count(answer['ledgers'], 'ledger')},"
        f" {format_count(answer['connections'], 'connection')}, E=1 Qw=1 Qa=1, digest {answer['digest']}",
        f"journal:  {answer['backend']} {answer['sync_mode']}".rstrip(),
        f"rate:     {rate:,.0f}/s, {answer['megabytes_per_s']:,.1f} MB/s",
        f"latency:  p50 {latency['p50']:,.1f}  p99 {latency['p99']:,.1f}  p99.9 {latency['p999']:,.1f}"
        f"  max {latency['max']:,.1f} µs",
    ]
    disk = answer.get("disk_commit_us")
    if disk and disk["p50"]:
        mode = (
            "O_DIRECT + RWF_DSYNC" if disk["direct"] else "buffered + RWF_DSYNC: no O_DIRECT here"
        )
        lines.append(
            f"disk:     p50 {disk['p50']:,.1f}  p99 {disk['p99']:,.1f} µs a commit ({mode});"
            f" p50 / disk p50 = {latency['p50'] / max(disk['p50'], 1e-9):.2f}"
        )
    if spent["bookie"] is None:
        lines.append(f"CPU:      client {spent['client']:.3f} µs an entry")
    else:
        lines.append(
            f"CPU:      bookie {spent['bookie']:.3f} µs, client {spent['client']:.3f} µs an entry;"
            f" bookie memory {answer['bookie_pss_mb']:.1f} MB"
        )
    if answer["errors"]:
        lines.append(f"ERRORS:   {answer['errors']:,}, the first: {answer['first_error']}")
    sample = answer["sample"]
    lines.append(f"check:    {sample['checked']:,} entries read back, {sample['wrong']:,} wrong")
    if answer.get("late"):
        note(f"{answer['late']:,} adds could not start in time for want of window")
    return lines


PROTOCOLS = {"fastbk": 0, "v2": 2, "v3": 3}
"""What the load generator calls them."""


@dataclass
class Service:
    """One bookie under load: where it is, and, where it is ours, its processes and its journal."""

    metadata_uri: str
    store: MetadataStore
    bookie_id: str
    host: str
    port: int
    bookie: Bookie | None = None
    journal_directory: Path | None = None
    http: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        """Return the processor time of all processes of the bookie so far; 0 when they are not ours to see."""
        from fastbk.devcluster import cpu_seconds

        return sum(cpu_seconds(self.bookie.pids).values()) if self.bookie else 0.0

    def pss_mb(self) -> float | None:
        """Return the proportional set size of all processes of the bookie in MB (10⁶ bytes); None if not ours."""
        from fastbk.devcluster import memory_pss_bytes

        if self.bookie is None:
            return None
        return round(memory_pss_bytes(self.bookie.pids.values()) / 1e6, 1)


@contextlib.contextmanager
def service_under_load(options: argparse.Namespace) -> Iterator[Service]:
    """Yield the cluster that is named, or a service of one bookie of our own, stopped at the end."""
    uri = options.metadata or os.environ.get("FASTBK_METADATA")
    if uri and options.data:
        raise ConfigError(
            "--data is for a service of its own; it cannot go with a cluster that runs"
        )
    if uri:
        with _connected(uri, options.protocol) as service:
            yield service
        return
    from fastbk.devcluster import DevCluster

    data = options.data or Path.cwd() / f"fastbk-bench-{os.getpid()}"
    cluster = DevCluster(data, 1)
    try:
        cluster.start()
        with _connected(cluster.metadata_uri, options.protocol) as service:
            service.bookie = cluster.bookies[0]
            service.journal_directory = service.bookie.directory / "journal"
            yield service
    finally:
        cluster.stop()
        if options.data is None:
            shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def _connected(uri: str, protocol: str) -> Iterator[Service]:
    from fastbk.meta.uri import open_store

    with contextlib.closing(open_store(uri, may_make=False)) as store:
        for registration in store.list_bookies():
            bookie = registration.service
            endpoint = bookie.endpoint() if protocol == "fastbk" else bookie.client_endpoint()
            if registration.writable and endpoint is not None:
                where = (bookie.bookie_id, endpoint.host, endpoint.port)
                yield Service(uri, store, *where, facts=dict(bookie.properties))
                return
        raise StorageError(
            f"no writable bookie in {uri} that speaks {protocol}: start one, e.g. `fastbk dev`"
        )


def digest_type_of(options: argparse.Namespace) -> DigestType:
    """Return the digest type that --digest names."""
    from fastbk.model.entry import DigestType as Digest

    return Digest[options.digest.upper()]


def create_ledgers(options: argparse.Namespace, service: Service) -> list[int]:
    """Create --ledgers empty ledgers on that one bookie and return their ids."""
    from fastbk.model.ledger import Fragment, LedgerMetadata

    ids = []
    for _ in range(options.ledgers):
        ledger_id = service.store.next_ledger_id()
        metadata = LedgerMetadata(
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            fragments=(Fragment(0, (service.bookie_id,)),),
            digest_type=digest_type_of(options),
            custom={"application": b"fastbk bench"},
        )
        service.store.create_ledger(ledger_id, metadata)
        ids.append(int(ledger_id))
    return ids


def close_ledgers(options: argparse.Namespace, service: Service, counts: dict[int, int]) -> None:
    """Close ledgers that the load wrote, at their acknowledged ends."""
    for ledger_id, count in counts.items():
        read = service.store.read_ledger(ledger_id)
        closed = read.metadata.closed(count - 1, count * options.size)
        service.store.update_ledger(ledger_id, closed, read.version)


def connect_load(ids: Sequence[int], what: LoadOptions) -> Load:
    """Return a load that has said hello on all its connections. Raises LoadError."""
    from fastbk.native.load import Load
    from fastbk.wire.messages import Hello, encode_hello

    return Load(what, ids, encode_hello(0, Hello(client_name="fastbk bench")))


def load_options(options: argparse.Namespace, service: Service) -> LoadOptions:
    """Return what the command line says, for the load generator."""
    from fastbk.model.entry import master_key
    from fastbk.native.load import LoadOptions

    return LoadOptions(
        host=service.host,
        port=service.port,
        master_key=master_key(b""),
        window=options.window,
        size_bytes=options.size,
        connections=options.connections,
        rate_per_s=options.rate,
        digest_type=int(digest_type_of(options)),
        entries_a_read=options.entries_a_read if options.what == "read" else 1,
        protocol=PROTOCOLS[options.protocol],
    )
