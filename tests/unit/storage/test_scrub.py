"""The scrub: finds what is damaged and nothing else, goes on where it was cut off, and forgets what is healed (F16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastbk.model.entry import mac_key
from fastbk.native.scrub import BAD_RANGES_MAX
from fastbk.storage import scrub as scrub_module
from fastbk.storage.digest_check import NO_TYPE, KnownDigest, KnownTypes
from fastbk.storage.directories import locations_path, log_path
from fastbk.storage.scrub import Damaged, Recheck, ScrubCycle
from fastbk.storage.scrub_state import (
    BAD_DIGESTS_MAX,
    NAME,
    RANGES_MAX,
    Quarantined,
    ScrubState,
    read_scrub_state,
    write_scrub_state,
)
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.hashes import DIGEST_CRC32, DIGEST_CRC32C, DIGEST_DUMMY, DIGEST_HMAC
from tests.fixtures.index_harness import OK
from tests.fixtures.storage_harness import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    Book,
    Life,
    digested,
    format_disk,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@pytest.fixture
def life() -> Iterator[Life]:
    with FakeDisk(seed=9) as fake:
        format_disk(fake)
        life = Life(fake, Book())
        life.fake = fake
        for n in range(30):
            for ledger_id in (1, 2, 3):
                life.add(ledger_id, n, data_of(ledger_id, n))
            life.settle()
            if n % 7 == 6:
                life.flush()
        life.flush()
        yield life
        life.close()


def data_of(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d." % (ledger_id, entry_id) * 200


def cycle(life: Life, place: tuple[int, int] = (0, 0), deleted: tuple[int, ...] = ()) -> ScrubCycle:
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
        deleted=deleted,
    )


def run(scrub: ScrubCycle, life: Life) -> list[Damaged]:
    while scrub.step(life.store):
        pass
    assert scrub.is_done
    assert not scrub.stopped, scrub.stopped
    return list(scrub.found)


def harm(life: Life, *victims: tuple[int, int]) -> None:
    """Flip a bit of each where it lies in an entry log; nothing of it is in memory any more."""
    disk = life.fake.disk()
    for log in life.checkpoint.manifest.logs:
        path = log_path(LEDGERS, log.log_id)
        raw = disk.read_file(path)
        for victim in victims:
            at = raw.find(data_of(*victim))
            if at >= 0:
                life.fake.corrupt(path, at + 30)
        life.store.forget_log(log.log_id)


def test_what_is_whole_gives_nothing_and_is_read_whole(life: Life) -> None:
    scrub = cycle(life)
    assert run(scrub, life) == []
    live = sum(log.live_bytes for log in life.checkpoint.manifest.logs)
    assert scrub.read_bytes >= live > 90 * 800
    assert scrub.runs == 15


def test_damaged_entries_are_named_alone(life: Life) -> None:
    harm(life, (1, 3), (1, 4), (2, 29))
    found = run(cycle(life), life)
    assert {(one.ledger_id, one.first, one.last) for one in found} == {(1, 3, 4), (2, 29, 29)}
    assert all("is damaged" in one.reason for one in found)


def test_nobody_minds_what_is_deleted(life: Life) -> None:
    harm(life, (1, 3), (2, 4))
    found = run(cycle(life, deleted=(1,)), life)
    assert [one.ledger_id for one in found] == [2]


def test_a_repair_ends_it(life: Life) -> None:
    harm(life, (1, 3), (2, 4))
    still = Recheck([(1, 3, 3), (2, 4, 4)])
    while still.step(life.store):
        pass
    assert not still.readable
    life.recovery_add(1, 3, data_of(1, 3))
    life.settle()
    life.flush()
    assert life.ask(life.harness.read(1, 3)).status == OK
    recheck = Recheck([(1, 3, 3), (2, 4, 4)])
    while recheck.step(life.store):
        pass
    assert list(recheck.readable) == [(1, 3, 3)]
    assert recheck.is_done
    assert [one.ledger_id for one in run(cycle(life), life)] == [2]


def test_it_goes_on_where_it_was_cut_off(life: Life) -> None:
    harm(life, (1, 3), (3, 20), (2, 29))
    whole = run(cycle(life), life)
    assert len(whole) == 3
    for steps in range(1, 12):
        first = cycle(life)
        for _ in range(steps):
            first.step(life.store)
        second = cycle(life, place=first.place)
        run(second, life)
        assert set(first.found) | set(second.found) == set(whole)


def test_damage_in_locations_and_lost_logs(life: Life) -> None:
    first = life.checkpoint.manifest.locations[0]
    path = locations_path(LEDGERS, first.file_id)
    life.fake.corrupt(path, 4096 + 5)
    life.fake.disk().unlink(log_path(LEDGERS, life.checkpoint.manifest.logs[0].log_id))
    scrub = cycle(life)
    while scrub.step(life.store):
        pass
    paths = {one.path for one in scrub.found}
    assert path in paths
    assert any("/logs/" in one for one in paths) or scrub.stopped


def test_what_vanishes_meanwhile_is_nobodys_damage(life: Life) -> None:
    for steps in range(1, 8):
        scrub = cycle(life)
        for _ in range(steps):
            scrub.step(life.store)
        if steps == 3:
            life.delete(2)
        life.add(9, steps, b"more")
        life.settle()
        life.flush()
        assert run(scrub, life) == []


def test_a_sealed_journal_file() -> None:
    """What it holds is in memory still: a flush in time saves it. The newest file is the journal's own affair."""
    with FakeDisk(seed=10) as fake:
        format_disk(fake)
        life = Life(fake, Book(), cache_bytes=1 << 20, flush_used_bytes=1 << 20)
        life.fake = fake
        for n in range(100):
            life.add(4, n, data_of(4, n) * 4)
            life.settle()
        assert life.checkpoint.manifest.mark == 0
        disk = fake.disk()
        names = sorted(name for name in disk.list(JOURNAL) if name.endswith(".journal"))
        holding = {
            entry_id: next(
                path
                for path in (f"{JOURNAL}/{name}" for name in names)
                if data_of(4, entry_id) in disk.read_file(path)
            )
            for entry_id in (99, 5)
        }
        assert holding[5] < holding[99]
        assert run(cycle(life), life) == []
        for entry_id, path in holding.items():
            fake.corrupt(path, disk.read_file(path).index(data_of(4, entry_id)) + 9)
            found = run(cycle(life), life)
            assert [one.path for one in found] == ([path] if entry_id == 5 else [])
        life.flush()
        assert run(cycle(life), life) == [], "no longer needed"
        life.close()


