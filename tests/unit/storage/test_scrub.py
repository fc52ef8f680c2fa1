"""The scrub: finds what is damaged and nothing else, goes on where it was cut off, and forgets what is healed (F16)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.storage.directories import locations_path, log_path
from fastbk.storage.scrub import Damaged, Recheck, ScrubCycle
from fastbk.storage.scrub_state import (
    NAME,
    RANGES_MAX,
    Quarantined,
    ScrubState,
    read_scrub_state,
    write_scrub_state,
)
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import OK
from tests.fixtures.storage_harness import INCARNATION, JOURNAL, LEDGERS, Book, Life, format_disk


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
