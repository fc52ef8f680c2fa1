"""Watches of stores that cannot push."""

from __future__ import annotations

import threading

from fastbk.errors import ClientClosed
from fastbk.meta.polling_watches import Watcher
from fastbk.meta.subscriptions import Subject
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
    wait_until(lambda: len(watcher._subscriptions.all()) == 2 and first not in watcher._subscriptions.all(), "it began")
    store.states[1] = 2
    wait_until(lambda: told == ["other", "other", "second"], "the second change is told")
    other.close()
    watcher.close()
    wait_until(lambda: not _threads(), "the thread ends")
