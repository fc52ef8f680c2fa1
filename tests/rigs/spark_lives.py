"""Which lives rig `spark` lives: the kills of each, drawn by a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.rigs.spark_points import (
    BOOKIES,
    COMMIT,
    EXECUTORS,
    HEIRS,
    METADATA,
    ORPHANS,
    STEPS,
    TASK,
    ZOMBIES,
    Kill,
    Step,
)

BOOKIES_COUNT = 3
AWAY_S_MAX = 6.0
"""Longer than a session of metadata's (`spark_services.SESSION_TIMEOUT_S`): some run out."""
LIVES_OF_METADATA = 2
"""That share its steps, each under a batch of its own."""


@dataclass(frozen=True, slots=True)
class Life:
    """A driver's: its kills in order.

    Attributes:
        workers: of the standalone cluster that it runs on; 0: on this machine's threads.
        heir: the kills of the driver that comes after it on the same cluster.
    """

    kills: tuple[Kill, ...] = ()
    workers: int = 0
    heir: tuple[Kill, ...] = ()


def _steps(rng: random.Random) -> list[Life]:
    # Whoever is killed in a task leaves what the next commit of the same life has to sweep.
    first, rest = list(TASK), [step for step in STEPS if step not in TASK]
    drivers, alone = [*COMMIT, *first, *rest[:4]], [*first, *COMMIT, *rest[:4]]
    pairs = zip(alone, drivers, strict=False)
    return [Life((Kill("alone", one), Kill("driver", two))) for one, two in pairs]


def _zombies(rng: random.Random) -> list[Life]:
    return [Life((Kill("zombie", step),)) for step in ZOMBIES]


def _executors(rng: random.Random) -> list[Life]:
    return [Life(tuple(Kill("executor", step) for step in EXECUTORS), workers=1)]


def _orphans(rng: random.Random) -> list[Life]:
    """Two machines: one stands still when the driver dies, and goes on under the next one, which has the other."""
    heirs = [HEIRS[at % len(HEIRS)] for at in range(len(ORPHANS))]
    rng.shuffle(heirs)
    return [
        Life((Kill("orphan", step),), workers=2, heir=(Kill("nobody", heir, "release"),))
        for step, heir in zip(ORPHANS, heirs, strict=True)
    ]


def _bookies(rng: random.Random) -> list[Life]:
    steps = list(BOOKIES)
    rng.shuffle(steps)

    def kill(who: str, step: Step) -> Kill:
        number, away_s = rng.randrange(BOOKIES_COUNT), round(rng.uniform(0.0, AWAY_S_MAX), 2)
        return Kill(who, step, "bookie", number, away_s)

    pairs = zip(steps[::2], steps[1::2], strict=True)
    return [Life((kill("alone", one), kill("driver", two))) for one, two in pairs]


def _metadata(rng: random.Random) -> list[Life]:
    def kill(step: Step, who: str = "nobody") -> Kill:
        return Kill(who, step, "metadata", 0, round(rng.uniform(0.0, AWAY_S_MAX), 2))

    # Only what an attempt that died has left is given up, and one whose batch is visible already has written nothing:
    # it comes to `task.write` and not to `task.close`. A driver that is dead sends no change.
    first, *steps = METADATA
    rng.shuffle(steps)
    lasts = [step for step in steps if step[1] != "during"][:LIVES_OF_METADATA]
    others = [step for step in steps if step not in lasts]
    lives = [Life((Kill("alone", ("task.close", "after")), kill(first)))]
    for at, last in enumerate(lasts):
        some = others[at::LIVES_OF_METADATA]
        lives.append(Life((*map(kill, some), kill(last, "driver"))))
    return lives


FAMILIES: dict[str, Callable[[random.Random], list[Life]]] = {
    "steps": _steps,
    "zombie": _zombies,
    "executor": _executors,
    "orphan": _orphans,
    "bookie": _bookies,
    "metadata": _metadata,
}


def rounds(rng: random.Random, only: str = "") -> Iterator[Life]:
    """Yield lives for ever, each of the families whose names match once before any comes again."""
    families = [make for name, make in FAMILIES.items() if re.search(only, name)]
    if not families:
        raise ValueError(f"none of {', '.join(FAMILIES)} matches {only!r}")
    while True:
        lives = [life for make in families for life in make(rng)]
        rng.shuffle(lives)
        yield from lives
