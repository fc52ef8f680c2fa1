"""The latencies of a run by kind of request and by time, in one process or added up for several."""

from __future__ import annotations

from typing import TypeAlias

from loadtest.latency import Latency

Message: TypeAlias = list[tuple[int, str, list[int]]]
"""(begin of a slot in seconds since 1970, kind, numbers of a Latency)."""

SLOTS_MAX = 120
"""So many points has a chart at most."""


class Figures:
    """Histograms of each kind of request in each slot of time.

    Slots last one second at first. When a run has more than `slots_max` of them, two become one,
    so that a run of days takes no more memory than one of minutes.
    """

    def __init__(self, slots_max: int = SLOTS_MAX) -> None:
        self.slot_s = 1
        self._slots_max = slots_max
        self._slots: dict[int, dict[str, Latency]] = {}

    def record(self, kind: str, took_us: float | None, size_bytes: int, now_s: float) -> None:
        """Count a request that took so long. None: it failed."""
        cell = self._cell(now_s, kind)
        if took_us is None:
            cell.failures += 1
        else:
            cell.record(took_us, size_bytes)

    def _cell(self, at_s: float, kind: str) -> Latency:
        kinds = self._slots.get(int(at_s // self.slot_s))
        if kinds is None:
            kinds = self._slots[int(at_s // self.slot_s)] = {}
            while max(self._slots) - min(self._slots) >= self._slots_max:
                self._double()
            kinds = self._slots[int(at_s // self.slot_s)]
        cell = kinds.get(kind)
        if cell is None:
            cell = kinds[kind] = Latency()
        return cell

    def _double(self) -> None:
        """Make one slot of two."""
        before, self._slots = self._slots, {}
        self.slot_s *= 2
        for slot, kinds in before.items():
            merged = self._slots.setdefault(slot // 2, {})
            for kind, cell in kinds.items():
                merged.setdefault(kind, Latency()).add(cell)

    def take(self) -> Message:
        """Return what was counted since the last call, and forget it."""
        slots, self._slots = self._slots, {}
        return [
            (slot * self.slot_s, kind, cell.to_words())
            for slot, kinds in slots.items()
            for kind, cell in kinds.items()
        ]

    def add(self, message: Message) -> None:
        """Count what another process has counted."""
        for at_s, kind, words in message:
            self._cell(at_s, kind).add(Latency.of_words(words))

    def totals(self, since_s: float = 0.0) -> dict[str, Latency]:
        """Return one histogram of each kind, of the slots that begin at `since_s` or later."""
        found: dict[str, Latency] = {}
        for slot, kinds in self._slots.items():
            if slot * self.slot_s >= since_s:
                for kind, cell in kinds.items():
                    found.setdefault(kind, Latency()).add(cell)
        return dict(sorted(found.items()))

    def slots(self) -> list[tuple[int, Latency]]:
        """Return (begin, one histogram of all kinds) of each slot, also of those without requests."""
        if not self._slots:
            return []
        slots = []
        for slot in range(min(self._slots), max(self._slots) + 1):
            whole = Latency()
            for cell in self._slots.get(slot, {}).values():
                whole.add(cell)
            slots.append((slot * self.slot_s, whole))
        return slots
