"""What requests took, by kind and slot of time, in one process or added up for several."""

from __future__ import annotations

from typing import TypeAlias

from loadtest.latency import Latency

Message: TypeAlias = list[tuple[int, str, list[int]]]
"""(slot, kind, numbers of a Latency)."""


class Figures:
    """Histograms of each kind of request in each slot of `slot_s` seconds, counted from 1970."""

    def __init__(self, slot_s: int) -> None:
        self.slot_s = slot_s
        self._cells: dict[tuple[int, str], Latency] = {}

    def record(self, kind: str, took_us: float | None, size_bytes: int, now_s: float) -> None:
        """Count a request that took so long, None: that failed."""
        cell = self._cell(int(now_s // self.slot_s), kind)
        if took_us is None:
            cell.failures += 1
        else:
            cell.record(took_us, size_bytes)

    def _cell(self, slot: int, kind: str) -> Latency:
        cell = self._cells.get((slot, kind))
        if cell is None:
            cell = self._cells[slot, kind] = Latency()
        return cell

    def take(self) -> Message:
        """Return what was counted since the last call, and forget it: it is counted where it is added."""
        cells, self._cells = self._cells, {}
        return [(slot, kind, cell.to_words()) for (slot, kind), cell in cells.items()]

    def add(self, message: Message) -> None:
        """Count what another process has counted."""
        for slot, kind, words in message:
            self._cell(slot, kind).add(Latency.of_words(words))

    def totals(self, since_s: float = 0.0) -> dict[str, Latency]:
        """Return one histogram of each kind, of the slots that begin at `since_s` or later."""
        found: dict[str, Latency] = {}
        for (slot, kind), cell in sorted(self._cells.items()):
            if slot * self.slot_s >= since_s:
                found.setdefault(kind, Latency()).add(cell)
        return found

    def slots(self) -> list[tuple[int, Latency]]:
        """Return (when it began, one histogram of all kinds) of each slot, in order; those without requests, too."""
        found: dict[int, Latency] = {}
        for (slot, _), cell in self._cells.items():
            found.setdefault(slot, Latency()).add(cell)
        if not found:
            return []
        every = range(min(found), max(found) + 1)
        return [(slot * self.slot_s, found.get(slot) or Latency()) for slot in every]
