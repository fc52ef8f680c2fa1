"""Which bookies are lost, since when, and which of them are due. Pure.

    before = LostBookies()
    judged = judge(before, known, registered, now_ms, LossRules(delay_s=600.0))
    judged.after   # to be stored by compare-and-set
    judged.due     # bookies whose ledgers are to be marked

The auditor stores `LostBookies` in metadata, so an auditor that takes over continues the count of the one before.

INV-H3: a bookie is due only after its own delay, counted from its stored time of loss. A bookie that returns is no
longer lost.
INV-H4: while the loss of a bookie is doubtful it is due only after six delays, or when an operator says `resume`.
INV-H6: while an operator's hold lasts no further bookie becomes due. It ends at its time, or when an operator says
`resume`. A hold may be of one bookie alone: its maintenance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fastbk.model.ids import BookieId

DELAY_DEFAULT_S = 600.0
HOLD_DELAYS = 6
"""A hold ends by itself after so many delays."""
SESSION_DOUBT_S = 60.0
"""Losses that are noticed so soon after the auditor lost its own session are doubtful."""
HALF_LOST = "half of the bookies or more are lost"
SESSION_LOST = "the auditor had lost its own session"
IN_MAINTENANCE = "it is in maintenance"
HOLD_S_MAX = 86_400.0
"""The longest hold of an operator's."""


@dataclass(frozen=True, slots=True)
class HealingHold:
    """An operator's hold, for planned restarts. `until_ms`: its end, in ms since 1970; 0: there is none."""

    until_ms: int = 0
    reason: str = ""

    def left_s(self, now_ms: int) -> float:
        """Return how long it lasts yet, by the clock of this machine; never longer than a hold may."""
        return max(0.0, min((self.until_ms - now_ms) / 1000, HOLD_S_MAX))


@dataclass(frozen=True, slots=True)
class LossRules:
    """`delay_s`: how long a bookie may be away. `session_lost_ms`: when this auditor last lost its session.

    `hold`: an operator's, of all bookies. `maintenance`: the holds of single ones. They may be over.
    """

    delay_s: float = DELAY_DEFAULT_S
    session_lost_ms: int | None = None
    hold: HealingHold = field(default_factory=HealingHold)
    maintenance: Mapping[BookieId, HealingHold] = field(default_factory=dict)

    def held(self, bookie_id: BookieId, now_ms: int) -> tuple[float, str]:
        """Return how long an operator holds this bookie yet, 0 for not at all, and why."""
        own = self.maintenance.get(bookie_id)
        if own is not None and own.left_s(now_ms) > self.hold.left_s(now_ms):
            return own.left_s(
                now_ms
            ), f"{IN_MAINTENANCE}: {own.reason}" if own.reason else IN_MAINTENANCE
        return self.hold.left_s(now_ms), self.hold.reason or "an operator holds it"


@dataclass(frozen=True, slots=True)
class LostBookie:
    """One lost bookie.

    Attributes:
        lost_ms: when an auditor first missed its registration, in ms since 1970.
        is_doubtful: it was missed just after the auditor lost its own session.
        is_released: an operator said `resume` after it was lost.
        is_marked: all its ledgers are marked.
    """

    lost_ms: int
    is_doubtful: bool = False
    is_released: bool = False
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class LostBookies:
    """All lost bookies of a cluster: what the record in metadata holds."""

    lost: Mapping[BookieId, LostBookie] = field(default_factory=dict)

    def released(self) -> LostBookies:
        """Return the record after an operator's `resume`: it covers what is lost now, and no later loss."""
        return LostBookies(
            {one: replace(lost, is_released=True) for one, lost in self.lost.items()}
        )

    def marked(self, losses: Mapping[BookieId, int]) -> LostBookies:
        """Return the record after a scan has marked all ledgers of these bookies.

        `losses`: bookie -> the time of the loss that the scan was about. A bookie that returned meanwhile and was lost
        again has its delay anew, and another scan after that (INV-H3).
        """
        return LostBookies(
            {
                one: replace(lost, is_marked=True) if losses.get(one) == lost.lost_ms else lost
                for one, lost in self.lost.items()
            }
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """What one pass over the bookies decides.

    Attributes:
        after: the record from now on.
        due: lost bookies whose delay is over; their ledgers are marked, and copied to others.
        waiting: other lost bookies -> seconds until they are due.
        held: those of `waiting` that a hold keeps -> the reason.
        new, returned, forgotten: bookies that this pass missed first, found again, or that left the cluster.
    """

    after: LostBookies
    due: frozenset[BookieId]
    waiting: Mapping[BookieId, float]
    held: Mapping[BookieId, str]
    new: frozenset[BookieId]
    returned: frozenset[BookieId]
    forgotten: frozenset[BookieId]


def judge(
    before: LostBookies,
    known: Collection[BookieId],
    registered: Collection[BookieId],
    now_ms: int,
    rules: LossRules,
) -> Judged:
    """Decide which bookies are lost and due.

    Args:
        before: the stored record.
        known: bookies that have a cookie, or that ledgers name.
        registered: bookies that are up, read-only ones included.
        now_ms: by the clock of this machine; a time of loss in its future counts as now.
        rules: the delay, and what is known of the auditor itself.
    """
    since_ms = rules.session_lost_ms
    is_doubtful = since_ms is not None and now_ms - since_ms < SESSION_DOUBT_S * 1000
    lost: dict[BookieId, LostBookie] = {}
    for one in known:
        if one in registered:
            continue
        found = before.lost.get(one)
        if found is None:
            found = LostBookie(now_ms, is_doubtful=is_doubtful)
        elif found.lost_ms > now_ms:
            found = replace(found, lost_ms=now_ms)
        lost[one] = found
    is_half = 2 * len(lost) >= len(set(known) | set(registered))
    due, waiting, held = set(), {}, {}
    for one, found in lost.items():
        reason = ""
        # A bookie whose ledgers are marked was due already: what is lost later does not undo that.
        if not (found.is_released or found.is_marked):
            reason = HALF_LOST if is_half else SESSION_LOST if found.is_doubtful else ""
        delay_s = rules.delay_s * (HOLD_DELAYS if reason else 1)
        left_s = delay_s - (now_ms - found.lost_ms) / 1000
        hold_s, hold_reason = rules.held(one, now_ms)
        if left_s < hold_s and not (found.is_released or found.is_marked):
            left_s, reason = hold_s, hold_reason
        if left_s <= 0 or found.is_marked:
            due.add(one)
            continue
        waiting[one] = left_s
        if reason:
            held[one] = reason
    gone = before.lost.keys() - lost.keys()
    return Judged(
        LostBookies(lost),
        frozenset(due),
        waiting,
        held,
        frozenset(lost.keys() - before.lost.keys()),
        frozenset(one for one in gone if one in registered),
        frozenset(one for one in gone if one not in registered),
    )


def delay_of(stored_s: int | None) -> float:
    """Return the delay that a stored `lostBookieRecoveryDelay` stands for.

    Apache's auditor stores 0 at its first start, without anybody asking for it. So 0 means "never set on purpose", and
    our default holds. So it does where what is stored is no number, or a negative one: that is a bad record.
    """
    return float(stored_s) if stored_s and stored_s > 0 else DELAY_DEFAULT_S
