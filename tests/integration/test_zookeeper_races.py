"""Several clients count in the metadata of a few ledgers while connections are cut and sessions expire. INV-M1.

Each update adds one to a number in the metadata. A node's version counts its changes: number and version agree for ever
if, and only if, every change was made on what its author had read, and none was made twice.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

from fastbk.devcluster.faults import TcpProxy
from fastbk.errors import Error, MetadataConflict, MetadataUnavailable
from fastbk.meta import MetadataStore, open_store
from fastbk.model.ledger import LedgerMetadata
from tests.fixtures.metadata import metadata
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace

CLIENTS = 4
LEDGERS = 2
SECONDS = 4.0
UPDATES_MIN = 50


def number_of(value: LedgerMetadata) -> int:
    return int(value.custom["number"])


def with_number(value: LedgerMetadata, number: int, by: int = 0) -> LedgerMetadata:
    return replace(value, custom={"number": str(number).encode(), "by": str(by).encode()})


class Client(threading.Thread):
    """Adds to the ledgers' numbers, and creates and deletes ledgers of its own."""

    def __init__(self, number: int, store: MetadataStore, seed: int) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.added: Counter[int] = Counter()
        self.maybe_added: Counter[int] = Counter()
        self.problems: list[str] = []
        self.stop = threading.Event()
        self._number = number
        self._store = store
        self._rng = random.Random(seed)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                if self._rng.random() < 0.8:
                    self._add(self._rng.randrange(LEDGERS))
                else:
                    self._create_and_delete()
            except MetadataUnavailable:
                self.counts["unavailable"] += 1
            except Error as error:
                self.problems.append(repr(error))

    def _add(self, ledger_id: int) -> None:
        read = self._store.read_ledger(ledger_id)
        if number_of(read.metadata) != read.version:
            self.problems.append(f"version {read.version} says {number_of(read.metadata)}")
        try:
            # Signed: after a lost answer a client knows its change by its content, and takes an equal one for its own.
            value = with_number(read.metadata, read.version + 1, self._number)
            version = self._store.update_ledger(ledger_id, value, read.version)
        except (MetadataConflict, MetadataUnavailable) as error:
            if error.outcome == "unknown":
                self.maybe_added[ledger_id] += 1
            if isinstance(error, MetadataUnavailable):
                raise
            self.counts["conflict"] += 1
        else:
            assert version == read.version + 1
            self.added[ledger_id] += 1

    def _create_and_delete(self) -> None:
        ledger_id = self._store.next_ledger_id()
        token = self._rng.getrandbits(62) + 1
        self._store.create_ledger(ledger_id, metadata(token=token))
        found = self._store.read_ledger(ledger_id).metadata.creation_token
        if found != token:
            self.problems.append(f"ledger {ledger_id} was created twice")
        self._store.delete_ledger(ledger_id)
        with suppress(MetadataConflict):
            self._store.create_ledger(ledger_id, metadata(token=token))
            self.problems.append(f"ledger {ledger_id} was deleted and came back")
        self.counts["created and deleted"] += 1


def test_no_change_is_lost_or_made_twice(zookeeper: ZooKeeperPlace, rng: random.Random) -> None:
    with ExitStack() as stack:
        near = stack.enter_context(closing(open_store(zookeeper.uri())))
        for ledger_id in range(LEDGERS):
            near.create_ledger(ledger_id, with_number(metadata(), 0))
        proxies = [stack.enter_context(TcpProxy(zookeeper.address)) for _ in range(CLIENTS)]
        stores = [
            stack.enter_context(closing(open_store(zookeeper.uri(through=proxy.address), 5.0)))
            for proxy in proxies
        ]
        clients = [Client(n, store, rng.getrandbits(32)) for n, store in enumerate(stores)]
        for client in clients:
            client.start()
        end_s = time.monotonic() + SECONDS
        faults: Counter[str] = Counter()
        while time.monotonic() < end_s:
            number = rng.randrange(CLIENTS)
            kind = rng.choice(["cut", "cut", "lose answers", "lose answers", "expire"])
            faults[kind] += 1
            if kind == "expire":
                with suppress(Exception):  # it may have no session at the moment
                    zookeeper.expire(stores[number])
                continue
            # Some requests pass in one direction only, then the connection ends.
            proxies[number].stall(to_client=kind == "lose answers")
            threading.Event().wait(rng.random() * 0.05)
            proxies[number].cut()
            proxies[number].resume()
            proxies[number].mend()
            threading.Event().wait(rng.random() * 0.2)
        for client in clients:
            client.stop.set()
        for client in clients:
            client.join(20)
            assert not client.is_alive()
        print(faults, [client.counts for client in clients])
        assert [problem for client in clients for problem in client.problems] == []
        for ledger_id in range(LEDGERS):
            read = near.read_ledger(ledger_id)
            added = sum(client.added[ledger_id] for client in clients)
            maybe = sum(client.maybe_added[ledger_id] for client in clients)
            assert number_of(read.metadata) == read.version
            assert added <= read.version <= added + maybe
            assert added > UPDATES_MIN
        # An ordinary day again: whoever was cut off works on.
        wait_until(lambda: all(store.list_ledgers() for store in stores), "all are connected")
