"""One client a process: Spark's Python workers are kept and serve many tasks, and so do connections."""

from __future__ import annotations

import os
import threading

import fastbk.sync

_lock = threading.Lock()
_clients: dict[tuple[object, ...], fastbk.sync.Client] = {}


def client_of(uri: str | None, **settings: float) -> fastbk.sync.Client:
    """Return this process's client of the cluster whose metadata is at `uri` (None: FASTBK_METADATA); do not close it.

    `settings`: of `ClientConfig`; each set of them has a client. Spark forks its workers: a child finds none of its
    parent's clients here. Raises ConfigError.
    """
    key = (os.getpid(), uri, *sorted(settings.items()))
    with _lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = fastbk.sync.connect(uri, **settings)
        return found


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
