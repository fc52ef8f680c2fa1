"""The service that `fastbk bench` loads: its own or one that runs, the ledgers in it, and the load's connection."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbk.errors import ConfigError, StorageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from fastbk.devcluster import Bookie
    from fastbk.meta.api import MetadataStore
    from fastbk.model.entry import DigestType
    from fastbk.native.load import Load, LoadOptions


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
