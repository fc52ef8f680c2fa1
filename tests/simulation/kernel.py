"""The heart of the simulator: one heap of (time, sequence, event), one seed, no wall clock, no order of hashes.

A node is anything that can be paused or die. What a node scheduled for itself dies with it (`life`); what the network
carries to it does not: connections decide about that. A paused node (SIGSTOP) gets everything later, in order.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

# What a handler returns when the event met nothing to do, a timer of something long over: it is not counted.
STALE = object()

_MASK = (1 << 64) - 1


class Violation(AssertionError):
    """An invariant does not hold. `invariant`: its name in the table of the checks."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Node:
    """Something with a name that events happen to.

    Attributes:
        index: small and unique in its world.
        life: goes up when it dies; its timers of earlier lives are void.
        paused_until_s: until then it gets nothing.
        doing: what it is at, in a word, for the count of branches.
    """

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.index = kernel.add_node(self)
        self.life = 0
        self.paused_until_s = 0.0
        self.doing = "new"
        self.last = ""


class Kernel:
    """Time, events, chance.

    Attributes:
        now_s: the simulated time.
        events: how many have happened.
        branches: distinct (node's role, event, the node's event before, what the node is at).
        digest: over all events and when they happened: equal for equal runs.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.events = 0
        self.digest = seed & _MASK
        self.branches: set[tuple[str, str, str, str]] = set()
        self.nodes: list[Node] = []
        self.lines: list[tuple[float, int, str]] | None = None
        self._heap: list[
            tuple[float, int, Node, int | None, Callable[..., object], tuple[Any, ...]]
        ] = []
        self._sequence = 0
        self._codes: dict[str, int] = {}

    def rng(self, name: str) -> random.Random:
        """Return a generator of its own for `name`: removing one fault leaves the luck of all others alone."""
        return random.Random(f"{self.seed}/{name}")

    def add_node(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def after(
        self, delay_s: float, node: Node, handler: Callable[..., object], *arguments: Any
    ) -> None:
        """Have `handler` run on `node` after a while, if the node still lives the same life then."""
        self._sequence += 1
        heappush(
            self._heap, (self.now_s + delay_s, self._sequence, node, node.life, handler, arguments)
        )

    def deliver(
        self, at_s: float, node: Node, handler: Callable[..., object], *arguments: Any
    ) -> None:
        """Have `handler` run on `node` at a time, whatever became of the node by then."""
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, node, None, handler, arguments))

    def run(self, end_s: float, events_max: int, is_done: Callable[[], bool] | None = None) -> None:
        """Let things happen until `end_s`, until there were `events_max` in all, or `is_done`."""
        heap = self._heap
        branches = self.branches
        codes = self._codes
        while heap and self.events < events_max:
            at_s, _, node, life, handler, arguments = heap[0]
            if at_s > end_s:
                break
            heappop(heap)
            if life is not None and life != node.life:
                continue
            if node.paused_until_s > at_s:
                self._sequence += 1
                heappush(
                    heap, (node.paused_until_s, self._sequence, node, life, handler, arguments)
                )
                continue
            self.now_s = at_s
            name = handler.__name__
            if self.lines is not None:
                self.lines.append((at_s, node.index, name))
                mark = len(self.lines)
            if handler(*arguments) is STALE:
                if self.lines is not None and len(self.lines) == mark:
                    self.lines.pop()
                continue
            self.events += 1
            branches.add((node.name[0], name, node.last, node.doing))
            node.last = name
            code = codes.get(name)
            if code is None:
                code = codes[name] = zlib.crc32(name.encode())
            self.digest = (
                self.digest * 1000003 ^ code ^ node.index ^ int(at_s * 1_000_000)
            ) & _MASK
            if is_done is not None and is_done():
                return
        if not heap or heap[0][0] > end_s:
            self.now_s = max(self.now_s, end_s)

    def note(self, node: Node, text: str) -> None:
        """Put a line into the readable trace; call it only where `lines` is wanted."""
        if self.lines is not None:
            self.lines.append((self.now_s, node.index, f"  {text}"))
