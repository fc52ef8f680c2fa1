"""Where the bad histories register."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.simulation.judge import Judge

BAD: list[tuple[str, str, Callable[[Judge], None]]] = []


def bad(name: str) -> Callable[[Callable[[Judge], None]], Callable[[Judge], None]]:
    def note(history: Callable[[Judge], None]) -> Callable[[Judge], None]:
        BAD.append((name, history.__name__, history))
        return history

    return note
