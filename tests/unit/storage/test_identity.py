"""`identity.json`, and what a directory has to hold to count as one with data (INV-D1, A20)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fastbk.errors import StorageError
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c
from fastbk.storage.directories import data_in, make_ledger_directory
from fastbk.storage.identity import (
    Identity,
    decode,
    new_identity,
    new_incarnation,
    read_identity,
    write_identity,
)
from fastbk.storage.manifest import Manifest, ManifestSlots
from fastbk.storage.small_files import encode
from tests.fixtures.fake_disk import FakeDisk

GOLDEN = Path(__file__).parents[2] / "golden" / "storage" / "identity.json"
ME = "127.0.0.1:3181"
JOURNAL = Identity(
    bookie_id=ME, incarnation="00000000000000ff", directory_id="a1", role="journal", created_s=5
)
LEDGER = msgspec.structs.replace(JOURNAL, directory_id="b2", role="ledger")
OLD_GOLDEN = GOLDEN.with_name("identity_before_starts.json")


def test_golden_file() -> None:
    assert decode(GOLDEN.read_bytes()) == LEDGER
    assert encode(LEDGER) == GOLDEN.read_bytes()


def test_a_file_from_before_starts_were_counted() -> None:
    assert decode(OLD_GOLDEN.read_bytes()) == LEDGER


def test_every_changed_byte_is_noticed() -> None:
    raw = encode(LEDGER)
    for at in range(len(raw)):
        bad = bytearray(raw)
        bad[at] ^= 1
        try:
            assert decode(bytes(bad)) == LEDGER  # white space
        except (CorruptDataError, FormatTooNewError):
            continue


def test_edited_by_hand_is_refused() -> None:
    fields = json.loads(encode(LEDGER))
    fields["bookie_id"] = "other:1"
    with pytest.raises(CorruptDataError, match="edited by hand"):
        decode(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"{}", b'{"crc": 1}', b"[" * 100_000, b"\xff"]
)
def test_rubbish_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode(raw)


def test_a_newer_format_is_refused_by_name() -> None:
    fields = msgspec.to_builtins(LEDGER) | {"format": 2}
    fields["crc"] = crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(FormatTooNewError, match="format 2"):
        decode(json.dumps(fields).encode())


def test_written_and_read_back() -> None:
    with FakeDisk() as fake:
        disk = fake.disk()
        assert read_identity(disk, "/") is None
        mine = new_identity(ME, new_incarnation(), "ledger", 1)
        write_identity(disk, "/", mine)
        fake.restart("lose")
        assert read_identity(fake.disk(), "/") == mine
        assert new_identity(ME, 1, "ledger", 1).directory_id != mine.directory_id


def test_what_counts_as_data() -> None:
    with FakeDisk() as fake:
        disk = fake.disk()
        assert data_in(disk, "/") == []
        make_ledger_directory(disk, "/")
        make_ledger_directory(disk, "/")
        assert data_in(disk, "/") == []
        disk.close(disk.open("/logs/readme", create=True))
        assert data_in(disk, "/") == []
        disk.close(disk.open("/logs/0000000000000001.log", create=True))
        disk.close(disk.open("/0000000000000001.journal", create=True))
        slots = ManifestSlots(disk, "/")
        slots.load()
        slots.commit(Manifest(generation=2))
        assert data_in(disk, "/") == [
            "0000000000000001.journal",
            "logs/0000000000000001.log",
            "manifest",
        ]


def test_a_birth_cut_at_every_operation_can_be_finished() -> None:
    with FakeDisk() as whole:
        make_ledger_directory(whole.disk(), "/")
        count = whole.operations()
    for nth in range(1, count + 1):
        for mode in ("lose", "keep", "random"):
            with FakeDisk(seed=nth) as fake:
                disk = fake.disk()
                fake.fault("cut", nth=nth)
                with pytest.raises((OSError, StorageError)):
                    make_ledger_directory(disk, "/")
                fake.restart(mode, nth)
                assert data_in(fake.disk(), "/") == []
                make_ledger_directory(fake.disk(), "/")
                assert ManifestSlots(fake.disk(), "/").load() == Manifest(generation=1)
