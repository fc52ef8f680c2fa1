"""The manifest's bytes, its two slots, and what a start makes of damaged ones."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fastbk.errors import InvariantError
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c
from fastbk.storage.directories import JOURNAL_LOG
from fastbk.storage.manifest import (
    BLOCK_BYTES,
    COMPACTION,
    FLUSH,
    HEADER,
    HEADER_BYTES,
    JOURNAL,
    SLOTS,
    CommitInDoubt,
    Damage,
    LocationsEntry,
    LogEntry,
    Manifest,
    ManifestLost,
    ManifestMissing,
    ManifestSlots,
    decode,
    encode,
)
from tests.fixtures.fake_disk import FakeDisk

GOLDEN = Path(__file__).parents[2] / "golden" / "storage" / "manifest.bin"
GOLDEN_1 = GOLDEN.with_name("manifest_1.bin")
GOLDEN_3 = GOLDEN.with_name("manifest_3.bin")
FULL = Manifest(
    generation=2**63,
    mark=12,
    next_file_id=9,
    next_log_id=4,
    locations=(LocationsEntry(file_id=8, first_generation=1, last_generation=6, size_bytes=12288),),
    logs=(
        LogEntry(log_id=2, salt=2**63 - 1, durable_bytes=1 << 40, live_bytes=0, sealed=True),
        LogEntry(
            log_id=3,
            salt=0,
            durable_bytes=8192,
            live_bytes=72,
            sealed=False,
            kind=COMPACTION,
            created_s=1_700_000_000,
        ),
    ),
    damage=(Damage(what="journal", file_id=1, first_sequence=3, last_sequence=5, found_s=1),),
    clean=True,
)

WITH_JOURNAL = msgspec.structs.replace(
    FULL,
    mark_file_id=42,
    mark_offset_bytes=12 << 20,
    logs=(
        *FULL.logs,
        LogEntry(
            log_id=JOURNAL_LOG | 41,
            salt=2**64 - 1,
            durable_bytes=1 << 28,
            live_bytes=1 << 27,
            sealed=True,
            kind=JOURNAL,
            created_s=1_700_000_000,
        ),
    ),
)


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    with FakeDisk() as fake:
        yield fake


def slots_of(fake: FakeDisk) -> ManifestSlots:
    return ManifestSlots(fake.disk(), "/")


def with_version(raw: bytes, version: int) -> bytes:
    front = bytearray(raw[: HEADER.size])
    front[8:12] = version.to_bytes(4, "little")
    return bytes(front) + crc32c(bytes(front)).to_bytes(4, "little") + raw[HEADER_BYTES:]


def test_golden_bytes_are_read_and_written() -> None:
    raw = GOLDEN.read_bytes()
    assert decode(raw) == FULL
    assert encode(FULL) == raw
    assert len(raw) == BLOCK_BYTES


def test_version_1_is_read() -> None:
    """Its logs say neither who wrote them nor when."""
    logs = (FULL.logs[0], msgspec.structs.replace(FULL.logs[1], kind=FLUSH, created_s=0))
    assert decode(GOLDEN_1.read_bytes()) == msgspec.structs.replace(FULL, logs=logs)


def test_journal_files_among_the_logs_make_version_3() -> None:
    """INV-U1: the content alone decides, so a bookie whose journal files do not adopt writes what it always wrote."""
    raw = GOLDEN_3.read_bytes()
    assert decode(raw) == WITH_JOURNAL
    assert encode(WITH_JOURNAL) == raw
    assert [HEADER.unpack(one[: HEADER.size])[1] for one in (raw, encode(FULL))] == [3, 2]


@pytest.mark.parametrize(
    ("version", "kind", "log_id"),
    [(2, JOURNAL, JOURNAL_LOG | 7), (3, JOURNAL, 7), (3, FLUSH, JOURNAL_LOG | 7)],
)
def test_a_journal_file_is_one_by_kind_and_id(version: int, kind: str, log_id: int) -> None:
    log = msgspec.structs.replace(FULL.logs[0], kind=kind, log_id=log_id)
    raw = encode(msgspec.structs.replace(FULL, logs=(log,)))
    with pytest.raises(CorruptDataError, match="takes journal files for other logs"):
        decode(with_version(raw, version))


def test_every_changed_byte_is_noticed() -> None:
    raw = encode(FULL)
    used = HEADER_BYTES + HEADER.unpack(raw[: HEADER.size])[4]
    for at in range(used):
        for mask in (1, 0x80):
            bad = bytearray(raw)
            bad[at] ^= mask
            with pytest.raises(CorruptDataError):
                decode(bytes(bad))


def test_every_shorter_image_is_noticed() -> None:
    raw = encode(FULL)
    for size in range(HEADER_BYTES + HEADER.unpack(raw[: HEADER.size])[4]):
        with pytest.raises(CorruptDataError):
            decode(raw[:size])


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(FormatTooNewError, match="format 4, this fastbk knows 3"):
        decode(with_version(encode(FULL), 4))


def test_an_unknown_field_is_refused_although_the_checksum_is_right() -> None:
    body = msgspec.json.encode({"generation": 1, "unknown": 2})
    front = HEADER.pack(b"FBKMNFST", 1, 0, 1, len(body), crc32c(body), bytes(24))
    with pytest.raises(CorruptDataError, match="unknown"):
        decode(front + crc32c(front).to_bytes(4, "little") + body)


def test_an_empty_directory_has_none(fake: FakeDisk) -> None:
    with pytest.raises(ManifestMissing):
        slots_of(fake).load()


def test_each_slot_alone_is_enough_after_a_commit(fake: FakeDisk) -> None:
    slots = slots_of(fake)
    for generation in range(1, 5):
        assert slots.commit(Manifest(generation=generation, mark=generation * 10))
    for lost in SLOTS:
        copy = fake.copy()
        copy.corrupt(f"/{lost}", 0, 4096)
        assert ManifestSlots(copy.disk(), "/").load().mark == 40
        copy.disk().unlink(f"/{lost}")
        assert ManifestSlots(copy.disk(), "/").load().mark == 40
        copy.destroy()


def test_both_slots_bad_is_not_an_empty_bookie(fake: FakeDisk) -> None:
    slots_of(fake).commit(Manifest(generation=1))
    for lost in SLOTS:
        fake.corrupt(f"/{lost}", 70)
    with pytest.raises(ManifestLost, match="nothing is served"):
        slots_of(fake).load()


def test_a_newer_slot_is_not_passed_over_for_an_older_one(fake: FakeDisk) -> None:
    slots_of(fake).commit(Manifest(generation=1))
    disk = fake.disk()
    file = disk.open("/manifest.1")
    disk.write_all(file, with_version(encode(Manifest(generation=2)), 4))
    with pytest.raises(FormatTooNewError):
        slots_of(fake).load()


def test_a_generation_is_never_written_twice(fake: FakeDisk) -> None:
    slots = slots_of(fake)
    slots.commit(Manifest(generation=3))
    with pytest.raises(InvariantError):
        slots.commit(Manifest(generation=3, mark=1))


def test_a_commit_in_doubt_leaves_the_good_slot_alone(fake: FakeDisk) -> None:
    slots = slots_of(fake)
    slots.commit(Manifest(generation=1))
    for kind in ("write", "sync"):
        fake.fault("fail", kind, errno=errno.EIO)
        with pytest.raises(CommitInDoubt) as caught:
            slots.commit(Manifest(generation=slots.next_generation(), mark=5))
        assert caught.value.outcome == "unknown"
    assert slots.next_generation() == 4
    # Many failures in a row never touch the slot that holds what counts.
    copy = fake.copy()
    copy.corrupt("/manifest.0", 0, 4096)
    assert ManifestSlots(copy.disk(), "/").load().generation == 1
    assert slots.commit(Manifest(generation=4, mark=6))
    assert slots_of(fake).load().mark == 6


def test_a_failed_mirror_is_told_and_mended(fake: FakeDisk) -> None:
    slots = slots_of(fake)
    slots.commit(Manifest(generation=1))
    fake.fault("fail", "sync", nth=2, errno=errno.EIO)
    assert not slots.commit(Manifest(generation=2, mark=2))
    assert slots_of(fake).load().mark == 2
    assert slots.commit(Manifest(generation=3, mark=3))
    for lost in SLOTS:
        copy = fake.copy()
        copy.corrupt(f"/{lost}", 64)
        assert ManifestSlots(copy.disk(), "/").load().mark == 3


def test_failures_in_a_row_spare_the_only_good_slot(fake: FakeDisk) -> None:
    slots = slots_of(fake)
    slots.commit(Manifest(generation=1))
    fake.fault("fail", "sync", nth=2, errno=errno.EIO)
    slots.commit(Manifest(generation=2, mark=2))  # in the first slot only
    for _ in range(3):
        fake.fault("fail", "write", errno=errno.EIO)
        with pytest.raises(CommitInDoubt):
            slots.commit(Manifest(generation=slots.next_generation(), mark=3))
        with fake.copy() as copy:
            copy.corrupt("/manifest.1", 0, 4096)
            assert slots_of(copy).load().mark == 2


def test_a_large_manifest_grows_and_shrinks(fake: FakeDisk) -> None:
    slots = slots_of(fake)
    many = tuple(
        LogEntry(log_id=i, salt=i, durable_bytes=i, live_bytes=i, sealed=True) for i in range(2000)
    )
    slots.commit(Manifest(generation=1, logs=many))
    assert slots_of(fake).load().logs == many
    slots.commit(Manifest(generation=2))
    assert slots_of(fake).load() == Manifest(generation=2)
