"""A bookie whose disk fills under Java's client: a small file system of its own, mounted for this part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.java_cells import Answer, run_cells
from tests.compat.results import Result
from tests.compat.rig import Rig
from tests.fixtures.mounts import small_disk

DISK_SIZE_BYTES = 256 << 20
SETTINGS: dict[str, dict[str, object]] = {
    "limits": {"frame_size_max": "1MiB", "add_ring_size": "4MiB", "reply_ring_size": "4MiB"},
    "journal": {"limit": "32MiB", "file_size": "16MiB", "first_file_size": "16MiB"},
    "ledgers": {"write_cache_size": "8MiB", "flush_interval": "1s", "entry_log_size": "16MiB"},
    "disk": {"check_interval": "200ms", "near_check_interval": "50ms"},
}
"""So that a flush of a full journal may need 72 MiB: repairs end below 90 MiB, adds below 108 MiB."""
LEFT_BYTES = 100 << 20
"""Of the disk when it is full: repairs still go."""


def disk_full_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Java's client on four bookies of ours, one of which has its ledgers on a disk that fills."""
    column = "java v3 > ours"
    try:
        with (
            small_disk(rig.folder, "small", DISK_SIZE_BYTES) as disk,
            rig.cluster(ours=4, our_settings=SETTINGS, is_started=False) as cluster,
        ):
            assert cluster.ours is not None
            bookie = cluster.ours.bookies[0]
            bookie.sections["ledgers"]["directory"] = str(disk.path / "ledgers")
            cluster.start()
            answers: dict[str, Answer] = {
                "disk-bookie": lambda: cluster.members[0].bookie_id,
                "disk-fill": lambda: disk.fill(LEFT_BYTES),
                "disk-empty": disk.empty,
            }
            arguments = [cluster.metadata_uri, "v3", "disk-full", *only]
            try:
                yield from run_cells(column, cluster, rig.programs, arguments, more_answers=answers)
            finally:
                cluster.stop()
    except pytest.skip.Exception as reason:
        yield Result(column, "disk-full-writer-moves", "skip", 0.0, str(reason))
