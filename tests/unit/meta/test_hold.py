"""Metadata that was rolled back: the mark, the floor of ids, and the hold, in every driver. INV-M2 to INV-M5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastbk.cli.__main__ import main
from fastbk.errors import MetadataOnHold, StorageError
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.records import Change
from fastbk.meta.rollback import (
    HOLD_PATH,
    MARK_PATH,
    UNREADABLE_ID,
    Hold,
    Mark,
    confirm_hold,
    ensure_record,
    evidence,
    new_hold,
    place_hold,
    raise_mark,
    read_hold,
    read_mark,
    read_record,
)
from fastbk.meta.zookeeper.ledgers import NEAR_MOVE_IDS
from fastbk.meta.zookeeper.paths import SHORT_ID_END, Layout
from tests.fixtures.metadata import metadata
from tests.fixtures.zookeeper import ZooKeeperPlace

Open = Callable[[], MetadataStore]
LAYOUTS = {
    "zookeeper": Layout.HIERARCHICAL,
    "zookeeper-long": Layout.LONG_HIERARCHICAL,
    "zookeeper-flat": Layout.FLAT,
}
FAR = NEAR_MOVE_IDS + 5000


@pytest.fixture(params=["memory", "sqlite", *LAYOUTS])
def open_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens handles of one and the same store."""
    if request.param in LAYOUTS:
        place: ZooKeeperPlace = request.getfixturevalue("zookeeper")
        uri = place.uri(layout=LAYOUTS[request.param])
    else:
        uri = f"{request.param}:{tmp_path}/meta.db"
    with ExitStack() as stack:

        def one() -> MetadataStore:
            store = open_store(uri)
            stack.callback(store.close)
            return store

        one()
        yield one


# --- ids -------------------------------------------------------------------------------------------------------------


def test_the_highest_drawn_id_is_known_without_drawing(open_driver: Open) -> None:
    store = open_driver()
    drawn = [store.next_ledger_id() for _ in range(3)]
    assert store.highest_drawn_id() == drawn[-1] == store.highest_drawn_id()
    assert store.next_ledger_id() > drawn[-1]


def test_ids_are_drawn_above_a_near_floor(open_driver: Open) -> None:
    store = open_driver()
    first = store.next_ledger_id()
    store.move_ids_above(first + 700)
    assert store.highest_drawn_id() >= first + 700
    assert first + 700 < open_driver().next_ledger_id() < first + 2000
    store.move_ids_above(first)  # below what was drawn: nothing happens
    assert store.next_ledger_id() < first + 2000


def test_ids_are_drawn_above_a_far_floor(request: pytest.FixtureRequest, open_driver: Open) -> None:
    store = open_driver()
    store.next_ledger_id()
    if "flat" in request.node.name:
        with pytest.raises(StorageError, match="flat draws ledger ids one by one"):
            store.move_ids_above(FAR)
        return
    for floor in (FAR, SHORT_ID_END + 7, 5 << 32 | 17, (5 << 32) + FAR):
        store.move_ids_above(floor)
        drawn = store.next_ledger_id()
        assert drawn > floor
        assert store.highest_drawn_id() == drawn
        store.create_ledger(drawn, metadata())
        assert store.list_ledgers(drawn - 1, 1) == [drawn]


def test_a_zookeeper_client_draws_no_id_at_or_below_the_floor(zookeeper: ZooKeeperPlace) -> None:
    store = open_store(zookeeper.uri())
    first = store.next_ledger_id()
    raise_mark(store, Mark(floor=first + 300))
    assert store.next_ledger_id() > first + 300
    store.close()


def test_a_flat_layout_draws_nothing_below_a_far_floor(zookeeper: ZooKeeperPlace) -> None:
    store = open_store(zookeeper.uri(layout=Layout.FLAT))
    raise_mark(store, Mark(floor=FAR * 2))
    with pytest.raises(StorageError, match="Restore the newer metadata"):
        store.next_ledger_id()
    store.close()


