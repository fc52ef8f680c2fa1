"""Whose data a directory holds: every difference ends the start, and says what, why and what next (INV-D1, A20)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fastbk.errors import StorageError
from fastbk.native.checksum import crc32c
from fastbk.native.fake_disk import FakeDisk
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.storage.directories import data_in, make_ledger_directory
from fastbk.storage.identity import (
    Found,
    Identity,
    IdentityError,
    Known,
    Verdict,
    decode,
    encode,
    judge,
    new_identity,
    new_incarnation,
    read_identity,
    write_identity,
)
from fastbk.storage.manifest import Manifest, ManifestSlots

GOLDEN = Path(__file__).parents[2] / "golden" / "storage" / "identity.json"
ME = "127.0.0.1:3181"
JOURNAL = Identity(
    bookie_id=ME, incarnation="00000000000000ff", directory_id="a1", role="journal", created_s=5
)
LEDGER = msgspec.structs.replace(JOURNAL, directory_id="b2", role="ledger")
KNOWN = Known(incarnation=255, roles={"a1": "journal", "b2": "ledger"})


def found(
    journal: Identity | None = JOURNAL,
    ledger: Identity | None = LEDGER,
    data: list[str] | None = None,
) -> list[Found]:
    return [Found("/j", "journal", journal), Found("/l", "ledger", ledger, data or [])]


def changed(identity: Identity, **fields: object) -> Identity:
    return msgspec.structs.replace(identity, **fields)


def test_golden_file() -> None:
    assert decode(GOLDEN.read_bytes()) == LEDGER
    assert encode(LEDGER) == GOLDEN.read_bytes()


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


def test_all_agree() -> None:
    assert judge(ME, found(), KNOWN) is Verdict.KNOWN


def test_a_new_bookie() -> None:
    assert judge(ME, found(None, None), None) is Verdict.NEW


def test_a_birth_cut_short() -> None:
    assert judge(ME, found(), None) is Verdict.BORN_HALFWAY
    assert judge(ME, found(JOURNAL, None), None) is Verdict.BORN_HALFWAY


@pytest.mark.parametrize(
    ("directories", "known", "says", "next_step"),
    [
        (found(ledger=None), KNOWN, "/l is empty", "Mount or restore"),
        (found(None, None), KNOWN, "never starts empty", "new id"),
        (found(ledger=None, data=["logs/1.log"]), KNOWN, "holds logs/1.log but no identity.json", "restore"),
        (found(data=["logs/1.log"]), None, "wrong metadata store", "metadata.uri"),
        (found(None, None, ["x.journal"]), None, "wrong metadata store", "do not delete"),
        (found(changed(JOURNAL, bookie_id="b:1")), KNOWN, "belongs to bookie 'b:1'", "set bookie.id"),
        (found(LEDGER, JOURNAL), KNOWN, "is a ledger directory, but is configured as the journal", "Swap"),
        (found(changed(JOURNAL, incarnation="0000000000000001")), KNOWN, "two different lives", "belong together"),
        (
            found(changed(JOURNAL, incarnation="0000000000000001"), changed(LEDGER, incarnation="0000000000000001")),
            KNOWN, "old copy", "Mount the right directory",
        ),
        (found(ledger=changed(LEDGER, directory_id="zz")), KNOWN, "none of those", "born with"),
        (found()[:1], KNOWN, "missing: ledger b2", "Configure all"),
        ([*found(), found()[1]], KNOWN, "more directories", "Configure all"),
        (found(ledger=changed(LEDGER, pairs=2)), KNOWN, "2 journal/index pairs", "Start the version"),
        (found(ledger=changed(LEDGER, shards=(1, *[0] * 63))), KNOWN, "pairs", "Start the version"),
    ],
)  # fmt: skip
def test_every_difference_ends_the_start(
    directories: list[Found], known: Known | None, says: str, next_step: str
) -> None:
    with pytest.raises(IdentityError) as caught:
        judge(ME, directories, known)
    assert says in str(caught.value)
    assert next_step in str(caught.value)


BORN_AGAIN = [changed(each, incarnation="0000000000000001", directory_id=f"{each.role}9") for each in (JOURNAL, LEDGER)]


@pytest.mark.parametrize(
    "directories",
    [
        found(None, None),
        found(ledger=None),
        found(*BORN_AGAIN),
        found(BORN_AGAIN[0], None),
        found(BORN_AGAIN[0], changed(BORN_AGAIN[1], incarnation="0000000000000002")),
    ],
    ids=["all", "one", "cut short", "cut short earlier", "cut short twice"],
)
def test_lost_data_is_accepted_on_a_person_s_word_only(directories: list[Found]) -> None:
    """INV-X4."""
    assert judge(ME, directories, KNOWN, accept_data_loss=True) is Verdict.LOST
    with pytest.raises(IdentityError):
        judge(ME, directories, KNOWN)


@pytest.mark.parametrize(
    "directories",
    [
        found(None, None, ["logs/1.log"]),
        found(None, data=["logs/1.log"]),
        found(*BORN_AGAIN, data=["manifest"]),
        found(changed(JOURNAL, bookie_id="b:1"), None),
    ],
    ids=["data without identity", "journal lost", "data of another life", "another bookie's"],
)
def test_what_is_left_of_data_is_not_given_up(directories: list[Found]) -> None:
    with pytest.raises(IdentityError):
        judge(ME, directories, KNOWN, accept_data_loss=True)


def test_the_word_has_no_effect_where_nothing_is_missing() -> None:
    assert judge(ME, found(), KNOWN, accept_data_loss=True) is Verdict.KNOWN
    assert judge(ME, found(data=["logs/1.log"]), KNOWN, accept_data_loss=True) is Verdict.KNOWN
    assert judge(ME, found(None, None), None, accept_data_loss=True) is Verdict.NEW


def test_the_refusal_says_how_to_go_on() -> None:
    with pytest.raises(IdentityError, match=r"bookie recover 127.0.0.1:3181`.*--accept-data-loss"):
        judge(ME, found(None, None), KNOWN)


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
