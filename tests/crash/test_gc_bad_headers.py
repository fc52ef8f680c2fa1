"""P22: a log whose header is damaged is no log in which nothing lives.

Apache's gc took what a header's summary said for the truth and deleted live logs (#4607). Here a log's header says
nothing about what lives in it: locations do, and a log goes only when none of these is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from fastbk.errors import Error
from fastbk.gc.compaction_choice import dead_logs
from fastbk.server.gc_messages import LogUsage
from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.directories import log_path
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import CANNOT_TELL, DIRECTORY, OK, Life, StoreHarness, entry_bytes

HEADER_BYTES = 4096
LOGS = (1, 2, 3)


@pytest.fixture
def world() -> Iterator[StoreHarness]:
    """Three logs, each with entries of ledgers 1 and 2; one that is not sealed."""
    with FakeDisk() as fake:
        made = StoreHarness(fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=1))
        made.birth()
        made.start()
        for part in range(len(LOGS)):
            made.flush([(ledger_id, 10 * part + i) for ledger_id in (1, 2) for i in range(10)])
        made.flush([(3, 0)])
        yield made
        made.end()


def usage(life: Life) -> list[LogUsage]:
    """What gc is told."""
    return [
        LogUsage(
            log_id=log.log_id,
            durable_bytes=log.durable_bytes,
            live_bytes=log.live_bytes,
            sealed=log.sealed,
        )
        for log in life.checkpoint.manifest.logs
    ]


def check_kept(life: Life) -> None:
    """Whatever could not be read is there as ever, or "cannot tell": never "no such entry", never other bytes."""
    for entry_id in range(10 * len(LOGS)):
        found = life.store.read(1, entry_id, entry_id)
        assert found.status in (OK, CANNOT_TELL), entry_id
        assert found.status == CANNOT_TELL or found.entry == entry_bytes(1, entry_id)


@pytest.mark.parametrize("at", [0, 7, 8, 12, 16, 24, 40, 63, 64, 100, HEADER_BYTES - 1, None])
def test_4607_a_damaged_log_header_lets_nothing_go_that_lives(
    world: StoreHarness, at: int | None
) -> None:
    life = world.life
    assert life is not None
    for log_id in LOGS:
        path = log_path(DIRECTORY, log_id)
        if at is None:
            world.fake.corrupt(path, 0, HEADER_BYTES)
        else:
            world.fake.corrupt(path, at)
        life.store.forget_log(log_id)
    world.delete(2)
    world.recount()
    assert dead_logs(usage(life)) == []
    assert all(log.live_bytes > 0 for log in life.checkpoint.manifest.logs)
    names = {PurePosixPath(log_path(DIRECTORY, log_id)).name for log_id in LOGS}
    assert names <= set(life.disk.list(f"{DIRECTORY}/logs"))
    check_kept(life)
    try:
        world.compact(*LOGS)
    except Error:
        assert names <= set(life.disk.list(f"{DIRECTORY}/logs"))
    check_kept(life)
    world.restart()
    assert world.life is not None
    check_kept(world.life)