def ranges(count: int) -> list[Quarantined]:
    return [
        Quarantined(ledger_id=n, first=0, last=n, reason="because", found_s=n) for n in range(count)
    ]


def test_what_is_remembered(life: Life) -> None:
    disk = life.fake.disk()
    fresh = read_scrub_state(disk, LEDGERS, INCARNATION)
    assert fresh == ScrubState(incarnation=f"{INCARNATION:016x}")
    state = fresh.with_found(ranges(5))
    assert state.with_found([replace_reason(one) for one in ranges(5)]) == state
    write_scrub_state(disk, LEDGERS, state)
    assert read_scrub_state(disk, LEDGERS, INCARNATION) == state
    assert read_scrub_state(disk, LEDGERS, INCARNATION + 1).quarantined == ()
    assert state.without(ranges(2)).quarantined == tuple(ranges(5)[2:])
    life.fake.corrupt(f"{LEDGERS}/{NAME}", 40)
    assert read_scrub_state(disk, LEDGERS, INCARNATION) == fresh, "begun anew"


def replace_reason(one: Quarantined) -> Quarantined:
    return Quarantined(
        ledger_id=one.ledger_id, first=one.first, last=one.last, reason="another", found_s=99
    )


def test_the_list_is_bounded_and_says_so() -> None:
    state = ScrubState(incarnation="05").with_found(ranges(RANGES_MAX + 3))
    assert len(state.quarantined) == RANGES_MAX
    assert state.is_cut
    assert not state.without(state.quarantined).is_cut


