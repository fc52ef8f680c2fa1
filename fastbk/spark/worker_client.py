"""One client for each process, and calls of it in parallel.

Spark keeps its Python workers for many tasks, so connections are kept, too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, Unpack

import fastbk.sync
from fastbk.client.config import ClientOptions
from fastbk.observe import library_log

_lock = threading.Lock()
_clients: dict[tuple[object, ...], fastbk.sync.Client] = {}


def client_of(uri: str | None, **settings: Unpack[ClientOptions]) -> fastbk.sync.Client:
    """Return this process's client of the cluster whose metadata is at `uri` (None: FASTBK_METADATA); do not close it.

    `settings`: of `ClientConfig`; each set of them has a client. Spark forks its workers: a child finds none of its
    parent's clients here. Raises ConfigError.
    """
    if _is_worker():
        library_log.forward()  # nobody else configures logging there: Spark keeps what is written to stderr
    key = (os.getpid(), uri, *sorted(settings.items()))
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = fastbk.sync.connect(uri, **settings)
        return client


def _is_worker() -> bool:
    """Whether Spark started this process, for planning or for tasks."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and str(spec.name).startswith("pyspark.")


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


T = TypeVar("T")
A = TypeVar("A")
THREADS = 16


def in_parallel(call: Callable[[A], T], of: Sequence[A]) -> list[T]:
    """Call `call` with each, in threads, and return the results in their order. Raises the first failure."""
    if len(of) < 2:
        return [call(one) for one in of]
    with ThreadPoolExecutor(min(THREADS, len(of)), "fastbk-planning") as threads:
        return list(threads.map(call, of))
