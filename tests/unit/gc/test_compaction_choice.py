"""Which logs are compacted: the emptiest first, what fits, and on a full disk the cheapest."""

from __future__ import annotations

import random

import msgspec
import pytest

from fastbk.gc.compaction_choice import (
    Choice,
    choose,
    choose_urgently,
    dead_logs,
    live_ratio,
    room_bytes,
)
from fastbk.server.gc_messages import Answer, LogUsage, Space
from fastbk.storage.directories import JOURNAL_LOG
from fastbk.storage.manifest import JOURNAL

ROOM = 1 << 40


def log(log_id: int, live: int, durable: int = 100, *, sealed: bool = True) -> LogUsage:
    return LogUsage(log_id=log_id, durable_bytes=durable, live_bytes=live, sealed=sealed)


def test_the_emptiest_go_first_and_only_those_below_the_ratio() -> None:
    logs = [
        log(1, 50),
        log(2, 10),
        log(3, 0),
        log(4, 30),
        log(5, 5, sealed=False),
        log(6, 20, 1000),
    ]
    assert choose(logs, 0.5, ROOM, ROOM, 10) == Choice((6, 2, 4), 60, 1200)
    assert choose(logs, 0.2, ROOM, ROOM, 10).log_ids == (6, 2)
    assert choose(logs, 0.02, ROOM, ROOM, 10) == Choice()
    assert choose(logs, 0.5, ROOM, ROOM, 1).log_ids == (6,)


def test_journal_files_are_chosen_like_other_logs() -> None:
    """INV-X5: "log" includes them; their ids have bit 63."""
    journal_file = LogUsage(
        log_id=JOURNAL_LOG | 7, durable_bytes=100, live_bytes=10, sealed=True, kind=JOURNAL
    )
    current = msgspec.structs.replace(journal_file, log_id=JOURNAL_LOG | 8, sealed=False)
    logs = [log(1, 30), journal_file, current]
    assert choose(logs, 0.5, ROOM, ROOM, 10).log_ids == (journal_file.log_id, 1)
    gone = msgspec.structs.replace(journal_file, live_bytes=0)
    assert dead_logs([gone, current]) == [journal_file.log_id]
    said = Answer(type="usage", number=1, logs=logs, cursor=current.log_id + 1)
    assert msgspec.json.decode(msgspec.json.encode(said), type=Answer) == said


def test_nothing_is_begun_that_does_not_fit_above_the_floor() -> None:
    logs = [log(1, 30), log(2, 10, 20), log(3, 15, 20)]
    assert choose(logs, 0.9, 29, ROOM, 10).log_ids == (2, 3), (
        "a log that is too large is passed over"
    )
    assert not choose(logs, 0.9, 9, ROOM, 10)
    assert room_bytes(Space(free_bytes=10, total_bytes=20, floor_bytes=12, is_full=True)) == 0


def test_one_go_is_bounded_but_for_a_single_log() -> None:
    logs = [log(n, 40) for n in range(5)]
    assert choose(logs, 0.5, ROOM, 100, 10).live_bytes == 80
    assert choose(logs, 0.5, ROOM, 10, 10).live_bytes == 40


def test_a_full_disk_takes_the_cheapest_that_wins_anything_back() -> None:
    logs = [log(1, 90, 1000), log(2, 40, 50), log(3, 30, 30), log(4, 0)]
    assert choose_urgently(logs, 50, 9).log_ids == (2,), "more than half of the room, but alone"
    assert choose_urgently(logs, 1000, 9).log_ids == (2, 1)
    assert choose_urgently(logs, 1000, 1).log_ids == (2,)
    assert choose_urgently(logs, 250, 9).log_ids == (2,), "not all of the room"
    assert choose_urgently([log(1, 90, 1000)], 50, 9) == Choice()
    assert choose_urgently([log(3, 30, 30)], 50, 9) == Choice(), "nothing would be won"


def test_dead_logs_need_no_compaction() -> None:
    assert dead_logs([log(1, 0), log(2, 1), log(3, 0, sealed=False), log(4, 0, 0)]) == [1, 4]
    assert live_ratio(log(1, 0, 0)) == 0.0
    assert live_ratio(log(1, 200, 100)) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_what_holds_for_every_choice(seed: int) -> None:
    random.seed(seed)
    for _ in range(50):
        logs = [
            log(n, random.randrange(0, 110), random.randrange(0, 101), sealed=random.random() < 0.8)
            for n in range(random.randrange(12))
        ]
        room, most, ratio = random.randrange(300), random.randrange(1, 300), random.random()
        by_id = {each.log_id: each for each in logs}
        for choice in (choose(logs, ratio, room, most, 4), choose_urgently(logs, room, 4)):
            chosen = [by_id[log_id] for log_id in choice.log_ids]
            assert all(each.sealed and each.live_bytes > 0 for each in chosen)
            assert choice.live_bytes == sum(each.live_bytes for each in chosen) <= room
            assert len(set(choice.log_ids)) == len(chosen) <= 4
            assert (
                choice.freed_bytes >= 0
                or not chosen
                or any(each.live_bytes > each.durable_bytes for each in chosen)
            )
