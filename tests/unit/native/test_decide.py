"""The bookie's decisions through their Python face: the journal's own C, in every state a ledger can be in."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import random
import struct

import pytest

from fastbk.native.ffi import CorruptDataError, NativeFullError
from fastbk.native.ledger_state import UNCONFIRMED
from fastbk.native.store import DELETED, FENCED, HAS_KEY, LIMBO, LedgerState
from fastbk.wire.statuses import Status
from tests.fixtures.decide import (
    RECOVERY,
    Kind,
    LedgerTable,
    Limit,
    Notice,
    Take,
    Verdict,
    entries_same,
)
from tests.fixtures.hashes import (
    DIGEST_CRC32,
    DIGEST_CRC32C,
    DIGEST_DUMMY,
    DIGEST_HMAC,
    DIGEST_NONE,
    with_digest,
)
from tests.fixtures.store_harness import entry_bytes

KEY = b"k" * 20
OTHER_KEY = b"o" * 20
LAST_ID = 2**63 - 1


def refused(status: Status) -> Verdict:
    return Verdict(Take.REFUSED, status)


TAKEN = {take: Verdict(take, 0) for take in Take}


@pytest.fixture
def table() -> LedgerTable:
    return LedgerTable()


def test_the_life_of_a_ledger(table: LedgerTable) -> None:
    """INV-F1: behind the fence no normal add is taken; INV-A5: what may be stored already is compared."""
    assert table.decide(7, 0, Kind.ADD, 0, KEY) == TAKEN[Take.NEW]
    assert table.decide(7, 0, Kind.ADD, 0, KEY) == TAKEN[Take.CHECK]
    assert table.decide(7, 2, Kind.ADD_BATCH, 0, KEY, entry_count=3) == TAKEN[Take.NEW]
    assert table.decide(7, 4, Kind.ADD, RECOVERY, KEY) == TAKEN[Take.CHECK]
    assert table.decide(7, 5, Kind.ADD, 0, OTHER_KEY) == refused(Status.UNAUTHORIZED)
    assert table.decide(7, 0, Kind.FENCE, 0, OTHER_KEY) == refused(Status.UNAUTHORIZED)
    assert table.decide(7, 0, Kind.FENCE, 0, KEY) == TAKEN[Take.FENCE]
    assert table.decide(7, 0, Kind.FENCE, 0, KEY) == TAKEN[Take.ORDERED]
    assert table.decide(7, 5, Kind.ADD, 0, KEY) == refused(Status.FENCED)
    assert table.decide(7, 5, Kind.ADD, RECOVERY, KEY) == TAKEN[Take.NEW]
    assert table.decide(7, 5, Kind.FORCE, 0, KEY) == TAKEN[Take.BARRIER]
    state = table.get(7)
    assert state is not None
    assert (state.highest_entry_id, state.flags, state.master_key) == (
        5,
        FENCED | HAS_KEY | UNCONFIRMED,
        KEY,
    )


def test_an_unknown_ledger_is_fenced_with_its_key(table: LedgerTable) -> None:
    """INV-F2."""
    assert table.missing(9) == Status.NO_LEDGER
    assert table.decide(9, -1, Kind.FENCE, 0, KEY).take == Take.FENCE
    assert table.decide(9, 0, Kind.ADD, 0, OTHER_KEY) == refused(Status.UNAUTHORIZED)
    assert table.decide(9, 0, Kind.ADD, 0, KEY) == refused(Status.FENCED)
    assert table.missing(9) == Status.NO_ENTRY


def test_the_last_ids_there_are(table: LedgerTable) -> None:
    assert table.decide(LAST_ID, LAST_ID, Kind.ADD, 0, KEY).take == Take.NEW
    assert table.decide(LAST_ID, LAST_ID, Kind.ADD, 0, KEY).take == Take.CHECK
    assert table.decide(1, LAST_ID - 1, Kind.ADD_BATCH, 0, KEY, entry_count=2).take == Take.NEW
    assert table.decide(1, LAST_ID, Kind.ADD_BATCH, 0, KEY, entry_count=2) == refused(
        Status.BAD_REQUEST
    )
    assert table.decide(-1, 0, Kind.ADD, 0, KEY) == refused(Status.BAD_REQUEST)
    assert table.decide(1, -1, Kind.ADD, 0, KEY) == refused(Status.BAD_REQUEST)


@pytest.mark.parametrize("fenced", [0, FENCED])
def test_limbo_takes_repairs_only_and_denies_nothing(table: LedgerTable, fenced: int) -> None:
    """INV-X4: nobody knows what was lost, the fence and the key included."""
    table.put(LedgerState(3, flags=LIMBO | fenced))
    assert table.missing(3) == Status.CANNOT_TELL
    assert table.decide(3, 0, Kind.ADD, 0, KEY) == refused(Status.FENCED)
    fence = table.decide(3, -1, Kind.FENCE, 0, KEY)
    assert fence.take == Take.FENCE, "written: limbo may end, the fence does not"
    assert table.decide(3, -1, Kind.FENCE, 0, KEY).take == Take.ORDERED
    assert table.decide(3, 0, Kind.ADD, RECOVERY, OTHER_KEY) == refused(Status.UNAUTHORIZED)
    assert table.decide(3, 0, Kind.ADD, RECOVERY, KEY).take == Take.NEW
    assert table.missing(3) == Status.CANNOT_TELL
    table.put(LedgerState(3, flags=LIMBO | FENCED | DELETED))
    assert table.missing(3) == Status.NO_LEDGER, "gone on the metadata's word"
    assert table.decide(3, 1, Kind.ADD, RECOVERY, KEY) == refused(Status.NO_LEDGER)


def test_a_fenced_ledger_that_was_deleted_is_fenced_to_its_writer(table: LedgerTable) -> None:
    """As Apache's bookies say: it is somebody else's, and to look for it in metadata is no use."""
    table.put(LedgerState(6, flags=FENCED | DELETED))
    assert table.decide(6, 1, Kind.ADD, 0, KEY) == refused(Status.FENCED)
    assert table.decide(6, 1, Kind.ADD, RECOVERY, KEY) == refused(Status.NO_LEDGER)
    table.put(LedgerState(6, flags=DELETED))
    assert table.decide(6, 1, Kind.ADD, 0, KEY) == refused(Status.NO_LEDGER)


@pytest.mark.parametrize(
    "state", [LedgerState(4, flags=LIMBO), LedgerState(4, 9, 8, 0, LIMBO, KEY)]
)
def test_a_ledger_in_limbo_keeps_what_it_learns(table: LedgerTable, state: LedgerState) -> None:
    table.put(state)
    table.decide(4, 0, Kind.ADD, RECOVERY, KEY)
    table.stored(4, 0, -1)
    after = table.get(4)
    assert after is not None
    assert after.flags & LIMBO
    assert after.highest_entry_id == max(0, state.highest_entry_id)


def test_a_fence_answered_in_limbo_outlives_it(table: LedgerTable) -> None:
    """INV-F1: the key came with a repair, so nothing but the fence itself says that it is fenced."""
    table.put(LedgerState(5, flags=LIMBO))
    table.decide(5, 0, Kind.ADD, RECOVERY, KEY)
    assert table.decide(5, -1, Kind.FENCE, 0, KEY).take == Take.FENCE
    assert table.decide(5, -1, Kind.FENCE, 0, KEY).take == Take.ORDERED
    assert table.notice(5, Notice.LIMBO_OVER)
    assert not table.notice(5, Notice.LIMBO_OVER)
    assert table.decide(5, 1, Kind.ADD, 0, KEY) == refused(Status.FENCED)


def test_whatever_happens_an_answered_fence_holds_and_the_first_key_wins(
    rng: random.Random,
) -> None:
    """INV-F1, INV-F2, INV-A5: against a book of what clients were told, over crashes, limbo, repairs and deletions."""
    for _ in range(200):
        table, journal = LedgerTable(8), list[tuple[int, int, Kind, int, bytes]]()
        durable = table.copy()
        fenced, keys, deleted, taken = (
            set[int](),
            dict[int, bytes](),
            set[int](),
            set[tuple[int, int]](),
        )
        for _ in range(60):
            ledger_id, entry_id = rng.randrange(4), rng.choice((0, 1, 2, LAST_ID))
            what = rng.choice(("add", "add", "repair", "fence", "crash", "flush", "notice"))
            if what == "crash":  # the journal's records come back behind what was flushed
                table = durable.copy()
                for ledger, entry, kind, flags, key in journal:
                    table.replay(ledger, kind, flags, key)
                    if kind == Kind.ADD:
                        table.stored(ledger, entry, -1)
            elif what == "flush":
                durable, journal = table.copy(), []
            elif what == "notice":
                notice = rng.choice(tuple(Notice))
                if rng.random() < 0.2 and table.notice(ledger_id, notice):
                    deleted |= {ledger_id} if notice == Notice.DELETED else set()
                    durable, journal = table.copy(), []
            else:
                kind = Kind.FENCE if what == "fence" else Kind.ADD
                flags = RECOVERY if what == "repair" else 0
                key = rng.choice((KEY, KEY, OTHER_KEY))
                verdict = table.decide(ledger_id, entry_id, kind, flags, key)
                if verdict.take == Take.REFUSED:
                    continue
                assert keys.setdefault(ledger_id, key) == key
                if kind == Kind.FENCE:
                    fenced.add(ledger_id)
                else:
                    assert ledger_id not in deleted
                    assert what == "repair" or ledger_id not in fenced
                    assert (verdict.take == Take.CHECK) or (ledger_id, entry_id) not in taken
                    taken.add((ledger_id, entry_id))
                if verdict.take in (Take.NEW, Take.CHECK, Take.FENCE):
                    journal.append((ledger_id, entry_id, kind, flags, key))


def test_damage_leaves_every_no_in_doubt(table: LedgerTable) -> None:
    assert table.missing(1, in_doubt=True) == Status.CANNOT_TELL
    table.decide(1, 0, Kind.ADD, 0, KEY)
    assert table.missing(1, in_doubt=True) == Status.CANNOT_TELL


@pytest.mark.parametrize(("limit", "reads_only"), list(itertools.product(Limit, [False, True])))
def test_room_is_kept_for_fences_and_recovery(
    table: LedgerTable, limit: Limit, reads_only: bool
) -> None:
    def taken(kind: Kind, flags: int = 0) -> bool:
        verdict = table.decide(1, 0, kind, flags, KEY, limit=limit, reads_only=reads_only)
        assert verdict.take != Take.REFUSED or verdict.status == Status.READ_ONLY
        return verdict.take != Take.REFUSED

    assert taken(Kind.ADD) == (limit == Limit.OPEN and not reads_only)
    assert taken(Kind.ADD, RECOVERY) == (limit != Limit.NO_WRITES)
    assert taken(Kind.FENCE) == (limit != Limit.NO_WRITES)
    assert taken(Kind.FORCE)


def test_the_limit_of_ledgers(table: LedgerTable) -> None:
    small = LedgerTable(1)
    small.decide(1, 0, Kind.ADD, 0, KEY)
    assert small.decide(2, 0, Kind.ADD, 0, KEY) == refused(Status.TOO_MANY_REQUESTS)
    assert small.decide(1, 1, Kind.ADD, 0, KEY).take == Take.NEW
    with pytest.raises(NativeFullError):
        small.put(LedgerState(2))
    with pytest.raises(CorruptDataError):
        table.put(LedgerState(-1))


def test_copies_are_independent_and_a_crash_forgets(table: LedgerTable) -> None:
    table.decide(1, 0, Kind.ADD, 0, KEY)
    durable = table.copy()
    table.decide(1, 0, Kind.FENCE, 0, KEY)
    table.decide(2, 5, Kind.ADD, 0, KEY)
    assert len(table) == 2
    assert [state.flags for state in durable.states()] == [HAS_KEY | UNCONFIRMED]
    table.clear()
    assert (len(table), table.get(1)) == (0, None)
    for state in durable.states():
        table.put(state)
    table.replay(1, Kind.FENCE, 0, OTHER_KEY)
    table.replay(2, Kind.ADD, 0, KEY)
    assert table.decide(1, 1, Kind.ADD, 0, KEY) == refused(Status.FENCED)
    assert table.decide(2, 0, Kind.ADD, 0, OTHER_KEY) == refused(Status.UNAUTHORIZED)


def test_the_lac_of_stored_entries(table: LedgerTable) -> None:
    assert table.stored(1, 5, 4)
    assert not table.stored(1, 4, 3)
    assert not table.stored(1, 6, 6), "an entry can't confirm itself"
    state = table.get(1)
    assert state is not None
    assert (state.highest_entry_id, state.lac) == (6, 4)


def test_entries_that_differ_in_lac_and_digest_only_are_the_same() -> None:
    entry = entry_bytes(1, 2)
    other_lac = entry[:16] + bytes(8) + entry[24:]
    other_digest = entry[:32] + b"####" + entry[36:]
    crc32c, none = 3, 0
    assert entries_same(entry, other_lac, crc32c)
    assert entries_same(entry, other_digest, crc32c)
    assert not entries_same(entry, other_digest, none)
    assert not entries_same(entry, entry[:-1] + b"!", crc32c)
    assert not entries_same(entry, entry + b"!", crc32c)


def test_a_key_of_another_length_is_a_mistake(table: LedgerTable) -> None:
    with pytest.raises(ValueError, match="20 bytes"):
        table.decide(1, 0, Kind.ADD, 0, b"short")


def test_another_creation_of_the_id_is_refused_and_fences_nothing(table: LedgerTable) -> None:
    """INV-T1, INV-T2: what was given the same id after a rollback is another ledger."""
    assert table.decide(7, 0, Kind.ADD, 0, KEY, creation_mark=5) == TAKEN[Take.NEW]
    for key in (KEY, OTHER_KEY):
        for kind, flags in ((Kind.ADD, 0), (Kind.ADD, RECOVERY), (Kind.FENCE, 0)):
            found = table.decide(7, 1, kind, flags, key, creation_mark=6)
            assert found == refused(Status.OTHER_CREATION)
    state = table.get(7)
    assert state is not None
    assert (state.creation_mark, state.flags & FENCED, state.highest_entry_id) == (5, 0, 0)
    assert table.decide(7, 1, Kind.ADD, 0, KEY, creation_mark=5) == TAKEN[Take.NEW]
    assert table.decide(7, 2, Kind.ADD, 0, KEY) == TAKEN[Take.NEW], "Apache's clients name none"
    table.notice(7, Notice.DELETED)
    assert table.decide(7, 3, Kind.ADD, 0, KEY, creation_mark=6) == refused(Status.NO_LEDGER)


def test_a_ledger_that_began_without_a_creation_never_gets_one(table: LedgerTable) -> None:
    """Its bytes may be of either: a mark given later would hide them from their own readers."""
    table.decide(8, 0, Kind.ADD, 0, KEY)
    assert table.decide(8, 1, Kind.ADD, 0, KEY, creation_mark=9) == TAKEN[Take.NEW]
    assert table.decide(8, 2, Kind.ADD, 0, KEY, creation_mark=10) == TAKEN[Take.NEW]
    state = table.get(8)
    assert state is not None
    assert state.creation_mark == 0


def test_a_ledger_whose_id_somebody_used_before_is_not_told_that_its_key_is_wrong(
    table: LedgerTable,
) -> None:
    """INV-G5: its writer repeats the add or goes on without the bookie; UNAUTHORIZED ends it."""
    table.decide(8, 0, Kind.ADD, 0, OTHER_KEY)
    for kind, flags in ((Kind.ADD, 0), (Kind.ADD, RECOVERY), (Kind.FENCE, 0)):
        found = table.decide(8, 1, kind, flags, KEY, creation_mark=9)
        assert found == refused(Status.OTHER_CREATION)
        assert table.decide(8, 1, kind, flags, KEY) == refused(Status.UNAUTHORIZED)
    assert table.notice(8, Notice.CONFIRMED)
    found = table.decide(8, 1, Kind.ADD, 0, KEY, creation_mark=9)
    assert found == refused(Status.UNAUTHORIZED), "metadata lists the one that is here"


def test_what_expires_takes_nothing_until_metadata_confirms_it(table: LedgerTable) -> None:
    """INV-G5"""
    table.decide(1, 0, Kind.ADD, 0, KEY)
    assert table.notice(1, Notice.EXPIRING)
    for kind, flags in ((Kind.ADD, 0), (Kind.ADD, RECOVERY), (Kind.FENCE, 0)):
        assert table.decide(1, 1, kind, flags, KEY) == refused(Status.TOO_MANY_REQUESTS)
    assert table.notice(1, Notice.CONFIRMED)
    assert table.decide(1, 1, Kind.ADD, 0, KEY) == TAKEN[Take.NEW]
    assert not table.notice(1, Notice.EXPIRING), "a confirmed one never expires"


# Two copies of one entry, when nobody said which digest it has: recoveries write it again with
# another LAC (A5).


DIGESTS = [DIGEST_CRC32, DIGEST_CRC32C, DIGEST_HMAC, DIGEST_DUMMY]


def entry(
    digest_type: int, data: bytes, lac: int, *, length: int = 100, entry_id: int = 7
) -> bytes:
    header = struct.pack(">qqqq", 5, entry_id, lac, length)
    if digest_type == DIGEST_HMAC:
        return header + hmac.digest(b"k", header + data, hashlib.sha1) + data
    return with_digest(digest_type, header, data)


@pytest.mark.parametrize("digest_type", DIGESTS)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 8, 19, 20, 21, 1000])
def test_another_lac_makes_no_other_entry(digest_type: int, size: int) -> None:
    data = random.Random(size).randbytes(size)
    first, second = (entry(digest_type, data, lac) for lac in (3, 6))
    assert entries_same(first, second, DIGEST_NONE)
    assert entries_same(first, first, DIGEST_NONE)
    assert not entries_same(first, entry(digest_type, data, 6, length=101), DIGEST_NONE)
    assert not entries_same(first, entry(digest_type, data, 6, entry_id=8), DIGEST_NONE)
    assert not entries_same(first, second + b"x", DIGEST_NONE)


@pytest.mark.parametrize("digest_type", [DIGEST_CRC32, DIGEST_CRC32C])
@pytest.mark.parametrize("at", [0, 3, 4, 19, 20, 60])
def test_other_data_is_another_entry(digest_type: int, at: int) -> None:
    data = bytes(64)
    other = data[:at] + b"\x01" + data[at + 1 :]
    for lac in (3, 6):
        assert not entries_same(
            entry(digest_type, data, 3), entry(digest_type, other, lac), DIGEST_NONE
        )


@pytest.mark.parametrize("digest_type", DIGESTS)
def test_a_turned_bit_is_not_overlooked(digest_type: int) -> None:
    """With the same LAC nothing may differ; with another one, nothing that a CRC or HMAC's readers could not find."""
    first, second = (entry(digest_type, bytes(range(64)), lac) for lac in (3, 6))
    for at in [*range(32, len(first)), 0, 8, 24]:
        for copy, is_found in (
            (first, True),
            (second, at >= 52 or at < 32 or digest_type in (DIGEST_CRC32, DIGEST_CRC32C)),
        ):
            turned = copy[:at] + bytes([copy[at] ^ 4]) + copy[at + 1 :]
            assert entries_same(first, turned, DIGEST_NONE) != is_found, at


def test_a_crc_in_one_copy_only() -> None:
    """What is no CRC32C entry any more is not the same as one that is, whatever lies behind the room of an HMAC."""
    whole = entry(DIGEST_CRC32C, bytes(64), 3)
    broken = entry(DIGEST_CRC32C, bytes(64), 6)
    broken = broken[:34] + b"\xff" + broken[35:]
    assert not entries_same(whole, broken, DIGEST_NONE)
    assert not entries_same(whole, broken, DIGEST_CRC32C)


@pytest.mark.parametrize("digest_type", [DIGEST_CRC32, DIGEST_CRC32C])
@pytest.mark.parametrize("lac", [3, 6])
def test_a_copy_that_no_reader_takes_stands_for_no_other(digest_type: int, lac: int) -> None:
    """What came with a wrong digest, the type not being known yet, is nothing that a repair or recovery may count."""
    good = entry(digest_type, bytes(64), 3)
    bad = good[:34] + bytes([good[34] ^ 1]) + good[35:]
    assert entries_same(bad, bad, digest_type), "sent again"
    assert not entries_same(bad, entry(digest_type, bytes(64), lac), digest_type)
    assert entries_same(good, entry(digest_type, bytes(64), lac), digest_type)
