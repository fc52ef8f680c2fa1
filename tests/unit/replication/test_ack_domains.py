"""Ledgers that are durable in several racks: who acknowledges, who decides, and what is recorded. INV-P5, INV-Q5."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from fastbk.errors import ConfigError, NotEnoughBookies, QuorumTimeout
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.placement.config import PlacementConfig
from fastbk.replication.ack_domains import (
    ACK_DOMAINS_KEY,
    AckDomains,
    acknowledging,
    custom_of_changed,
    custom_of_new,
    deciding,
    is_moved,
    recorded,
    without_record,
)
from fastbk.replication.procedure import Choose, Replaced, UpdateMetadata
from tests.fixtures.fake_quorum import FakeQuorum, is_closed_at, metadata_of
from tests.fixtures.recovering import recover
from tests.unit.replication.writer_harness import WriterHarness

RACKS = {"b0": "/eu/r1", "b1": "/eu/r1", "b2": "/eu/r2", "s0": "/eu/r1", "s1": "/eu/r3"}
TWO_RACKS = PlacementConfig(policy="rack", min_racks_per_ack_quorum=2)


def custom_of(*names: str, rule: PlacementConfig = TWO_RACKS) -> dict[str, bytes]:
    return custom_of_new(rule, 3, {BookieId(name): RACKS[name] for name in names})


def spanning(*names: str, rule: PlacementConfig = TWO_RACKS) -> LedgerMetadata:
    """Return an open ledger on b0, b1 and b2; `names`: those of which is recorded where they are."""
    return replace(metadata_of(3, 3, 2), custom=custom_of(*names, rule=rule))


class Writing(WriterHarness):
    """A writer that waits for two racks; `Choose` says where bookies are."""

    def choose(self, action: Choose) -> Replaced:
        chosen = super().choose(action).chosen
        named = [*action.ensemble, *chosen.values()]
        return Replaced(chosen, locations={BookieId(one): RACKS[one] for one in named})


def writing(*spares: str) -> Writing:
    return Writing(spares=list(spares), custom=custom_of("b0", "b1", "b2"))


# --- who acknowledges ---------------------------------------------------------------------------------------------


def test_an_append_waits_for_a_second_rack() -> None:
    harness = writing("s1")
    harness.add(3)
    harness.ack("b0", "b1")
    assert harness.writer.adds.head == 0
    harness.ack("b2", first=0, count=2)
    assert harness.writer.adds.head == 2
    harness.ack("b2")
    assert harness.writer.adds.head == 3


def test_acks_out_of_order_are_counted_by_racks_too() -> None:
    harness = writing("s1")
    harness.add(2)
    harness.ack("b0")
    harness.ack("b2", first=1)
    assert harness.writer.adds.head == 0
    harness.ack("b1")
    assert harness.writer.adds.head == 0
    harness.ack("b2")
    assert harness.writer.adds.head == 2


def test_a_lost_rack_is_replaced_at_once_and_recorded_with_the_change() -> None:
    harness = writing("s1")
    harness.add(1)
    harness.ack("b0", "b1")
    harness.lose("b2")
    harness.change()
    metadata = harness.store.now.metadata
    assert metadata.fragments[-1].ensemble == ("b0", "b1", "s1")
    record = recorded(metadata.custom)
    assert record == AckDomains(racks=2, of={one: RACKS[one] for one in ("b0", "b1", "s1")})
    harness.connect("s1")
    assert harness.writer.adds.head == 0
    harness.ack("s1")
    assert harness.writer.adds.head == 1


def test_a_replacement_counts_where_it_is_not_where_its_predecessor_was() -> None:
    harness = writing("s0")
    harness.add(1)
    harness.ack("b0", "b1")
    harness.lose("b2")
    for _ in range(5):
        if not harness.todo:
            break
        harness.answer()
    # s0 is in the rack of the others: by it no append would ever be acknowledged.
    assert harness.writer.ensemble == ("b0", "b1", "b2")
    assert not any(isinstance(one, UpdateMetadata) for one in harness.todo)


def test_what_a_writer_cannot_span_is_said() -> None:
    harness = writing()
    harness.add(1)
    harness.ack("b0", "b1")
    harness.pass_time(30.0)
    while harness.todo and harness.writer.failure is None:
        harness.answer()
        harness.pass_time(5.0)
    failure = harness.writer.failure
    assert isinstance(failure, QuorumTimeout | NotEnoughBookies)
    assert "2 bookies in 2 racks" in str(failure)


def test_a_writer_goes_on_by_what_it_knows_when_somebody_removed_the_record() -> None:
    harness = writing("s1")
    harness.store.edit(custom={"mine": b"1"})
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.add(1)
    harness.change()
    assert harness.store.now.metadata.custom == {"mine": b"1"}, "recoveries use the plain count"
    harness.connect("s1")
    harness.ack("b0", "b1")
    assert harness.writer.adds.head == 0
    harness.ack("s1")
    assert harness.writer.adds.head == 1


def test_a_writer_adds_what_somebody_took_out_of_the_record() -> None:
    harness = writing("s1")
    harness.store.edit(custom=custom_of("b0"))
    harness.lose("b2")
    harness.pass_time(1.0)
    harness.add(1)
    harness.change()
    record = recorded(harness.store.now.metadata.custom)
    assert record is not None
    assert record.of == {one: RACKS[one] for one in ("b0", "b1", "s1")}


# --- who decides ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [(), ("b2",), ("b0", "b1", "b2")])
def test_one_rack_decides_when_the_other_is_away(copies: tuple[str, ...]) -> None:
    harness = FakeQuorum.of(spanning("b0", "b1", "b2"))
    if copies:
        harness.write(0, list(copies))
    for name in ("b0", "b1"):
        harness.bookies[name].away = True
    if copies:
        # What is found is written again, to two racks as an append is: there is no bookie for that.
        with pytest.raises(NotEnoughBookies, match="could not be written to its ack quorum"):
            recover(harness).value()
    else:
        recover(harness)
        assert is_closed_at(harness, -1)


def test_a_ledger_without_a_record_is_decided_by_the_plain_count() -> None:
    harness = FakeQuorum.of(without_record(spanning("b0", "b1", "b2")))
    for name in ("b0", "b1"):
        harness.bookies[name].away = True
    with pytest.raises(NotEnoughBookies, match="could be fenced"):
        recover(harness).value()


def test_a_member_that_is_not_recorded_is_apart_for_a_recovery_and_nowhere_for_a_writer() -> None:
    metadata = spanning("b0", "b2")
    decide, acknowledge = (
        deciding(metadata),
        acknowledging(metadata, recorded(metadata.custom)),
    )
    assert decide.contains([0, 1])
    assert not acknowledge.contains([0, 1])
    assert acknowledge.contains([0, 2])
    assert acknowledge.contains([0, 1, 2])


def test_earlier_fragments_are_decided_by_the_plain_count() -> None:
    metadata = spanning("b0", "b1", "b2")
    first = Fragment(0, ("b0", "b1", "b2"))
    metadata = replace(metadata, fragments=(first, Fragment(5, ("b0", "b1", "s1"))))
    assert deciding(metadata, first).contains([0, 1])
    assert not deciding(metadata, metadata.fragments[1]).contains([0])


def test_regions_and_zones_are_counted_as_racks_are() -> None:
    of = {"b0": "/eu/r1", "b1": "/eu/r2", "b2": "/us/r1"}
    for fields, spans in (
        ({"racks": 2}, True),
        ({"regions": 2}, False),
        ({"zones": 2}, False),
        ({"racks": 2, "regions": 2}, False),
    ):
        record = AckDomains(**fields, of=of)
        sets = acknowledging(metadata_of(3, 3, 2), record)
        assert sets.contains([0, 1]) == spans
        assert sets.contains([0, 2])
    assert str(acknowledging(metadata_of(3, 3, 2), AckDomains(racks=3, regions=2))) == (
        "2 bookies in 3 racks and 2 regions"
    )


# --- the record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored", [b"", b"{", b"[]", b'{"racks":0}', b'{"racks":65}', b"x" * 70_000]
)
def test_a_record_that_nobody_can_read_is_none(stored: bytes) -> None:
    assert recorded({ACK_DOMAINS_KEY: stored}) is None
    metadata = replace(metadata_of(3, 3, 2), custom={ACK_DOMAINS_KEY: stored})
    assert deciding(metadata).contains([0, 1])


def test_a_location_that_is_none_is_not_known() -> None:
    stored = msgspec.json.encode({"racks": 2, "of": {"b0": "no slash", "b1": "/r1", "b2": "/r1"}})
    metadata = replace(metadata_of(3, 3, 2), custom={ACK_DOMAINS_KEY: stored})
    assert not acknowledging(metadata, recorded(metadata.custom)).contains([0, 1])
    assert deciding(metadata).contains([0, 1])


def test_rules_that_count_no_domains_record_nothing() -> None:
    for rule in (PlacementConfig(), PlacementConfig(policy="rack", enforce=True)):
        assert custom_of_new(rule, 3, RACKS) == {}
    assert custom_of_changed({"mine": b"1"}, None, ["b0"]) == {"mine": b"1"}


def test_only_where_members_are_is_a_writers_to_say() -> None:
    here, there = custom_of("b0", "b1"), custom_of("b0", "b2", "s1")
    assert is_moved(here, there)
    more = custom_of(
        "b0",
        rule=PlacementConfig(
            policy="rack", min_racks_per_write_quorum=3, min_racks_per_ack_quorum=3
        ),
    )
    assert not is_moved(here, more)
    assert not is_moved(here, {}) and not is_moved({}, here)


def test_more_racks_than_copies_are_refused() -> None:
    with pytest.raises(ConfigError, match="durable in 2 racks, and write_quorum=1 makes 1 copy"):
        custom_of_new(TWO_RACKS, 1, {})
