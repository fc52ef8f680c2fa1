"""What about an ensemble that exists does not satisfy the policy, in words: for `cluster status` and audits."""

from __future__ import annotations

from collections.abc import Sequence

from fastbk.model.ids import BookieId
from fastbk.placement.rules import MINIMUM, domains_of, rules_of, windows_of
from fastbk.placement.values import DEFAULT_LOCATION, BookieView, PlacementConfig


def placement_faults(
    bookies: Sequence[BookieView],
    ensemble: Sequence[BookieId],
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
) -> list[str]:
    """Return a sentence for each minimum that a write set breaks and each member that repeats or is of no group.

    Minimums count here even when they are not enforced, and even when no choice could keep them. A bookie that is
    not in `bookies` counts as being at the default location; whether members are alive is not looked at.
    """
    del ack_quorum  # no policy looks at it; taken so that all calls are alike
    views = {view.bookie_id: view for view in bookies}
    members = [views.get(bookie_id) for bookie_id in ensemble]
    faults = [
        f"{bookie_id} is {count} times in the ensemble"
        for bookie_id, count in {one: ensemble.count(one) for one in ensemble}.items()
        if count > 1
    ]
    if config.group is not None:
        faults += [
            f"{view.bookie_id} is not in the group {config.group!r}"
            for view in members
            if view is not None and config.group not in view.labels
        ]
    places = [
        domains_of(DEFAULT_LOCATION if view is None else view.location, config.policy)
        for view in members
    ]
    for rule in rules_of(config, write_quorum).required:
        if rule.cost < MINIMUM:
            continue
        for window in windows_of(len(ensemble), write_quorum):
            names = sorted({getattr(places[index], rule.level) for index in window})
            if len(names) < rule.target:
                members_named = ", ".join(ensemble[index] for index in window)
                plural = "" if len(names) == 1 else "s"
                faults.append(
                    f"the write set {members_named} spans {len(names)} {rule.noun}{plural}"
                    f" ({', '.join(names)}), the minimum is {rule.target}"
                )
    return faults
