"""`./dev bench gateway`: what metadata costs by a gateway with TLS and tokens, beside ZooKeeper directly.

Metadata only, as ledgers are made, opened and closed, and chains change; both ways take turns (ROUNDS=200). One call
after the other for the medians, eight at once for what a gateway serves in a second.
"""

from __future__ import annotations

import queue
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.gateway.store import GatewayAccess
from fastbk.meta.records import Change
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.safe_files import write_text
from fastbk.security.authority import Authority
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions
from fastbk.security.tokens import TokenKey
from fastbk.stream.chain import Chain, get_chain, open_for_append, put_chain
from fastbk.stream.namespace.tree import StreamRecord, put
from fastbk.stream.paths import chain_path, stream_path
from tests.fixtures.gateways import GatewayProcess
from tools.part import print_table, scratch, setting, write

T = TypeVar("T")
THREADS = 8
STREAM = "ab01"
WATCHED = chain_path("ab02")
VALUE = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    fragments=(Fragment(0, ("a:1", "b:1", "c:1")),),
    creation_token=9,
)


class Timed:
    """Calls of one way, and how long each took, in ms by name."""

    def __init__(self, store: MetadataStore) -> None:
        self.took_ms: dict[str, list[float]] = {}
        self._store = store
        self._heard: queue.SimpleQueue[None] | None = None

    def ledger(self) -> None:
        """Make a ledger, open it and close it."""
        store = self._store
        ledger_id = self._timed("draw an id", store.next_ledger_id)
        version = self._timed("create a ledger", lambda: store.create_ledger(ledger_id, VALUE))
        self._timed("read a ledger", lambda: store.read_ledger(ledger_id))
        self._timed(
            "close a ledger", lambda: store.update_ledger(ledger_id, VALUE.closed(9, 90), version)
        )

    def chain(self, owner: str) -> None:
        """Change a stream's chain."""
        (found,) = self._store.records.read([chain_path(STREAM)])
        assert found is not None
        change = Change(
            chain_path(STREAM),
            put_chain(open_for_append(get_chain(found.value), owner)),
            found.version,
        )
        self._timed("change a chain", lambda: self._store.records.change([change]))

    def watch(self, changing: MetadataStore) -> None:
        """Change a record that is watched here; the time is until its callback."""
        if self._heard is None:
            self._heard = queue.SimpleQueue()
            self._store.records.watch(
                WATCHED, lambda: self._heard.put(None) if self._heard else None
            )
        (found,) = changing.records.read([WATCHED])
        assert found is not None
        heard, change = self._heard, Change(WATCHED, found.value, found.version)
        self._timed("hear of a change", lambda: (changing.records.change([change]), heard.get()))

    def _timed(self, name: str, call: Callable[[], T]) -> T:
        began_s = time.monotonic()
        result = call()
        self.took_ms.setdefault(name, []).append((time.monotonic() - began_s) * 1e3)
        return result


def _creations_a_second(store: MetadataStore, seconds: float) -> float:
    end_s = time.monotonic() + seconds

    def many() -> int:
        count = 0
        while time.monotonic() < end_s:
            store.create_ledger(store.next_ledger_id(), VALUE)
            count += 1
        return count

    with ThreadPoolExecutor(THREADS) as threads:
        return sum(one.result() for one in [threads.submit(many) for _ in range(THREADS)]) / seconds


def measure(folder: Path, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return the figures by name: medians in ms, and creations a second."""
    key, authority = TokenKey.generate("k1"), Authority.make(folder / "ca")
    issued = authority.issue(folder / "server", ["127.0.0.1"])
    tls = TlsOptions(ca_file=str(authority.ca_file))
    shown = replace(
        tls, certificate_file=str(issued.certificate_file), key_file=str(issued.key_file)
    )
    (folder / "keys").mkdir()
    for name, text in (("keys.json", key.public_text()), ("revoked", "")):
        write_text(folder / "keys" / name, text)
    server = ZooKeeperServer(folder / "zookeeper", is_durable=False)
    server.start()
    gateway: GatewayProcess | None = None
    try:
        uri = f"zk+hierarchical://{server.address}/ledgers"
        cluster_id = zookeeper_admin.init(parse_zookeeper(uri))
        gateway = GatewayProcess(
            folder / "gateway", uri, shown, keys_file=str(folder / "keys" / "keys.json"),
            revoked_file=str(folder / "keys" / "revoked"),
        )  # fmt: skip
        gateway.start()
        write_text(
            folder / "token",
            key.sign("bench", ("read", "add", "recover"), cluster_id, lifetime_s=3600),
        )
        access = GatewayAccess(tls, Credentials(token_file=str(folder / "token")))
        with (
            closing(open_store(uri)) as direct,
            closing(open_store(gateway.uri, access=access)) as behind,
        ):
            return _figures(direct, behind, rounds, seconds)
    finally:
        if gateway is not None:
            gateway.stop()
        server.stop()


def _figures(
    direct: MetadataStore, behind: MetadataStore, rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    stream = Change(stream_path(STREAM), put(StreamRecord("root", "s")))
    direct.records.change([stream, Change(chain_path(STREAM), put_chain(Chain(STREAM)))])
    direct.records.change(
        [Change(stream_path("ab02"), stream.value), Change(WATCHED, put_chain(Chain("ab02")))]
    )
    sides = {"zookeeper": Timed(direct), "gateway": Timed(behind)}
    for number in range(rounds):
        for side in sides.values() if number % 2 else reversed(sides.values()):
            side.ledger()
            side.chain(f"w{number} {id(side)}")
            if number % 5 == 0:  # changes in a row come together
                side.watch(direct)
    found = {
        name: {
            "zookeeper_ms": round(statistics.median(sides["zookeeper"].took_ms[name]), 2),
            "gateway_ms": round(statistics.median(sides["gateway"].took_ms[name]), 2),
        }
        for name in sides["zookeeper"].took_ms
    }
    found["creations a second, 8 at once"] = {
        "zookeeper_ms": round(_creations_a_second(direct, seconds)),
        "gateway_ms": round(_creations_a_second(behind, seconds)),
    }
    return found


def main() -> int:
    """Measure and write the figures."""
    with scratch() as folder:
        figures = measure(folder, setting("ROUNDS", 200), setting("SECONDS_EACH", 3.0))
    print_table(figures)
    write("bench-gateway", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
