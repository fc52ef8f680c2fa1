"""Power cuts under a real bookie: all its processes, on a file system whose device is recorded."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from fastbk.native.disk import Disk
from fastbk.storage.identity import read_identity
from fastbk.testing import LocalCluster
from fastbk.units import KIB, MIB
from tests.fixtures.wait import wait_until_async
from tests.rigs import mounts
from tests.rigs.adopting import adopted_files, adopting
from tests.rigs.block_log import BlockLog, copy_sparse
from tests.rigs.judge import Key, Known
from tests.rigs.kill_points import ENTRY_BYTES_MAX, SETTINGS
from tests.rigs.load import Load
from tests.rigs.recording import Recording
from tests.rigs.timed import TimedBook, Told

SIZE_BYTES = 256 * MIB
DATA_AT = 32 + 4
"""Behind an entry's header and its CRC32C."""
LOAD_BYTES = 3 * MIB
BULK_BYTES = 24 * MIB
BULK_ENTRY_BYTES_MAX = 240 * KIB
"""Batches become so large that journal files are only allocated (INV-J5)."""
WRITERS = 2
ENTRIES_MAX = 300
WAIT_S = 40.0


class TimedLoad(Load):
    """Load whose acknowledgements and deletions have times: the length of the device's log."""

    def __init__(self, uri: str, recorder: mounts.Recorder, entry_bytes_max: int) -> None:
        super().__init__(uri, entry_bytes_max)
        self.book = TimedBook(sent=self.sent)
        self._recorder = recorder

    def _note(self, key: Key) -> None:
        super()._note(key)
        self.book.acked[key] = self.acked[key]
        self.book.told[key] = Told(1, -1, self._recorder.position())

    async def delete_some(self, rng: random.Random) -> None:
        """Delete a ledger; it may be gone from now on."""
        ledger_id = rng.choice(self.ledgers())
        self.book.deleted_at[ledger_id] = self._recorder.position()
        async with self.client() as client:
            await client.delete_ledger(ledger_id)
        self.deleted.add(ledger_id)


async def live(
    folder: Path, recorder: mounts.Recorder, seed: int, *, is_bulky: bool
) -> tuple[TimedBook, int]:
    """Load, a kill, load, a clean stop. Returns what clients know, and when the last start was over."""
    rng = random.Random(seed)
    started = 0
    load_bytes = BULK_BYTES if is_bulky else LOAD_BYTES
    entry_bytes_max = BULK_ENTRY_BYTES_MAX if is_bulky else ENTRY_BYTES_MAX
    async with LocalCluster(1, data=folder / "cluster", settings=SETTINGS) as cluster:
        load = TimedLoad(cluster.metadata_uri, recorder, entry_bytes_max)
        writers = [asyncio.ensure_future(load.write_on(48, ENTRIES_MAX)) for _ in range(WRITERS)]
        try:
            for turn in range(2):
                wanted = load.acked_bytes + rng.randrange(load_bytes // 4, load_bytes)
                await wait_until_async(
                    lambda wanted=wanted: load.acked_bytes >= wanted, "load", WAIT_S
                )  # type: ignore[misc]
                await load.delete_some(rng)
                if turn == 0:
                    await cluster.kill_async(0)
                    await cluster.start_bookie_async(0)
                    started = recorder.position()
        finally:
            load.stop()
            await asyncio.gather(*writers)
    return load.book, started


def record_bookie(
    kind: str, seed: int, folder: Path, *, is_bulky: bool, adopts: bool = False
) -> Recording:
    """Let a real bookie be born on a fresh file system, then record what it does under load.

    `is_bulky`: under much load of large entries. `adopts`: its journal files stay as logs.
    """
    base, written = folder / "base", folder / "written"
    place = folder / "cluster" / "bookie-1"
    place.mkdir(parents=True)
    mounts.make_file_system(base, kind, SIZE_BYTES)
    with mounts.mounted(base, place, kind):
        with LocalCluster(1, data=folder / "cluster", settings=SETTINGS):
            pass
        disk = Disk(place, "plain")
        incarnation = read_identity(disk, str(place / "ledgers")).incarnation_number
        disk.destroy()
    copy_sparse(base, written)
    recorder = mounts.Recorder(written, folder / "recorder")
    try:
        mounts.mount(recorder.device, place, kind)
        first = recorder.position()
        try:
            with adopting(adopts):
                book, started = asyncio.run(live(folder, recorder, seed, is_bulky=is_bulky))
            adopted = adopted_files(place)
        finally:
            mounts.unmount(place)
    finally:
        recorder.close()
    log = BlockLog(recorder.log)
    return Recording(
        base,
        log,
        book,
        log.index_of(first) + 1,
        incarnation,
        DATA_AT,
        log.index_of(started),
        adopts,
        adopted,
    )


async def read_from(folder: Path, known: Known) -> list[str]:
    """Start the bookie again, on whatever is mounted in its place, and compare what clients read."""
    async with LocalCluster(1, data=folder / "cluster", settings=SETTINGS) as cluster:
        load = Load(cluster.metadata_uri)
        load.acked, load.sent = (
            dict(known.acked),
            {key: list(sent) for key, sent in known.sent.items()},
        )
        load.deleted = set(known.deleted)
        return await load.compare(load.ledgers())


def start_on(image: Path, kind: str, folder: Path, known: Known) -> list[str]:
    """Mount an image where the bookie lives, and start it."""
    with mounts.mounted(image, folder / "cluster" / "bookie-1", kind):
        return asyncio.run(read_from(folder, known))
