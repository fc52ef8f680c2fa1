"""Watches of stores that cannot push."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from fastbk.errors import ClientClosed, MetadataUnavailable
from fastbk.meta import open_store
from fastbk.meta.api import Subject
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import Watcher
from tests.fixtures.wait import wait_until


class FakeStore:
    def __init__(self) -> None:
        self.states: dict[Subject, int] = {}
        self.is_closed = False

    def look(self, subject: Subject) -> int:
        if self.is_closed:
            raise ClientClosed("closed")
        return self.states.get(subject, 0)


def _threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "fastbk-watch"]


def test_a_watch_that_begins_while_the_store_is_closed_leaves_no_thread() -> None:
    store = FakeStore()
    watcher = Watcher(store.look, 0.01)
    watcher.add(1, lambda: None)
    store.is_closed = True
    wait_until(lambda: not _threads(), "the thread ends")


def test_callbacks_end_and_begin_watches_and_an_end_counts_once() -> None:
    store, told = FakeStore(), list[str]()
    watcher = Watcher(store.look, 0.01)
    other = watcher.add(1, lambda: told.append("other"))

    def changed() -> None:
        first.close()
        first.close()
        watcher.add(1, lambda: told.append("second"))

    first = watcher.add(1, changed)
    store.states[1] = 1
    wait_until(lambda: told == ["other"], "the first change is told")
    wait_until(
        lambda: (
            len(watcher._subscriptions.all()) == 2 and first not in watcher._subscriptions.all()
        ),
        "it began",
    )
    store.states[1] = 2
    wait_until(lambda: told == ["other", "other", "second"], "the second change is told")
    other.close()
    watcher.close()
    wait_until(lambda: not _threads(), "the thread ends")


def test_nothing_is_looked_at_while_the_mark_of_the_store_stays_the_same() -> None:
    store, told = FakeStore(), list[str]()
    looked, marks, failures = list[Subject](), [0], list[Exception]()

    def look_all(subjects: Sequence[Subject]) -> list[object]:
        if failures:
            raise failures.pop()
        looked.extend(subjects)
        return [store.look(one) for one in subjects]

    def passes(count: int) -> None:
        """Wait until the bookies, who have leases, were looked at so often."""
        before = looked.count(None)
        wait_until(lambda: looked.count(None) >= before + count, "passes")

    watcher = Watcher(store.look, 0.002, look_all, lambda: marks[0])
    watcher.add(7, lambda: told.append("ledger"))
    watcher.add(None, lambda: told.append("bookies"))
    passes(5)
    assert looked.count(7) <= 1, "only before there was a mark"
    store.states[7] = store.states[None] = 1
    wait_until(lambda: told == ["bookies"], "a lease ran out, without a change of the store")
    marks[0] = 1
    wait_until(lambda: told == ["bookies", "ledger"], "it is looked at")
    # A look that failed is made again, though the mark is known by then.
    store.states[7] = 2
    failures.append(MetadataUnavailable("away"))
    marks[0] = 2
    wait_until(lambda: told == ["bookies", "ledger", "ledger"], "what changed meanwhile is told")
    before = looked.count(7)
    passes(5)
    assert looked.count(7) == before
    watcher.close()


def test_a_file_tells_of_changes_by_itself_and_by_others(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/metadata.db"
    store, other, told = open_store(uri), open_store(uri), list[str]()
    store.records.watch("a/b", lambda: told.append("record"))
    store.records.watch_children("a", lambda: told.append("names"))
    (version,) = store.records.change([Change("a/b", b"1", None)])
    wait_until(lambda: sorted(told) == ["names", "record"], "its own change")
    other.records.change([Change("a/b", b"2", version)])
    wait_until(lambda: sorted(told) == ["names", "record", "record"], "a change by another")
    other.records.change([Change("a/c", b"1", None)])
    wait_until(lambda: sorted(told) == ["names", "names", "record", "record"], "a name")
    store.close()
    other.close()
