"""The checker of `./dev compat PARTS=pulsar`: what it has to find, and what it must not complain of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compat.pulsar_checker import FAULTS_MAX, Reading, Sent, payload
from tests.compat.pulsar_rig import broker_settings, disk_bytes
from tests.compat.sections import BY_NAME_ONLY, chosen_sections

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KEYS = ("a", "b")


def sent(count: int = 5, failed: Iterable[int] = ()) -> Sent:
    """So many messages of each key, settled; those of `failed` without an acknowledgement."""
    made = Sent(KEYS)
    for _ in range(count):
        for key in KEYS:
            number = made.next(key)
            made.settle(key, number, is_acknowledged=number not in failed)
    return made


def read(reading: Reading, numbers: Iterable[int], key: str = "a") -> None:
    for number in numbers:
        reading.take(payload(key, number))


def verdict(
    numbers: Iterable[int], *, failed: Iterable[int] = (), is_session: bool = False
) -> list[str]:
    """What is said of a reader that gets these of key a, and all of key b."""
    reading = Reading("reader", sent(failed=failed), is_session=is_session)
    read(reading, range(5), "b")
    read(reading, numbers)
    return reading.verdict()


@pytest.mark.parametrize("is_session", [False, True])
def test_all_messages_in_order_are_right(is_session: bool) -> None:
    assert verdict(range(5), is_session=is_session) == []


@pytest.mark.parametrize(
    ("numbers", "lost"),
    [([0, 1, 3, 4], [2]), ([0, 1, 2, 3], [4]), ([1, 2, 3, 4], [0]), ([], [0, 1, 2, 3, 4])],
)
@pytest.mark.parametrize("is_session", [False, True])
def test_a_lost_message_is_found(numbers: list[int], lost: list[int], is_session: bool) -> None:
    expected = [f"reader: a:{number} was acknowledged, and is lost" for number in lost]
    assert verdict(numbers, is_session=is_session) == expected


def test_a_message_out_of_order_is_found() -> None:
    assert verdict([0, 2, 1, 3, 4]) == ["reader: a:1 comes for the first time behind a:2"]


def test_a_message_that_comes_again_is_right_for_a_consumer_under_faults() -> None:
    assert verdict([0, 1, 2, 1, 2, 3, 0, 4]) == []


@pytest.mark.parametrize("numbers", [[0, 1, 2, 2, 3, 4], [0, 1, 2, 1, 3, 4], [0, 1, 2, 3, 4, 0]])
def test_in_a_session_without_faults_nothing_comes_twice(numbers: list[int]) -> None:
    (fault,) = verdict(numbers, is_session=True)
    assert fault.endswith("twice, or out of order")


def test_between_sessions_what_was_not_acknowledged_may_come_again() -> None:
    reading = Reading("reader", sent(), is_session=True)
    read(reading, range(5), "b")
    read(reading, range(3))
    reading.begin_session()
    read(reading, [1, 2, 3, 4])
    assert (reading.verdict(), reading.repeated, reading.distinct) == ([], 2, 10)


def test_a_message_that_failed_may_be_there_or_not() -> None:
    assert verdict([0, 1, 3, 4], failed=[2]) == []
    assert verdict([0, 1, 2, 3, 4], failed=[2]) == []
    assert verdict([0, 1, 2, 3], failed=[4]) == []


def test_other_bytes_and_messages_that_nobody_sent_are_found() -> None:
    reading = Reading("reader", sent())
    reading.take(payload("a", 0)[:-1] + b"?")
    reading.take(payload("a", 5))
    reading.take(payload("c", 0))
    reading.take(b"something else")
    assert [fault.partition(" ")[2] for fault in reading.faults] == [
        "has other bytes than were sent",
        *["was never sent"] * 2,
        "else' was never sent",
    ]


def test_a_reader_is_complete_once_it_has_all_that_was_acknowledged() -> None:
    load = sent(failed=[3])
    reading = Reading("reader", load)
    read(reading, range(5), "b")
    read(reading, [0, 1, 2])
    assert not reading.is_complete
    read(reading, [4])
    assert reading.is_complete
    load.next("a")
    assert (load.under_way, load.failed, load.acknowledged) == (1, 2, 8)


def test_of_many_faults_the_first_are_told() -> None:
    reading = Reading("reader", sent(1000))
    assert len(reading.verdict()) == FAULTS_MAX


def test_parts_of_pulsar_run_only_by_name() -> None:
    names = {"pulsar", "pulsar-v3", "pulsar-mixed", "pulsar-kills"}
    assert names <= BY_NAME_ONLY
    assert not names & {name for name, _ in chosen_sections({})}
    for against in ("", "apache"):
        chosen = chosen_sections({"PARTS": "pulsar,pulsar-kills", "AGAINST": against})
        assert [name for name, _ in chosen] == ["pulsar", "pulsar-kills"]


def test_a_broker_writes_to_three_bookies_in_the_wire_version_that_is_asked_for(
    tmp_path: Path,
) -> None:
    for is_v2, word in ((True, "true"), (False, "false")):
        settings = broker_settings("zk:127.0.0.1:1/c", tmp_path / "offloaded", is_v2=is_v2)
        assert settings["bookkeeperUseV2WireProtocol"] == word
        assert [settings[f"managedLedgerDefault{name}"] for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")] == [
            3, 3, 2,
        ]  # fmt: skip


def test_what_deleted_files_took_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    (tmp_path / "current" / "0.log").write_bytes(b"x" * 100_000)
    before = disk_bytes([tmp_path])
    (tmp_path / "current" / "0.log").unlink()
    assert before - disk_bytes([tmp_path]) >= 100_000
