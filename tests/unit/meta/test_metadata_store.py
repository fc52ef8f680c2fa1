"""One suite for every metadata driver: what the protocol promises, whatever is underneath. INV-M1."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastbk.errors import ClientClosed, ConfigError, IdentityChanged, MetadataConflict, NoSuchLedger
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import (
    TLS_EXTENSION,
    BookieIdentity,
    DirectoryIdentity,
    Endpoint,
    IdentityVersion,
)
from fastbk.meta.sqlite.store import MemoryStore, SqliteStore
from fastbk.meta.zookeeper.paths import Layout
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.metadata import metadata, service
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from fastbk.model.ledger import LedgerMetadata
    from tests.fixtures.zookeeper import ZooKeeperPlace

Open = Callable[[], MetadataStore]
ZOOKEEPER_LAYOUTS = {
    "zookeeper": Layout.HIERARCHICAL,
    "zookeeper-long": Layout.LONG_HIERARCHICAL,
    "zookeeper-flat": Layout.FLAT,
}


@pytest.fixture(params=["memory", "sqlite", "zookeeper", "zookeeper-long", "zookeeper-flat"])
def open_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens further handles of one and the same store."""
    if request.param == "memory":
        uri = f"memory:{tmp_path}"
    elif request.param == "sqlite":
        uri = f"sqlite:{tmp_path}/meta.db"
    else:
        place: ZooKeeperPlace = request.getfixturevalue("zookeeper")
        uri = place.uri(layout=ZOOKEEPER_LAYOUTS[request.param])
    with ExitStack() as stack:

        def one() -> MetadataStore:
            store = open_store(uri)
            stack.callback(store.close)
            return store

        one()
        yield one


def test_what_one_handle_creates_another_reads(open_driver: Open) -> None:
    first, second = open_driver(), open_driver()
    version = first.create_ledger(7, metadata())
    found = second.read_ledger(7)
    assert (found.metadata, found.version) == (metadata(), version)
    assert first.instance_id() == second.instance_id() != ""


def test_an_update_needs_the_version_that_is_there(open_driver: Open) -> None:
    store = open_driver()
    version = store.create_ledger(1, metadata())
    newer = store.update_ledger(1, metadata(last=4), version)
    with pytest.raises(MetadataConflict):
        store.update_ledger(1, metadata(last=3), version)
    with pytest.raises(MetadataConflict):
        store.create_ledger(1, metadata())
    with pytest.raises(MetadataConflict):
        store.delete_ledger(1, version)
    assert store.read_ledger(1).metadata.last_entry_id == 4
    store.delete_ledger(1, newer)
    with pytest.raises(NoSuchLedger):
        store.read_ledger(1)
    with pytest.raises(NoSuchLedger):
        store.update_ledger(1, metadata(), newer)
    with pytest.raises(NoSuchLedger):
        store.delete_ledger(1)


def test_drawn_ids_are_never_drawn_twice_nor_chosen_before(open_driver: Open) -> None:
    stores = [open_driver(), open_driver()]
    drawn = [stores[i % 2].next_ledger_id() for i in range(10)]
    stores[0].create_ledger(100, metadata())
    stores[0].delete_ledger(100)
    stores[0].create_ledger(2**63 - 1, metadata())
    drawn += [stores[i % 2].next_ledger_id() for i in range(10)]
    assert len(set(drawn)) == 20
    assert 100 not in drawn
    assert max(drawn) < 1000


def test_a_deleted_ledgers_id_is_never_given_to_another(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    for ledger_id in (7, 2**63 - 1):
        store.create_ledger(ledger_id, metadata())
        store.delete_ledger(ledger_id)
        with pytest.raises(MetadataConflict, match=f"{ledger_id} was deleted: choose another id"):
            other.create_ledger(ledger_id, metadata())
        assert other.list_ledgers() == []


def test_only_one_of_many_threads_wins_each_version(open_driver: Open) -> None:
    store = open_driver()
    store.create_ledger(1, metadata())
    won: list[int] = []

    def race() -> None:
        mine = open_driver()
        for _ in range(10):
            seen = mine.read_ledger(1)
            try:
                won.append(mine.update_ledger(1, seen.metadata, seen.version))
            except MetadataConflict:
                continue

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, len(won) + 1))
    assert store.read_ledger(1).version == len(won)


def test_a_listing_in_pages_has_everything_that_stays(open_driver: Open) -> None:
    store = open_driver()
    stays = {3 * i for i in range(40)} | {2**63 - 1}
    goes = {3 * i + 1 for i in range(40)}
    for ledger_id in stays | goes:
        store.create_ledger(ledger_id, metadata())
    found: list[int] = []
    while page := store.list_ledgers(found[-1] if found else -1, 7):
        assert len(page) <= 7
        found += page
        for ledger_id in list(goes)[:5]:
            goes.discard(ledger_id)
            store.delete_ledger(ledger_id)
    assert found == sorted(found)
    assert stays <= set(found)


