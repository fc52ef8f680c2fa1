"""Without `await`, too, a client repairs what was missing when it closed or recovered a ledger."""

from __future__ import annotations

import pytest

import fastbk.sync
from fastbk.meta.sqlite import MemoryStore
from fastbk.wire.statuses import Status
from tests.fixtures.fake_bookie import FakeBookie
from tests.fixtures.sync_cluster import FakeBookies, sync_cluster
from tests.fixtures.wait import wait_until


def marked(store: MemoryStore) -> list[tuple[int, str]]:
    return [(mark.ledger_id, one.bookie_id) for mark in store.marks.list() for one in mark.missing]


def refusing(fakes: FakeBookies, index: int) -> FakeBookie:
    fakes.fakes[index].faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
    return fakes.fakes[index]


def is_unmarked_after_a_call(client: fastbk.sync.Client, store: MemoryStore) -> bool:
    client.list_bookies()
    return not marked(store)


def test_what_a_bookie_lacks_at_the_close_is_marked_and_then_repaired() -> None:
    with sync_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = client.create_ledger()
        fake = refusing(fakes, 1)
        writer.append_many([b"%d" % one for one in range(10)])
        writer.close()
        assert marked(store) == [(writer.ledger_id, fake.bookie_id)]
        assert client.repairs.waiting == 1
        fake.faults.refuse_adds = None
        wait_until(lambda: is_unmarked_after_a_call(client, store), "the repair")
        assert fake.ids(writer.ledger_id) == list(range(10))
        assert client.repairs.waiting == 0


def test_appends_to_another_ledger_go_on_beside_a_repair() -> None:
    with sync_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = client.create_ledger()
        fake = refusing(fakes, 1)
        writer.append_many([b"%d" % one for one in range(10)])
        writer.close()
        fake.faults.refuse_adds = None
        other = client.create_ledger()

        def is_repaired() -> bool:
            other.append(b"x")
            return not marked(store)

        wait_until(is_repaired, "the repair")
        assert fake.ids(writer.ledger_id) == list(range(10))


def test_closing_the_client_repairs_what_can_be_repaired_at_once() -> None:
    with sync_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = client.create_ledger()
        fake = refusing(fakes, 1)
        writer.append_many([b"%d" % one for one in range(10)])
        writer.close()
        fake.faults.refuse_adds = None
        client.close()
        assert marked(store) == []
        assert fake.ids(writer.ledger_id) == list(range(10))


def test_closing_the_client_leaves_the_mark_of_a_bookie_that_takes_nothing() -> None:
    with sync_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = client.create_ledger()
        fake = refusing(fakes, 1)
        writer.append(b"x")
        writer.close()
        client.close()
        assert marked(store) == [(writer.ledger_id, fake.bookie_id)]


def test_a_ledger_that_was_deleted_waits_no_longer() -> None:
    with sync_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = client.create_ledger()
        refusing(fakes, 1)
        writer.append(b"x")
        writer.close()
        client.delete_ledger(writer.ledger_id)
        wait_until(lambda: client.repairs.waiting == 0, "nothing to do")
        assert marked(store) == []


def test_what_a_dead_writer_left_missing_is_marked_and_repaired() -> None:
    with sync_cluster(3) as (client, fakes, store), fastbk.sync.connect(store) as other:
        writer = client.create_ledger()
        writer.append_many([b"x"] * 5)
        wait_until(lambda: all(len(one.ids(writer.ledger_id)) == 5 for one in fakes.fakes), "copies")
        lost = refusing(fakes, 1)
        writer.append_many([b"y"] * 20)
        writer.append_many([b"z"] * 5)
        assert other.open_ledger(writer.ledger_id).is_closed
        wait_until(
            lambda: (
                bool(other.list_bookies()) and (writer.ledger_id, lost.bookie_id) in marked(store)
            ),
            "a mark",
        )
        lost.faults.refuse_adds = None
        wait_until(lambda: is_unmarked_after_a_call(other, store), "the repair")
        assert lost.ids(writer.ledger_id) == list(range(30))


def test_a_whole_ledger_gets_no_mark_after_its_recovery() -> None:
    with sync_cluster(3) as (client, fakes, store), fastbk.sync.connect(store) as other:
        writer = client.create_ledger()
        writer.append_many([b"x"] * 5)
        wait_until(lambda: all(len(one.ids(writer.ledger_id)) == 5 for one in fakes.fakes), "copies")
        other.open_ledger(writer.ledger_id)
        wait_until(lambda: not other.repairs.is_checking, "the check")
        assert marked(store) == []


def test_connecting_again_beside_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is made again reads the bookies' addresses in the middle of a turn."""
    monkeypatch.setattr("fastbk.client.bookie_pool._REFRESH_S", 0.0)
    with sync_cluster(3, laggard_wait=0.01) as (client, fakes, store):
        writer = client.create_ledger()
        other = client.create_ledger()
        fake = fakes.fakes[1]
        fake.faults.refuse_adds = lambda ledger_id, *_: (
            Status.TOO_MANY_REQUESTS if ledger_id == writer.ledger_id else None
        )
        writer.append_many([b"%d" % one for one in range(10)])
        writer.close()
        fakes.do(fakes.fakes[2].stop())
        for _ in range(50):
            other.append(b"x")
        assert client.repairs.waiting == 1
        fakes.do(fakes.fakes[2].start())
        fake.faults.refuse_adds = None
        wait_until(lambda: is_unmarked_after_a_call(client, store), "the repair")


def test_a_read_only_bookie_is_repaired_once_it_is_writable() -> None:
    with sync_cluster(3) as (client, fakes, store):
        writer = client.create_ledger()
        fake = fakes.fakes[1]
        fake.faults.refuse_adds = lambda *_: Status.READ_ONLY
        lease = fake.register(store, writable=False)
        writer.append_many([b"%d" % one for one in range(10)])
        writer.close()
        fake.faults.refuse_adds = None  # as of recovery adds
        had = len(fake.ids(writer.ledger_id))
        assert had < 10
        client._thread.call(client.repairs.close)  # a round of what can be done at once
        assert len(fake.ids(writer.ledger_id)) == had
        assert marked(store) == [(writer.ledger_id, fake.bookie_id)]
        left = store.marks.read(writer.ledger_id).missing
        client._thread.call_plain(lambda: client._inner().repairs.add(writer.ledger_id, left))
        lease.set_writable(True)
        wait_until(lambda: is_unmarked_after_a_call(client, store), "the repair")
