"""Entries that came with a wrong digest: counted, said within bounds, listed, and never quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from fastbk.native.fake_disk import FakeDisk
from fastbk.native.hashes import DIGEST_CRC32C
from fastbk.server.configuration.settings import ScrubSettings
from fastbk.server.index import scrub
from fastbk.server.index.background import DirectBackground
from fastbk.server.index.scrub import Scrubber
from fastbk.storage.scrub_state import read_scrub_state
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

pytestmark = pytest.mark.fast

WEEK_S = 7 * 86_400.0
ENTRIES = 3 * scrub.LOGGED_MAX
EVEN = range(0, ENTRIES, 2)


class Source:
    """Metadata that knows it at once, or never."""

    def __init__(self) -> None:
        self.types: dict[int, int] = {1: DIGEST_CRC32C, 2: DIGEST_CRC32C}

    def begin_cycle(self) -> None:
        pass

    def want(self, _: Iterable[int]) -> bool:
        return False

    def wait(self) -> None:
        raise AssertionError("nothing to wait for")

    def known(self, ledger_ids: Iterable[int]) -> dict[int, int]:
        return {one: self.types[one] for one in ledger_ids if one in self.types}


class Rig:
    def __init__(self, fake: FakeDisk, life: Life) -> None:
        self.fake = fake
        self.life = life
        self.now_s = 1e9
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.source = Source()
        self.counted: dict[str, int] = {}
        count = life.index.count

        def note(name: str, amount: int = 1) -> None:
            self.counted[name] = (self.counted.get(name, 0) + amount) % (1 << 64)
            count(name, amount)

        life.index.count = note

    def scrubber(self) -> Scrubber:
        disk = self.fake.disk()
        return Scrubber(
            self.life.index,
            self.life.checkpoint,
            DirectBackground(self.life.store, lambda *_: None),
            ScrubSettings(),
            disk,
            LEDGERS,
            disk,
            JOURNAL,
            INCARNATION,
            log=lambda event, **values: self.lines.append((event, values)),
            digests=self.source,
            clock_s=lambda: self.now_s,
            monotonic_s=lambda: self.now_s,
        )

    def said(self, event: str) -> list[dict[str, Any]]:
        return [values for name, values in self.lines if name == event]

    def slot(self, name: str) -> int:
        return self.counted.get(f"FBK_C_INDEX_{name}", 0)


def looks(scrubber: Scrubber, times: int = 4) -> None:
    for _ in range(times):
        scrubber.look()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Ledger 1 came well, every second entry of ledger 2 did not."""
    with FakeDisk(seed=12) as fake:
        format_disk(fake)
        life = Life(fake, Book())
        for n in range(ENTRIES):
            for ledger_id in (1, 2):
                is_bad = ledger_id == 2 and n in EVEN
                data = digested(ledger_id, n, b"entry %d." % n * 20, DIGEST_CRC32C, is_bad=is_bad)
                life.add(ledger_id, n, data)
            life.settle()
        life.flush()
        yield Rig(fake, life)
        life.close()


def test_they_are_counted_listed_and_served_as_they_came(rig: Rig) -> None:
    scrubber = rig.scrubber()
    looks(scrubber)
    assert scrubber.state.cycles == 1
    state = read_scrub_state(rig.fake.disk(), LEDGERS, INCARNATION)
    assert [one.key for one in state.bad_digests] == [(2, n, n) for n in EVEN]
    assert state.quarantined == ()
    assert (rig.slot("SCRUB_DIGESTS"), rig.slot("SCRUB_BAD_DIGESTS")) == (2 * ENTRIES, len(EVEN))
    assert rig.slot("BAD_DIGESTS") == len(EVEN)
    assert rig.slot("SCRUB_DAMAGED") == rig.slot("QUARANTINED") == 0
    assert rig.life.ask(rig.life.rig.read(2, 0)).status == OK
    assert rig.scrubber().state.bad_digests == state.bad_digests, "over a restart"


def test_the_log_has_a_limit_and_says_how_many_more_there_were(rig: Rig) -> None:
    scrubber = rig.scrubber()
    looks(scrubber)
    said = rig.said("scrub.bad_digest")
    assert len(said) == scrub.LOGGED_MAX
    assert (said[0]["ledger_id"], said[0]["first_entry_id"], said[0]["last_entry_id"]) == (2, 0, 0)
    assert not rig.said("scrub.more_bad_digests")
    rig.now_s += scrub.LOG_WINDOW_S
    looks(scrubber)
    assert [one["ranges"] for one in rig.said("scrub.more_bad_digests")] == [
        len(EVEN) - scrub.LOGGED_MAX
    ]
    rig.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert len(rig.said("scrub.bad_digest")) == scrub.LOGGED_MAX, "what is known is not said again"
    assert rig.slot("SCRUB_BAD_DIGESTS") == 2 * len(EVEN)


def test_they_leave_the_list_when_a_whole_cycle_meets_them_no_more(rig: Rig) -> None:
    scrubber = rig.scrubber()
    looks(scrubber)
    rig.life.delete(2)
    rig.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert scrubber.state.bad_digests == ()
    assert rig.slot("BAD_DIGESTS") == 0


def test_nothing_is_forgotten_because_metadata_was_away(rig: Rig) -> None:
    scrubber = rig.scrubber()
    looks(scrubber)
    rig.source.types.clear()
    rig.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert scrubber.state.digests_unanswered == 2 * ENTRIES == rig.slot("SCRUB_DIGESTS_UNKNOWN")
    assert len(scrubber.state.bad_digests) == len(EVEN)
    rig.source.types = {1: DIGEST_CRC32C, 2: 0}
    rig.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 3
    assert scrubber.state.digests_unanswered == 0
    assert scrubber.state.bad_digests == (), "metadata has the ledger no more"