def test_a_client_that_lives_through_a_rollback_reuses_no_id(zookeeper: ZooKeeperPlace) -> None:
    store = open_store(zookeeper.uri())
    drawn = [store.next_ledger_id() for _ in range(5)]
    meddler = zookeeper.client()
    meddler.delete(zookeeper.path("idgen"))
    meddler.create(zookeeper.path("idgen"))
    assert store.next_ledger_id() > drawn[-1]
    meddler.stop()
    meddler.close()
    store.close()


# --- the mark --------------------------------------------------------------------------------------------------------


def test_a_mark_never_falls_and_ages_once_for_all(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    first = raise_mark(store, Mark(highest_id=7), older=read_mark(store))
    assert first == Mark(age=1, highest_id=7) == read_mark(other)
    assert raise_mark(other, Mark(highest_id=3), older=Mark(age=0)) == first  # somebody was faster
    assert raise_mark(other, Mark(highest_id=3), older=first) == Mark(age=2, highest_id=7)


def test_only_metadata_that_knows_less_was_rolled_back() -> None:
    stored = Mark(age=4, highest_id=20)
    assert evidence(stored, stored) == ""
    assert evidence(stored, Mark(age=5, highest_id=30)) == ""
    assert "ledger 20" in evidence(stored, Mark(age=4, highest_id=19))
    assert "age 4" in evidence(stored, Mark(age=3, highest_id=20))


def test_a_damaged_mark_is_as_none_and_a_damaged_hold_is_held(open_driver: Open) -> None:
    store = open_driver()
    store.records.change([Change(MARK_PATH, b"{"), Change(HOLD_PATH, b"{")])
    assert read_mark(store) == Mark()
    store.create_ledger(1, metadata())
    with pytest.raises(MetadataOnHold, match="cannot be read"):
        store.delete_ledger(1)
    place_hold(store, new_hold("by hand"))
    assert str(read_hold(store)) == "by hand"
    (found,) = store.records.read([HOLD_PATH])
    assert found is not None
    store.records.change([Change(HOLD_PATH, b"[" * 100_000, found.version)])
    assert confirm_hold(store, UNREADABLE_ID) and read_hold(store) is None
    store.delete_ledger(1)


# --- the hold --------------------------------------------------------------------------------------------------------


def test_no_ledger_is_deleted_while_metadata_is_on_hold(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    store.create_ledger(1, metadata())
    hold = place_hold(store, new_hold("rolled back"))
    with pytest.raises(MetadataOnHold, match=r"rolled back.*fastbk metadata confirm"):
        other.delete_ledger(1)
    other.create_ledger(2, metadata())
    assert confirm_hold(other, hold.hold_id)
    store.delete_ledger(1)
    assert store.list_ledgers() == [2]


def test_a_hold_ends_only_by_the_confirmation_of_that_hold(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    ensure_record(store)
    ensure_record(other)
    assert read_hold(store) is None
    assert not confirm_hold(store, "none")
    first = place_hold(store, new_hold("a"))
    both = place_hold(other, new_hold("b"))
    assert both == Hold(hold_id=first.hold_id, since_ms=first.since_ms, reasons=("a", "b"))
    assert str(both) == "a (and 1 more)", "one line, however many bookies have found a reason"
    assert place_hold(other, new_hold("a")) == both == read_hold(store)
    assert not confirm_hold(store, new_hold("a").hold_id)
    assert confirm_hold(store, first.hold_id)
    assert read_record(other).confirmed == (first.hold_id,)
    assert not confirm_hold(store, first.hold_id)


def test_an_operator_holds_and_confirms_without_a_bookie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:{tmp_path}/meta.db"
    open_store(uri).close()
    words = ["--metadata", uri]
    assert main(["metadata", "status", *words]) == 0
    assert main(["metadata", "hold", *words, "--reason", "copy of Monday"]) == 0
    assert main(["metadata", "status", *words]) == 1
    said = capsys.readouterr().out
    assert "not on hold" in said
    assert "copy of Monday" in said
    assert main(["metadata", "confirm", *words]) == 2  # nobody at a terminal
    assert main(["metadata", "confirm", *words, "--yes"]) == 0
    assert main(["metadata", "status", *words]) == 0
