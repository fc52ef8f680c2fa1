"""The deletion log: durable lines, whole behind a cut one, and bounded."""

from __future__ import annotations

import pytest

from fastbk.storage import commits
from fastbk.storage.commits import DeletionLog
from fastbk.storage.directories import DELETION_LOG_NAME, DELETION_LOG_OLD_NAME
from tests.fixtures.fake_disk import FakeDisk

DIRECTORY = "/ledgers"


@pytest.fixture
def fake() -> FakeDisk:
    disk = FakeDisk(seed=1)
    disk.disk().make_directory(DIRECTORY)
    disk.disk().sync_directory("/")
    return disk


def test_a_long_one_is_set_aside_and_the_one_before_it_goes(
    fake: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "SIZE_BYTES_MAX", 1000)
    disk = fake.disk()
    log = DeletionLog(disk, DIRECTORY)
    for number in range(200):
        log.append({"ledgers": [number], "reason": "test"})
        sizes = [len(disk.read_file(f"{DIRECTORY}/{name}")) for name in disk.list(DIRECTORY)]
        assert max(sizes) <= 1100 and len(sizes) <= 2
    assert sorted(disk.list(DIRECTORY)) == [DELETION_LOG_OLD_NAME, DELETION_LOG_NAME]
    assert log.read()[-1] == {"ledgers": [199], "reason": "test"}


def test_power_cut_between_setting_aside_and_the_next_line_loses_no_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "SIZE_BYTES_MAX", 100)
    for nth in range(1, 12):
        fake = FakeDisk(seed=nth)
        fake.disk().make_directory(DIRECTORY)
        fake.disk().sync_directory("/")
        log = DeletionLog(fake.disk(), DIRECTORY)
        for number in range(4):
            log.append({"number": number, "padding": "x" * 30})
        fake.fault("cut", nth=nth)
        try:
            log.append({"number": 4})
            is_done = True
        except OSError:
            is_done = False
        fake.clear_faults()
        if not fake.is_off:
            fake.cut()
        fake.restart("random", nth)
        disk = fake.disk()
        raw = b""
        for name in (DELETION_LOG_OLD_NAME, DELETION_LOG_NAME):
            if name in disk.list(DIRECTORY):
                raw += disk.read_file(f"{DIRECTORY}/{name}")
        for number in range(2, 5 if is_done else 4):  # two lines fill a file
            assert b'"number":%d' % number in raw, f"cut at {nth}"
