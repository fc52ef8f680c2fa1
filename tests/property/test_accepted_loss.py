"""What closing with losses accepted names, and what only it may give up. INV-Q3, INV-Q4."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import Error
from fastbk.model.ledger import LedgerState
from fastbk.replication.accepted_loss import LOSS_KEY, CloseAcceptingLoss
from fastbk.replication.recovery import RecoverLedger
from fastbk.replication.replicas import Pacing
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Client, FakeQuorum, holders, length_at, metadata_of

PACING = Pacing(request_timeout_s=1.0, give_up_s=1.0)
SHAPES = [(3, 3, 2), (5, 3, 2), (3, 3, 3), (4, 2, 1), (6, 3, 2)]


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[FakeQuorum, int]:
    """Return a ledger that its writer left open, with bookies lost since, and its last acknowledged entry."""
    shape = draw(st.sampled_from(SHAPES))
    firsts = draw(st.sampled_from([(), (4,)]))
    harness = FakeQuorum.of(metadata_of(*shape, *firsts))
    entries = draw(st.integers(4 if firsts else 0, 12))
    acknowledged = entries - 1
    for entry_id in range(entries):
        harness.write(entry_id, lac=max(-1, entry_id - draw(st.integers(1, 3))))
    for entry_id in range(entries, entries + draw(st.integers(0, 2))):
        on = holders(harness.metadata, entry_id)[: shape[2] - 1]
        harness.write(entry_id, on, lac=acknowledged)
    for bookie in harness.bookies.values():
        trouble = draw(st.sampled_from(["", "", "away", "limbo", "damaged"]))
        bookie.away = trouble == "away"
        if trouble == "limbo":
            bookie.read_status = Status.CANNOT_TELL
        elif trouble == "damaged" and bookie.entries:
            bookie.damaged = set(draw(st.sets(st.sampled_from(sorted(bookie.entries)))))
    return harness, acknowledged


@given(ledgers())
def test_what_is_given_up_is_named_and_everything_else_can_be_read(
    case: tuple[FakeQuorum, int],
) -> None:
    harness, acknowledged = case
    known = harness.current
    assert known is not None
    dry = CloseAcceptingLoss(LEDGER, known, PACING, is_dry_run=True)
    Client(harness, dry).run()  # type: ignore[arg-type]
    assert harness.current == known, "a dry run changes nothing"
    assert not any(one.fenced for one in harness.bookies.values())
    procedure = CloseAcceptingLoss(LEDGER, known, PACING)
    Client(harness, procedure).run()  # type: ignore[arg-type]
    loss = procedure.value()
    assert loss.is_closed and harness.metadata.state is LedgerState.CLOSED
    assert harness.metadata.last_entry_id == loss.last_entry_id
    assert LOSS_KEY in harness.metadata.custom
    assert (dry.value().last_entry_id, dry.value().given_up) == (loss.last_entry_id, loss.given_up)

    def is_named(entry_id: int) -> bool:
        return any(
            first <= entry_id and (end is None or entry_id <= end) for first, end in loss.given_up
        )

    def has_copy(entry_id: int) -> bool:
        bookies = (harness.bookies[one] for one in holders(harness.metadata, entry_id))
        return any(
            entry_id in one.entries
            and entry_id not in one.damaged
            and not one.away
            and one.read_status is None
            for one in bookies
        )

    # Below this the last acknowledged entries that anybody named are not read again.
    looked_from = max(0, loss.lac - harness.metadata.ensemble_size + 1)
    for entry_id in range(looked_from, acknowledged + 1):
        if entry_id <= loss.last_entry_id:
            assert has_copy(entry_id) or is_named(entry_id)
        else:
            assert is_named(entry_id)
            assert not has_copy(entry_id)
    for one in harness.bookies.values():
        one.away, one.read_status, one.damaged = False, None, set()
    if loss.given_up == [] and loss.last_entry_id >= 0:
        assert harness.metadata.length == length_at(loss.last_entry_id)


@given(ledgers())
def test_a_plain_recovery_never_closes_below_what_was_acknowledged(
    case: tuple[FakeQuorum, int],
) -> None:
    harness, acknowledged = case
    procedure = RecoverLedger(LEDGER, harness.current)
    Client(harness, procedure).run()  # type: ignore[arg-type]
    if procedure.error is None:
        assert harness.metadata.last_entry_id >= acknowledged
    else:
        assert not harness.metadata.is_closed
        with pytest.raises(Error):
            procedure.value()
