"""New ensembles where too few bookies take adds: smaller ones, or ones that name bookies which are missing.

A ledger that needs only its ack quorum can begin then. Its ensemble shrinks at most to Qw. Below that the quorums stay
as they are, and the places that nobody can take name bookies that are read-only or away: their copies are *owed*. At
least Qa members of the one write set take adds (INV-E4), so entries are acknowledged, and a recovery can close the
ledger.

A read-only bookie is named before one that is away. It answers fences and reads, so a recovery still succeeds when
one of the members that took adds is away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from fastbk.errors import NotEnoughBookies
from fastbk.invariant import check
from fastbk.model.ids import BookieId
from fastbk.placement.candidates import gather
from fastbk.placement.choose_ensemble import choose_ensemble
from fastbk.placement.values import BookieView, Chance, PlacementConfig

COMBINATIONS_MAX = 64
"""So many sets of missing bookies are tried where minimums are enforced."""


@dataclass(frozen=True, slots=True)
class ChosenEnsemble:
    """The bookies of a new ledger in the order of the ring.

    Attributes:
        away: those that take no adds now, because they are away or read-only. They owe their copies.
    """

    bookies: tuple[BookieId, ...]
    away: frozenset[BookieId] = frozenset()

    @property
    def up(self) -> tuple[BookieId, ...]:
        """Those that are up and take adds."""
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
    """Return an ensemble of `bookies`, as large as possible down to Qw, else one that also names missing bookies.

    Args:
        bookies: that are up. Those that are not writable may only be named as missing, before those of `away`.
        away: that were registered once and are not up, the likeliest to return first.
        ensemble, write_quorum, ack_quorum: of the ledger.
        config: what is wanted of the ensemble; enforced minimums hold for missing bookies, too.
        rng: chance.
        exclude: never taken.

    Raises the NotEnoughBookies of the full size when fewer than `ack_quorum` bookies may be taken, when too few are
    known to be missing, or when an enforced minimum cannot be kept.
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
    read_only = [view for view in bookies if not view.writable]
    missing = [replace(view, writable=True) for view in (*read_only, *away)]
    ranked = gather(missing, config, left_out, rng).ranked
    allowed = {one.view.bookie_id for one in ranked} - taken_ids
    spare = [view for view in missing if view.bookie_id in allowed]
    for some in islice(combinations(spare, owed), COMBINATIONS_MAX):
        views = [*able, *some]
        try:
            taken = choose_ensemble(views, write_quorum, write_quorum, ack_quorum, config, rng)
        except NotEnoughBookies:
            continue
        chosen = ChosenEnsemble(taken, frozenset(view.bookie_id for view in some))
        check(len(chosen.up) >= ack_quorum, f"INV-E4: too few bookies take adds in {chosen}")
        return chosen
    raise refusal
