"""What a checkpoint does while its commits are held (`fastbk.server.index.process`)."""

from __future__ import annotations

from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.maintenance import MERGE_FILES_MIN
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import DIRECTORY, NO_ENTRY, OK, StoreHarness


def test_held_commits_count_in_this_life_alone() -> None:
    with FakeDisk() as fake:
        harness = StoreHarness(fake, CheckpointSettings(entry_log_size_bytes=1))
        harness.birth()
        life = harness.start()
        for i in range(MERGE_FILES_MIN - 1):
            harness.flush([(1, i), (2, i)])
        names = [
            sorted(life.disk.list(f"{DIRECTORY}/{folder}")) for folder in ("logs", "locations")
        ]
        life.checkpoint.commits.is_held = True
        harness.flush([(1, 100)])
        harness.merge_all()
        harness.delete(1)
        harness.compact()
        # Searched as ever, and what the manifest on disk names is still there (INV-X2).
        assert life.store.read(2, 0, 0).status == OK
        assert life.store.read(1, 100, 100).status == NO_ENTRY
        assert len(life.checkpoint.manifest.logs) < MERGE_FILES_MIN
        for folder, had in zip(("logs", "locations"), names, strict=True):
            assert set(had) <= set(life.disk.list(f"{DIRECTORY}/{folder}"))
        harness.committed, harness.deleted = MERGE_FILES_MIN - 1, set()
        harness.restart()
        assert harness.life is not None
        assert harness.life.checkpoint.manifest.mark == MERGE_FILES_MIN - 1
        harness.check(never=[(1, 100)])
        harness.flush([])
        harness.check()
        harness.check_files()
        harness.end()
