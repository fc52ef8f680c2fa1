"""Entries that came with a wrong digest: counted, said within bounds, listed, and never quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from fastbk.server.configuration.settings import ScrubSettings
from fastbk.server.index import scrub
from fastbk.server.index.background import DirectBackground
from fastbk.server.index.scrub import Scrubber
from fastbk.storage.scrub_state import read_scrub_state
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.hashes import DIGEST_CRC32C
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


class Harness:
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
        scrubber.poll()


@pytest.fixture
def harness() -> Iterator[Harness]:
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
        yield Harness(fake, life)
        life.close()


def test_they_are_counted_listed_and_served_as_they_came(harness: Harness) -> None:
    scrubber = harness.scrubber()
    looks(scrubber)
    assert scrubber.state.cycles == 1
    state = read_scrub_state(harness.fake.disk(), LEDGERS, INCARNATION)
    assert [one.key for one in state.bad_digests] == [(2, n, n) for n in EVEN]
    assert state.quarantined == ()
    assert (harness.slot("SCRUB_DIGESTS"), harness.slot("SCRUB_BAD_DIGESTS")) == (
        2 * ENTRIES,
        len(EVEN),
    )
    assert harness.slot("BAD_DIGESTS") == len(EVEN)
    assert harness.slot("SCRUB_DAMAGED") == harness.slot("QUARANTINED") == 0
    assert harness.life.ask(harness.life.harness.read(2, 0)).status == OK
    assert harness.scrubber().state.bad_digests == state.bad_digests, "over a restart"


def test_the_log_has_a_limit_and_says_how_many_more_there_were(harness: Harness) -> None:
    scrubber = harness.scrubber()
    looks(scrubber)
    said = harness.said("scrub.bad_digest")
    assert len(said) == scrub.LOGGED_MAX
    first = said[0]["first_entry_id"]  # of the first run in the log
    assert (said[0]["ledger_id"], said[0]["last_entry_id"], first in EVEN) == (2, first, True)
    assert not harness.said("scrub.more_bad_digests")
    harness.now_s += scrub.LOG_WINDOW_S
    looks(scrubber)
    assert [one["ranges"] for one in harness.said("scrub.more_bad_digests")] == [
        len(EVEN) - scrub.LOGGED_MAX
    ]
    harness.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert len(harness.said("scrub.bad_digest")) == scrub.LOGGED_MAX, (
        "what is known is not said again"
    )
    assert harness.slot("SCRUB_BAD_DIGESTS") == 2 * len(EVEN)


def test_they_leave_the_list_when_a_whole_cycle_meets_them_no_more(harness: Harness) -> None:
    scrubber = harness.scrubber()
    looks(scrubber)
    harness.life.delete(2)
    harness.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert scrubber.state.bad_digests == ()
    assert harness.slot("BAD_DIGESTS") == 0


def test_nothing_is_forgotten_because_metadata_was_away(harness: Harness) -> None:
    scrubber = harness.scrubber()
    looks(scrubber)
    harness.source.types.clear()
    harness.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert scrubber.state.digests_unanswered == 2 * ENTRIES == harness.slot("SCRUB_DIGESTS_UNKNOWN")
    assert len(scrubber.state.bad_digests) == len(EVEN)
    harness.source.types = {1: DIGEST_CRC32C, 2: 0}
    harness.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 3
    assert scrubber.state.digests_unanswered == 0
    assert scrubber.state.bad_digests == (), "metadata has the ledger no more"
