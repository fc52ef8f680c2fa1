"""Chooses bookies for a new ledger or a changed fragment, among those that answer. No I/O.

The client and the simulator run these generators: each yields bookies to connect to and is sent why
some could not be reached. Those are left out of the next choice. Every round leaves out at least
one, so it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from fastbk.errors import NotEnoughBookies
from fastbk.model.ids import BookieId
from fastbk.placement.choose_ensemble import (
    ChosenEnsemble,
    choose_ensemble,
    choose_partial_ensemble,
    choose_replacements,
)
from fastbk.placement.values import BookieView, Chance, PlacementConfig
from fastbk.replication.actions import Choose, Replaced

T = TypeVar("T")
Views: TypeAlias = Callable[[], Sequence[BookieView]]
Choosing: TypeAlias = Generator[Sequence[BookieId], Mapping[BookieId, str], T]

ROUNDS_MAX = 8
"""Rounds of connecting for replacements: a writer waits for them, and may ask again."""


def new_ensemble(
    views: Views,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
    missed: dict[BookieId, str] | None = None,
) -> Choosing[ChosenEnsemble]:
    """Choose for a new ledger. Raises NotEnoughBookies with what is wrong with each that is not taken.

    `missed` gets those that could not be reached, and why.
    """
    missed = {} if missed is None else missed
    while True:
        try:
            chosen = choose_ensemble(
                views(), ensemble, write_quorum, ack_quorum, config, rng, exclude=missed
            )
        except NotEnoughBookies as error:
            error.replicas.update(missed)
            raise
        found = yield chosen
        if not found:
            return ChosenEnsemble(chosen)
        missed.update(found)


def partial_ensemble(
    views: Views,
    away: Callable[[], Sequence[BookieView]],
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
    missed: dict[BookieId, str],
) -> Choosing[ChosenEnsemble]:
    """Choose for a new ledger that may begin although too few bookies take adds. Raises NotEnoughBookies.

    `away`: bookies that are not registered and were once. `missed`: those that were registered and not reached when
    all was tried; they come before the former, since they were up a moment ago. Read-only ones come before both.
    """
    while True:
        known = views()
        up = [view for view in known if view.bookie_id not in missed]
        silent = [view for view in known if view.bookie_id in missed]
        try:
            chosen = choose_partial_ensemble(
                up, [*silent, *away()], ensemble, write_quorum, ack_quorum, config, rng
            )
        except NotEnoughBookies as error:
            error.replicas.update(missed)
            raise
        found = yield chosen.up
        if not found:
            return chosen
        missed.update(found)


def replacements(
    views: Views,
    action: Choose,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
) -> Choosing[Replaced]:
    """Choose in place of an ensemble's bad members, as far as there is anybody."""
    missed: dict[BookieId, str] = {}
    for _ in range(ROUNDS_MAX):
        exclude = {*action.exclude, *missed}
        left_out: dict[BookieId, str] = {}
        arguments = (views(), action.ensemble, action.bad, write_quorum, ack_quorum, config, rng)
        try:
            chosen = choose_replacements(*arguments, exclude=exclude)
        except NotEnoughBookies as error:
            # Not those that are in the ensemble already: what is wrong with them the writer knows better.
            said = error.replicas.items()
            left_out = {one: why for one, why in said if one not in action.ensemble}
            chosen = choose_replacements(*arguments, exclude=exclude, partial=True)
        found = yield tuple(chosen.values())
        if not found:
            return Replaced(chosen, {**left_out, **missed})
        missed.update(found)
    return Replaced({}, missed)
