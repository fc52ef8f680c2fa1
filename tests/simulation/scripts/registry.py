"""All scripts by their ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """One scenario: `play` raises when something does not hold. `noticed`: planted faults that make it do so."""

    name: str
    play: Callable[[], None]
    noticed: tuple[str, ...]


SCRIPTS: list[Script] = []


def script(name: str, *noticed: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(play: Callable[[], None]) -> Callable[[], None]:
        SCRIPTS.append(Script(name, play, noticed))
        return play

    return note