@pytest.mark.slow
def test_several_ledgers_are_read_at_once(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    for ledger_id in range(3):
        store.create_ledger(ledger_id, metadata(last=ledger_id))
    store.update_ledger(1, metadata(last=7), 0)
    store.delete_ledger(0)
    found = other.read_ledgers([2, 0, 2**63 - 1, 1])
    assert [one and (one.metadata.last_entry_id, one.version) for one in found] == [
        (2, 0),
        None,
        None,
        (7, 1),
    ]
    assert other.read_ledgers([]) == []
    many = [2] * 1200
    assert other.read_ledgers(many) == [store.read_ledger(2)] * 1200


@pytest.mark.slow
def test_watches_tell_of_changes_made_through_another_handle(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    version = store.create_ledger(5, metadata())
    told: list[object] = []
    ledger_watch = store.watch_ledger(5, told.append)
    bookie_watch = store.watch_bookies(lambda: told.append("bookies"))
    other.update_ledger(5, metadata(last=0), version)
    wait_until(lambda: told == [5], "the watch tells")
    lease = other.register_bookie(service(), writable=True)
    wait_until(lambda: told == [5, "bookies"], "the watch tells")
    lease.set_writable(False)
    wait_until(lambda: told == [5, "bookies", "bookies"], "the watch tells")
    ledger_watch.close()
    bookie_watch.close()
    other.delete_ledger(5)
    again = store.watch_bookies(lambda: told.append("again"))
    lease.close()
    wait_until(lambda: told[3:] == ["again"], "the watch tells")
    again.close()


def test_a_callback_that_fails_ends_no_watch(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    told: list[object] = []

    def fail() -> None:
        told.append("failed")
        raise RuntimeError("not the store's fault")

    watches = [store.watch_bookies(fail), store.watch_bookies(lambda: told.append("told"))]
    lease = other.register_bookie(service(), writable=True)
    wait_until(lambda: told == ["failed", "told"], "both are called")
    lease.close()
    wait_until(lambda: told == ["failed", "told"] * 2, "both are called again")
    for watch in watches:
        watch.close()


def test_a_registration_says_how_to_reach_the_bookie(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    lease = store.register_bookie(service(), writable=True)
    (found,) = other.list_bookies()
    assert found.service == service()
    assert found.writable
    assert found.service.endpoint() == Endpoint("127.0.0.1", 3181)
    assert found.service.endpoint("bookie-rpc") is None
    lease.set_writable(False)
    lease.renew()
    assert not other.list_bookies()[0].writable
    lease.close()
    lease.close()
    assert other.list_bookies() == []


def test_a_registration_says_that_an_endpoint_has_tls(open_driver: Open) -> None:
    store = open_driver()
    endpoints = (
        Endpoint("127.0.0.1", 3181, extensions=(TLS_EXTENSION,)),
        Endpoint("127.0.0.1", 80),
    )
    lease = store.register_bookie(replace(service(), endpoints=endpoints), writable=True)
    (found,) = store.list_bookies()
    assert found.service.endpoints == endpoints
    lease.close()


def test_the_same_data_takes_its_registration_over_and_other_data_does_not(
    open_driver: Open,
) -> None:
    store, other = open_driver(), open_driver()
    killed = store.register_bookie(service(), writable=True)
    with pytest.raises(MetadataConflict, match="incarnation"):
        other.register_bookie(service(incarnation=5), writable=True)
    back = other.register_bookie(service(), writable=True)
    with pytest.raises(MetadataConflict):
        killed.renew()
    killed.close()
    assert len(other.list_bookies()) == 1
    back.close()


@pytest.mark.parametrize("driver", ["memory", "sqlite"])
def test_a_lease_that_is_not_renewed_runs_out(driver: str, tmp_path: Path) -> None:
    store: MetadataStore
    if driver == "memory":
        store = MemoryStore(str(tmp_path), lease_s=0.05)
    else:
        store = SqliteStore(f"{tmp_path}/meta.db", lease_s=0.05)
    told: list[str] = []
    watch = store.watch_bookies(lambda: told.append("changed"))
    lease = store.register_bookie(service(), writable=True)

    def is_seen() -> bool:
        lease.renew()
        return bool(told)

    wait_until(is_seen, "the watch has seen it")
    told.clear()
    wait_until(lambda: store.list_bookies() == [], "the lease runs out")
    wait_until(lambda: bool(told), "the watch tells")
    store.register_bookie(service(incarnation=5), writable=True)
    watch.close()
    store.close()


def test_a_closed_store_says_so(open_driver: Open) -> None:
    store = open_driver()
    store.close()
    store.close()
    with pytest.raises(ClientClosed):
        store.list_ledgers()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "update", "delete", "delete at", "list"]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=30,
)


@pytest.mark.parametrize("open_driver", ["memory", "sqlite"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_sequence_of_changes_agrees_with_a_dictionary(
    open_driver: Open, steps: list[tuple[str, int, int]]
) -> None:
    agrees_with_a_dictionary(open_driver, steps)


@pytest.mark.slow
@pytest.mark.parametrize("open_driver", ["zookeeper", "zookeeper-long"], indirect=True)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_sequence_of_changes_of_a_cluster_agrees_with_a_dictionary(
    open_driver: Open, steps: list[tuple[str, int, int]]
) -> None:
    agrees_with_a_dictionary(open_driver, steps)


def agrees_with_a_dictionary(open_driver: Open, steps: list[tuple[str, int, int]]) -> None:
    """Do the steps, and compare everything with what a dictionary says after each."""
    store, reader = open_driver(), open_driver()
    for left in store.list_ledgers():
        store.delete_ledger(left)
    fresh = [store.next_ledger_id() for _ in range(4)]
    model: dict[int, tuple[LedgerMetadata, int]] = {}
    deleted: set[int] = set()
    for count, (step, number, version) in enumerate(steps):
        ledger_id = fresh[number]
        value = metadata(last=count)
        try:
            if step == "create":
                store.create_ledger(ledger_id, value)
                assert ledger_id not in model.keys() | deleted
                model[ledger_id] = (value, 0)
            elif step == "update":
                store.update_ledger(ledger_id, value, version)
                assert model[ledger_id][1] == version
                model[ledger_id] = (value, version + 1)
            elif step.startswith("delete"):
                at = version if step == "delete at" else None
                store.delete_ledger(ledger_id, at)
                assert at in (None, model.pop(ledger_id)[1])
                deleted.add(ledger_id)
        except NoSuchLedger:
            assert ledger_id not in model
        except MetadataConflict:
            if step == "create":
                assert ledger_id in model.keys() | deleted
            else:
                assert model[ledger_id][1] != version
        assert reader.list_ledgers() == sorted(model)
        for known, (value, known_version) in model.items():
            found = reader.read_ledger(known)
            assert (found.metadata, found.version) == (value, known_version)


@pytest.mark.parametrize("open_driver", ["sqlite", "zookeeper"], indirect=True)
def test_a_forked_child_is_told_to_open_its_own(open_driver: Open) -> None:
    store = open_driver()
    store.create_ledger(1, metadata())

    def child() -> int:
        with pytest.raises(ClientClosed, match="fork"):
            store.list_ledgers()
        store.close()
        return 42

    assert exit_code_of_fork(child) == 42
    assert store.list_ledgers() == [1]


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("sqlite:relative.db", "absolute path"),
        ("sqlite:", "absolute path"),
        ("etcd:x", "unknown scheme"),
        ("nothing", "no scheme"),
    ],
)
def test_a_uri_that_cannot_be_served_says_why(uri: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(uri)


# Identities of bookies in every metadata driver, and updates of ledgers that depend on them.
# INV-M1, INV-E3.


__all__ = ["open_driver"]


def test_identities_are_kept_by_compare_and_set(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    identity = BookieIdentity(
        "b1",
        7,
        (DirectoryIdentity("ab", "journal"), DirectoryIdentity("cd", "ledger", 1)),
        starts=3,
    )
    assert store.read_identity("b1") is None
    version = store.write_identity(identity, None)
    with pytest.raises(MetadataConflict):
        other.write_identity(identity, None)
    found = other.read_identity("b1")
    assert found is not None
    assert found.identity == identity
    assert found.version == version
    reborn = BookieIdentity("b1", 8, identity.directories)
    newer = other.write_identity(reborn, version)
    with pytest.raises(MetadataConflict):
        store.write_identity(identity, version)
    assert store.list_identities() == [reborn]
    with pytest.raises(MetadataConflict):
        store.delete_identity("b1", version)
    store.delete_identity("b1", newer)
    assert other.list_identities() == []


def test_an_update_can_depend_on_a_bookies_identity(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    store.create_ledger(1, metadata())
    identity = BookieIdentity("b", 1, ())
    first = IdentityVersion("b", store.write_identity(identity, None))
    assert store.update_ledger(1, metadata(last=1), 0, first) == 1
    with pytest.raises(MetadataConflict) as conflict:
        store.update_ledger(1, metadata(last=2), 0, first)
    assert not isinstance(conflict.value, IdentityChanged), (
        "the ledger was changed, the bookie was not"
    )
    second = IdentityVersion("b", other.write_identity(identity, first.version))
    for gone in (first, IdentityVersion("unknown", 0)):
        with pytest.raises(IdentityChanged):
            store.update_ledger(1, metadata(last=2), 1, gone)
    with pytest.raises(NoSuchLedger):
        store.update_ledger(2, metadata(), 0, second)
    assert store.update_ledger(1, metadata(last=2), 1, second) == 2
    other.delete_identity("b", second.version)
    with pytest.raises(IdentityChanged):
        store.update_ledger(1, metadata(last=3), 2, second)
    assert other.read_ledger(1).metadata == metadata(last=2)
