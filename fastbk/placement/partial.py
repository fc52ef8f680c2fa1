"""New ensembles where too few bookies are up: smaller ones, or ones that name bookies which are away.

A ledger that needs only its ack quorum can begin then. Its ensemble shrinks at most to Qw. Below that the quorums stay
as they are, and the places that nobody can take name bookies that are away: their copies are *owed*. At least Qa
members of the one write set are up (INV-E4), so entries are acknowledged, and a recovery can close the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from fastbk.errors import NotEnoughBookies
from fastbk.invariant import check
from fastbk.model.ids import BookieId
from fastbk.placement.api import choose_ensemble
from fastbk.placement.candidates import gather
from fastbk.placement.values import BookieView, Chance, PlacementConfig

COMBINATIONS_MAX = 64
"""So many sets of away bookies are tried where minimums are enforced."""


@dataclass(frozen=True, slots=True)
class ChosenEnsemble:
    """The bookies of a new ledger in the order of the ring; those of `away` are not up, and owe their copies."""

    bookies: tuple[BookieId, ...]
    away: frozenset[BookieId] = frozenset()

    @property
    def up(self) -> tuple[BookieId, ...]:
        """Those that are up."""
        return tuple(one for one in self.bookies if one not in self.away)


def choose_partial_ensemble(
    bookies: Sequence[BookieView],
    away: Sequence[BookieView],
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
    *,
    exclude: Collection[BookieId] = (),
) -> ChosenEnsemble:
    """Return an ensemble of `bookies`, as large as possible down to Qw, else one that also names some of `away`.

    Args:
        bookies: that are up.
        away: that were registered once and are not up, the likeliest to return first.
        ensemble, write_quorum, ack_quorum: of the ledger.
        config: what is wanted of the ensemble; enforced minimums hold for away bookies, too.
        rng: chance.
        exclude: never taken.

    Raises the NotEnoughBookies of the full size when fewer than `ack_quorum` bookies may be taken, when too few are
    known to be away, or when an enforced minimum cannot be kept.
    """
    refusal: NotEnoughBookies | None = None
    for size in range(ensemble, write_quorum - 1, -1):
        try:
            taken = choose_ensemble(
                bookies, size, write_quorum, ack_quorum, config, rng, exclude=exclude
            )
        except NotEnoughBookies as error:
            refusal = refusal or error
        else:
            return ChosenEnsemble(taken)
    assert refusal is not None
    left_out = dict.fromkeys(exclude, "excluded by the caller")
    able = [one.view for one in gather(bookies, config, left_out, rng).ranked]
    owed = write_quorum - len(able)
    if not 0 < owed <= write_quorum - ack_quorum:
        raise refusal
    taken_ids = {view.bookie_id for view in able}
    allowed = {one.view.bookie_id for one in gather(away, config, left_out, rng).ranked} - taken_ids
    spare = [view for view in away if view.bookie_id in allowed]
    for some in islice(combinations(spare, owed), COMBINATIONS_MAX):
        views = [*able, *some]
        try:
            taken = choose_ensemble(views, write_quorum, write_quorum, ack_quorum, config, rng)
        except NotEnoughBookies:
            continue
        chosen = ChosenEnsemble(taken, frozenset(view.bookie_id for view in some))
        check(len(chosen.up) >= ack_quorum, f"INV-E4: too few bookies are up in {chosen}")
        return chosen
    raise refusal
