"""When nobody has an entry: the newest metadata says who should, and only then is an absence proven (INV-Q2)."""

from __future__ import annotations

import pytest

from fastbk.errors import MetadataUnavailable, NoSuchLedger
from fastbk.model.ledger import Fragment
from fastbk.replication.actions import ReadMetadata, Sleep
from tests.fixtures.fake_quorum import Client, entry_of
from tests.unit.replication.test_reading import drain, reading_of, world_of


def test_copies_that_moved_are_found_by_the_newest_metadata() -> None:
    harness = world_of(10)
    client, reading = reading_of(harness, 9)
    for at in range(3):
        harness.bookies[f"s{at}"].entries = dict(harness.bookies[f"b{at}"].entries)
        harness.bookies[f"b{at}"].away = True
    harness.edit(fragments=(Fragment(0, ("s0", "s1", "s2")),))
    assert drain(client, reading) == list(range(10))
    assert reading.metadata == harness.metadata
    assert sum(isinstance(one, ReadMetadata) for one in client.log) == 1


def _until_metadata_is_asked(client: Client) -> ReadMetadata:
    client.run(until=lambda: any(isinstance(one, ReadMetadata) for one in client.pending.values()))
    return next(one for one in client.pending.values() if isinstance(one, ReadMetadata))


@pytest.mark.parametrize("is_back", [True, False])
def test_a_bookie_replaced_before_an_entry_came_proves_nothing_without_metadata(
    is_back: bool,
) -> None:
    """Qw = Qa: one "no" would be proof, and the old member says it in good faith."""
    harness = world_of(0, 2, 2, 2)
    client, reading = reading_of(harness, 0)
    for name in ("s0", "s1"):
        harness.bookies[name].add(entry_of(0))
    harness.edit(fragments=(Fragment(0, ("s0", "s1")),))
    client.complete(_until_metadata_is_asked(client), MetadataUnavailable("away"))
    if is_back:
        assert drain(client, reading) == [0]
        return
    while not reading.is_finished:
        client.complete(_until_metadata_is_asked(client), MetadataUnavailable("away"))
        if not reading.is_finished:
            client.run(until=lambda: not any(isinstance(o, Sleep) for o in client.pending.values()))
    with pytest.raises(MetadataUnavailable):
        reading.value()


def test_a_no_that_came_after_the_metadata_was_read_proves_nothing_yet() -> None:
    """Qw = Qa: a member that lost its disk was replaced while it was away, and comes back saying "no" in good faith."""
    harness = world_of(1, 2, 2, 2)
    client, reading = reading_of(harness, 0)
    for name in ("b0", "b1"):
        harness.bookies[name].away = True
    client.run(until=lambda: any(isinstance(one, Sleep) for one in client.pending.values()))
    for name in ("s0", "s1"):
        harness.bookies[name].add(entry_of(0))
    harness.edit(fragments=(Fragment(0, ("s0", "s1")),))
    harness.bookies["b0"].away = False
    harness.bookies["b0"].entries.clear()
    assert drain(client, reading) == [0]
    assert reading.error is None


def test_a_ledger_that_was_deleted_is_said_to_be() -> None:
    client, reading = reading_of(world_of(0), 0)
    client.complete(_until_metadata_is_asked(client), NoSuchLedger("deleted"))
    with pytest.raises(NoSuchLedger):
        reading.value()
