"""What dead entry logs give back counts once they are gone, and a log that can't be unlinked is a failure."""

from __future__ import annotations

import errno

from fastbk.storage.checkpoint import Checkpoint, CheckpointSettings
from tests.fixtures import upkeep_at_once
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import StoreHarness


def test_a_log_that_stays_counts_when_the_next_commit_has_unlinked_it() -> None:
    with FakeDisk() as fake:
        harness = StoreHarness(fake, CheckpointSettings(entry_log_size_bytes=1))
        harness.birth()
        life = harness.start()
        harness.flush([(1, 0)])
        harness.flush([(2, 0)])
        sizes = {log.log_id: log.durable_bytes for log in life.checkpoint.manifest.logs}
        change = upkeep_at_once.recount(life.checkpoint, life.store, [1])
        assert change is not None
        Checkpoint.install(life.store, change)
        reclaimed = life.checkpoint.commits.reclaimed
        fake.fault("fail", "unlink", errno=errno.EIO)
        assert life.checkpoint.clean_up(life.store, change)
        assert (reclaimed.freed_bytes, reclaimed.failures) == (0, 1)
        harness.maybe_deleted = {1}
        harness.flush([(3, 0)])
        assert (reclaimed.freed_bytes, reclaimed.failures) == (sizes[1], 1)
        harness.end()
