"""Faults that are planted under cursors of patterns, each with a seed whose world of patterns finds it."""

from __future__ import annotations

from tests.simulation.planting import Mutation, fault

CURSOR = "fastbk.stream.pattern.cursor"

MUTATIONS: tuple[Mutation, ...] = (
    fault(
        "an-older-janitor",
        "a janitor does not look for cursors of patterns",
        ("fastbk.stream.janitor:Janitor._pattern_marks", "if record is None", "if True"),
    ),
    fault(
        "kept-a-moment-later",
        "what is acknowledged while a state is written counts as kept with it",
        (f"{CURSOR}:PatternStorage.keep", "return changes", "return self._acks.changes"),
        seed=1001,
    ),
)