# The scrub looks at entries' own digests where metadata says which they are, and counts where it
# does not.


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
def digests_life() -> Iterator[Life]:
    with FakeDisk(seed=9) as fake:
        format_disk(fake)
        digests_life = Life(fake, Book())
        digests_life.fake = fake
        for n in range(ENTRIES):
            for ledger_id in range(1, 7):
                kind = STORED.get(ledger_id, DIGEST_CRC32C)
                is_bad = (ledger_id, n) in BAD or ledger_id > 2
                text = b"%d/%d." % (ledger_id, n) * 100
                digests_life.add(ledger_id, n, digested(ledger_id, n, text, kind, is_bad=is_bad))
            digests_life.settle()
        digests_life.flush()
        yield digests_life
        digests_life.close()


def digests_cycle(
    digests_life: Life, digests: Source | None, place: tuple[int, int] = (0, 0)
) -> ScrubCycle:
    disk = digests_life.fake.disk()
    return ScrubCycle(
        lambda: digests_life.checkpoint.manifest,
        (),
        disk,
        LEDGERS,
        disk,
        JOURNAL,
        INCARNATION,
        place=place,
        digests=digests,
    )


def run_in_slices(scrub: ScrubCycle, digests_life: Life) -> int:
    slices = 0
    while scrub.step(digests_life.store):
        slices += 1
    assert scrub.is_done
    assert not scrub.stopped, scrub.stopped
    return slices


def test_bad_digests_are_named_and_the_rest_is_counted(digests_life: Life) -> None:
    scrub = digests_cycle(digests_life, Source(TYPES))
    run_in_slices(scrub, digests_life)
    assert list(scrub.bad_digests) == [(1, 3, 4), (2, 11, 11)]
    assert not scrub.found, "that is no damage of ours"
    count = scrub.digests
    assert (count.checked, count.bad) == (2 * ENTRIES, 3)
    assert count.keyed == ENTRIES
    assert count.unknown == 2 * ENTRIES
    assert count.unanswered == ENTRIES, "of ledger 6; of 5 metadata says that it is not there"


def test_a_mac_is_checked_where_metadata_has_the_password(digests_life: Life) -> None:
    scrub = digests_cycle(digests_life, Source(TYPES | {3: mac_key(b"")}))
    run_in_slices(scrub, digests_life)
    assert set(scrub.bad_digests) == {(1, 3, 4), (2, 11, 11), (3, 0, ENTRIES - 1)}, "3 has CRCs"
    assert (scrub.digests.checked, scrub.digests.keyed) == (3 * ENTRIES, 0)


def test_what_nobody_takes_in_time_is_only_counted(
    digests_life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_module, "BAD_DIGESTS_FOUND_MAX", 1)
    scrub = digests_cycle(digests_life, Source(TYPES))
    run_in_slices(scrub, digests_life)
    assert list(scrub.bad_digests) == [(1, 3, 4)]
    assert scrub.digests.bad == 3


def test_the_list_is_full_before_anything_is_left_out() -> None:
    assert scrub_module.BAD_DIGESTS_FOUND_MAX > BAD_DIGESTS_MAX
    assert BAD_RANGES_MAX > BAD_DIGESTS_MAX


def test_without_anybody_to_ask_nothing_is_looked_at(digests_life: Life) -> None:
    scrub = digests_cycle(digests_life, None)
    run_in_slices(scrub, digests_life)
    assert not scrub.bad_digests
    assert (scrub.digests.checked, scrub.digests.unknown) == (0, 0)


def test_it_waits_in_slices_and_finds_the_same(digests_life: Life) -> None:
    at_once = run_in_slices(digests_cycle(digests_life, Source(TYPES)), digests_life)
    scrub = digests_cycle(digests_life, Source(TYPES, waits=30))
    assert run_in_slices(scrub, digests_life) == at_once + 30, (
        "each wait lets others have the thread"
    )
    assert list(scrub.bad_digests) == [(1, 3, 4), (2, 11, 11)]


def test_a_cycle_that_goes_on_asks_anew(digests_life: Life) -> None:
    source = Source(TYPES)
    first = digests_cycle(digests_life, source)
    for _ in range(4):
        first.step(digests_life.store)
    second = digests_cycle(digests_life, source, place=first.place)
    run_in_slices(second, digests_life)
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
