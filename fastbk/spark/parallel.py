"""Questions about many streams or ledgers, asked side by side by threads of the driver's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
A = TypeVar("A")
THREADS = 16


def together(ask: Callable[[A], T], of: Sequence[A]) -> list[T]:
    """Return what `ask` returns for each, in their order. Raises what the first one that fails raises."""
    if len(of) < 2:
        return [ask(one) for one in of]
    with ThreadPoolExecutor(min(THREADS, len(of)), "fastbk-looking") as threads:
        return list(threads.map(ask, of))
