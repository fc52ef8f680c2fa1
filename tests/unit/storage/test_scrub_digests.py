"""The scrub looks at entries' own digests where metadata says which they are, and counts where it does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pytest

from fastbk.model.entry import mac_key
from fastbk.native.scrub import BAD_RANGES_MAX
from fastbk.storage import scrub as scrub_module
from fastbk.storage.digest_check import NO_TYPE, KnownDigest, KnownTypes
from fastbk.storage.scrub import ScrubCycle
from fastbk.storage.scrub_state import BAD_DIGESTS_MAX, ScrubState
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.hashes import DIGEST_CRC32, DIGEST_CRC32C, DIGEST_DUMMY, DIGEST_HMAC
from tests.fixtures.storage_harness import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    Book,
    Life,
    digested,
    format_disk,
)

TYPES = {1: DIGEST_CRC32C, 2: DIGEST_CRC32, 3: DIGEST_HMAC, 4: DIGEST_DUMMY, 5: NO_TYPE}
STORED = {1: DIGEST_CRC32C, 2: DIGEST_CRC32}
ENTRIES = 12
BAD = {(1, 3), (1, 4), (2, 11)}


class Source:
    """Metadata: what it would say, and after how many waits it says it."""

    def __init__(self, types: Mapping[int, KnownDigest], waits: int = 0) -> None:
        self.types = types
        self.waits = waits
        self.left = waits
        self.said: dict[int, KnownDigest] = {}
        self.cycles = 0

    def begin_cycle(self) -> None:
        self.cycles += 1

    def want(self, ledger_ids: Iterable[int]) -> bool:
        missing = [one for one in ledger_ids if one in self.types and one not in self.said]
        if missing and not self.left:
            self.said |= {one: self.types[one] for one in missing}
            self.left = self.waits
            return False
        return bool(missing)

    def wait(self) -> None:
        self.left -= 1

    def known(self, ledger_ids: Iterable[int]) -> dict[int, KnownDigest]:
        return {one: self.said[one] for one in ledger_ids if one in self.said}


@pytest.fixture
def life() -> Iterator[Life]:
    with FakeDisk(seed=9) as fake:
        format_disk(fake)
        life = Life(fake, Book())
        life.fake = fake
        for n in range(ENTRIES):
            for ledger_id in range(1, 7):
                kind = STORED.get(ledger_id, DIGEST_CRC32C)
                is_bad = (ledger_id, n) in BAD or ledger_id > 2
                text = b"%d/%d." % (ledger_id, n) * 100
                life.add(ledger_id, n, digested(ledger_id, n, text, kind, is_bad=is_bad))
            life.settle()
        life.flush()
        yield life
        life.close()


def cycle(life: Life, digests: Source | None, place: tuple[int, int] = (0, 0)) -> ScrubCycle:
    disk = life.fake.disk()
    return ScrubCycle(
        lambda: life.checkpoint.manifest,
        (),
        disk,
        LEDGERS,
        disk,
        JOURNAL,
        INCARNATION,
        place=place,
        digests=digests,
    )


def run(scrub: ScrubCycle, life: Life) -> int:
    slices = 0
    while scrub.step(life.store):
        slices += 1
    assert scrub.is_done
    assert not scrub.stopped, scrub.stopped
    return slices


def test_bad_digests_are_named_and_the_rest_is_counted(life: Life) -> None:
    scrub = cycle(life, Source(TYPES))
    run(scrub, life)
    assert list(scrub.bad_digests) == [(1, 3, 4), (2, 11, 11)]
    assert not scrub.found, "that is no damage of ours"
    count = scrub.digests
    assert (count.checked, count.bad) == (2 * ENTRIES, 3)
    assert count.keyed == ENTRIES
    assert count.unknown == 2 * ENTRIES
    assert count.unanswered == ENTRIES, "of ledger 6; of 5 metadata says that it is not there"


def test_a_mac_is_checked_where_metadata_has_the_password(life: Life) -> None:
    scrub = cycle(life, Source(TYPES | {3: mac_key(b"")}))
    run(scrub, life)
    assert set(scrub.bad_digests) == {(1, 3, 4), (2, 11, 11), (3, 0, ENTRIES - 1)}, "3 has CRCs"
    assert (scrub.digests.checked, scrub.digests.keyed) == (3 * ENTRIES, 0)


def test_what_nobody_takes_in_time_is_only_counted(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_module, "BAD_DIGESTS_FOUND_MAX", 1)
    scrub = cycle(life, Source(TYPES))
    run(scrub, life)
    assert list(scrub.bad_digests) == [(1, 3, 4)]
    assert scrub.digests.bad == 3


def test_the_list_is_full_before_anything_is_left_out() -> None:
    assert scrub_module.BAD_DIGESTS_FOUND_MAX > BAD_DIGESTS_MAX
    assert BAD_RANGES_MAX > BAD_DIGESTS_MAX


def test_without_anybody_to_ask_nothing_is_looked_at(life: Life) -> None:
    scrub = cycle(life, None)
    run(scrub, life)
    assert not scrub.bad_digests
    assert (scrub.digests.checked, scrub.digests.unknown) == (0, 0)


def test_it_waits_in_slices_and_finds_the_same(life: Life) -> None:
    at_once = run(cycle(life, Source(TYPES)), life)
    scrub = cycle(life, Source(TYPES, waits=30))
    assert run(scrub, life) == at_once + 30, "each wait lets others have the thread"
    assert list(scrub.bad_digests) == [(1, 3, 4), (2, 11, 11)]


def test_a_cycle_that_goes_on_asks_anew(life: Life) -> None:
    source = Source(TYPES)
    first = cycle(life, source)
    for _ in range(4):
        first.step(life.store)
    second = cycle(life, source, place=first.place)
    run(second, life)
    found = set(first.bad_digests) | set(second.bad_digests)
    assert found == {(1, 3, 4), (2, 11, 11)}
    assert source.cycles == 2


def test_what_is_remembered_of_them() -> None:
    fresh = ScrubState(incarnation="05", began_s=100)
    state = fresh.with_bad_digests([(2, 7, 7), (1, 3, 4)], 101)
    assert [one.key for one in state.bad_digests] == [(1, 3, 4), (2, 7, 7)]
    again = state.without_unseen(()).with_bad_digests([(1, 3, 4)], 205)
    assert [(one.found_s, one.seen_s) for one in again.bad_digests] == [(101, 205), (101, 101)]
    later = ScrubState(**{**fields(again), "began_s": 200})
    assert [one.key for one in later.without_unseen(()).bad_digests] == [(1, 3, 4)]
    assert not later.without_unseen({1}).bad_digests
    unsure = ScrubState(**{**fields(later), "digests_unanswered": 1})
    assert [one.key for one in unsure.without_unseen({2}).bad_digests] == [(1, 3, 4)]
    assert len(unsure.without_unseen(()).bad_digests) == 2, "not everything was looked at"


def fields(state: ScrubState) -> dict[str, object]:
    return {name: getattr(state, name) for name in state.__struct_fields__}


def test_the_list_of_them_is_bounded_and_says_so() -> None:
    many = [(n, 0, 0) for n in range(BAD_DIGESTS_MAX + 3)]
    state = ScrubState(incarnation="05", began_s=100).with_bad_digests(many, 100)
    assert len(state.bad_digests) == BAD_DIGESTS_MAX
    assert state.is_bad_digests_cut
    assert not state.without_unseen({1}).is_bad_digests_cut


def test_known_types_are_bounded() -> None:
    known = KnownTypes(3)
    for ledger_id in (1, 2, 3):
        known.put(ledger_id, 3)
    assert known.get(1) == 3
    known.put(4, NO_TYPE)
    assert [known.get(one) for one in (1, 2, 3, 4)] == [3, None, 3, NO_TYPE]
    assert len(known) == 3
