"""What a checkpoint does while its commits are held (`fastbk.server.index.hold_mark`)."""

from __future__ import annotations

from fastbk.native.fake_disk import FakeDisk
from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.locations_files import MERGE_FILES_MIN
from tests.fixtures.store_harness import DIRECTORY, NO_ENTRY, OK, World


def test_held_commits_count_in_this_life_alone() -> None:
    with FakeDisk() as fake:
        world = World(fake, CheckpointSettings(entry_log_size_bytes=1))
        world.birth()
        life = world.start()
        for i in range(MERGE_FILES_MIN - 1):
            world.flush([(1, i), (2, i)])
        names = [sorted(life.disk.list(f"{DIRECTORY}/{folder}")) for folder in ("logs", "locations")]
        life.checkpoint.commits.is_held = True
        world.flush([(1, 100)])
        world.merge_all()
        world.delete(1)
        world.compact()
        # Searched as ever, and what the manifest on disk names is still there (INV-X2).
        assert life.store.read(2, 0, 0).status == OK
        assert life.store.read(1, 100, 100).status == NO_ENTRY
        assert len(life.checkpoint.manifest.logs) < MERGE_FILES_MIN
        for folder, had in zip(("logs", "locations"), names, strict=True):
            assert set(had) <= set(life.disk.list(f"{DIRECTORY}/{folder}"))
        world.committed, world.deleted = MERGE_FILES_MIN - 1, set()
        world.restart()
        assert world.life is not None
        assert world.life.checkpoint.manifest.mark == MERGE_FILES_MIN - 1
        world.check(never=[(1, 100)])
        world.flush([])
        world.check()
        world.check_files()
        world.end()
