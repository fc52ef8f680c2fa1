"""Journal files: what goes in comes out, byte for byte; and the frozen files of tests/golden/journal.

`python -m tests.property.test_journal_format` writes the golden files anew, for a new version of the format only.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.native.disk import Disk
from fastbk.native.journal import BATCH_HEADER_BYTES, JournalScan, read_header
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.journal_harness import (
    CHECK,
    FENCED,
    INCARNATION,
    KIND_ADD,
    KIND_ADD_BATCH,
    KIND_FENCE,
    KIND_FORCE,
    KIND_RUN,
    ORDERED,
    RECOVERY,
    UNAUTHORIZED,
    DirectJournal,
    JournalHarness,
    Put,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "journal"
FUZZ_SEEDS = Path(__file__).parent.parent / "golden" / "fuzz_journal_scan"
FILE_BYTES = 4 << 20
SALT = 0x0123456789ABCDEF


def new_file(disk: Disk, path: str, size_bytes: int = FILE_BYTES) -> int:
    file = disk.open(path, create=True, direct=True)
    disk.preallocate(file, 0, size_bytes)
    return file


class Model:
    """What the journal decides, said once more in Python: ledger -> (key, highest id, fenced)."""

    def __init__(self) -> None:
        self.ledgers: dict[int, tuple[bytes, int, bool]] = {}

    def decide(self, put: Put) -> tuple[int, bool]:
        """Return the verdict (0 = no exception) and whether the record is written."""
        if put.kind == KIND_FORCE:
            return 0, False
        state = self.ledgers.get(put.ledger_id)
        if state is not None and state[0] != put.key:
            return UNAUTHORIZED, False
        key, highest, fenced = state or (put.key, -1, False)
        if put.kind == KIND_FENCE:
            if fenced:
                return ORDERED, False
            self.ledgers[put.ledger_id] = (key, highest, True)
            return 0, True
        if fenced and not put.flags & RECOVERY:
            return FENCED, False
        is_new = put.entry_id > highest
        last = put.entry_id + put.entry_count - 1
        self.ledgers[put.ledger_id] = (key, max(highest, last), fenced)
        return (0 if is_new else CHECK), True


LEDGERS = st.integers(0, 1)
ENTRIES = st.integers(0, 12)
KEYS = st.sampled_from([b"one"] * 9 + [b"two"])
DATA = st.binary(max_size=300)
ADDS = st.tuples(st.just("add"), LEDGERS, ENTRIES, KEYS, st.sampled_from([0, 0, RECOVERY]), DATA)
BATCHES = st.tuples(
    st.just("batch"), LEDGERS, ENTRIES, KEYS, st.just(0), st.lists(DATA, min_size=1, max_size=4)
)
FENCES = st.tuples(st.just("fence"), LEDGERS, st.just(-1), KEYS, st.just(0), st.just(b""))
FORCES = st.tuples(st.just("force"), LEDGERS, st.just(-1), KEYS, st.just(0), st.just(b""))
# A fence ends what a ledger can show: few of them.
RECORDS = st.one_of(*[ADDS] * 12, *[BATCHES] * 4, FENCES, FORCES)


def put(harness: JournalHarness, worker: int, record: tuple[object, ...]) -> None:
    kind, ledger_id, entry_id, key, flags, data = record
    more = {"worker": worker, "key": key, "flags": flags}
    if kind == "add":
        harness.add(ledger_id, entry_id, data, **more)
    elif kind == "batch":
        harness.add_batch(ledger_id, entry_id, data, **more)
    elif kind == "fence":
        harness.fence(ledger_id, **more)
    else:
        harness.put(KIND_FORCE, ledger_id, -1, **more)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 1), RECORDS, st.booleans()), min_size=25, max_size=60),
    st.sampled_from(["at_once", "newest_first", "shuffled"]),
    st.booleans(),
)
def test_decisions_and_content_agree_with_the_model(
    records: list[tuple[int, tuple[object, ...], bool]], delivery: str, one_worker: bool
) -> None:
    with FakeDisk() as fake:
        fake.deliver(delivery)
        disk = fake.disk()
        file = new_file(disk, "/1")
        harness = JournalHarness(
            disk,
            journal_type=DirectJournal,
            worker_count=2,
            ring_bytes=256 * 1024,
            quantum_bytes=1,
            second_batch_bytes_min=1,
        )
        assert harness.journal is not None
        harness.journal.roll(file, 1, SALT, FILE_BYTES)
        for worker, record, wait in records:
            put(harness, 0 if one_worker else worker, record)
            if wait:
                harness.journal.step(1)
                harness.look()
        harness.settle()
        assert harness.journal.close()
        harness.look()
        disk.close(file)
        # The journal's own order, from what it wrote; refused ones leave no trace but their verdict.
        with JournalScan(disk, "/1", 1, INCARNATION) as scan:
            batches = list(scan)
            assert scan.end.kind == "closing"
        found = [each for batch in batches for each in batch.records()]
        assert [each.sequence for each in found] == list(range(len(found)))
        assert [batch.sequence for batch in batches] == list(range(1, len(batches) + 1))
        if one_worker:  # of two, the order of decisions is known only for what was written
            check_against_model(harness, found)
        written = [
            each
            for each in harness.puts
            if harness.verdict(each) in (0, CHECK) and each.kind != KIND_FORCE
        ]
        for worker in range(2):
            mine = [each for each in written if each.worker == worker]
            wanted = [
                (each.kind, each.ledger_id, each.entry_id, each.flags, each.key, each.payload)
                for each in mine
            ]
            there = [
                (
                    each.kind,
                    each.ledger_id,
                    each.entry_id,
                    each.flags,
                    each.master_key,
                    each.payload,
                )
                for each in found
            ]
            assert is_subsequence(wanted, there), "a ring's order is the journal's"
        assert len(written) == len(found)
        harness.close()


def check_against_model(harness: JournalHarness, found: list[object]) -> None:
    model = Model()
    count = 0
    for each in harness.puts:
        verdict, written = model.decide(each)
        assert harness.verdict(each) == verdict
        count += written
    assert count == len(found)


def is_subsequence(wanted: Sequence[object], there: Sequence[object]) -> bool:
    rest = iter(there)
    return all(any(each == other for other in rest) for each in wanted)


# ---------------------------------------------------------------------------------------- golden files


def golden_content(harness: JournalHarness) -> None:
    """Four batches: two ledgers, a batch add, a recovery add, a fence, sizes around 8 and a block."""
    harness.add(1, 0, b"", request_id=1)
    harness.add(1, 1, b"x" * 7, request_id=2)
    harness.settle()
    harness.add_batch(2, 10, [b"", b"a" * 33, b"b" * 100], key=b"other", request_id=3)
    harness.settle()
    harness.fence(1, request_id=4)
    harness.add(1, 1, b"x" * 7, flags=RECOVERY, request_id=5)
    harness.settle()
    harness.add(2, 2**62, bytes(range(256)) * 20, key=b"other", request_id=6)
    harness.settle()


EXPECTED = [
    [(KIND_ADD, 1, 0, 0, 1), (KIND_ADD, 1, 1, 0, 2)],
    [(KIND_ADD_BATCH, 2, 10, 0, 3)],
    [(KIND_FENCE, 1, -1, 0, 4), (KIND_ADD, 1, 1, RECOVERY, 5)],
    [(KIND_ADD, 2, 2**62, 0, 6)],
]


EXPECTED_RUNS = [
    [(KIND_RUN, 1, 0, 0, 0)],
    [(KIND_RUN, 2, 10, 0, 0)],
    [(KIND_FENCE, 1, -1, 0, 4), (KIND_ADD, 1, 1, RECOVERY, 5)],
    [(KIND_RUN, 2, 2**62, 0, 0)],
]
"""The same content in a file that may stay as a log, where nothing is too small for a run."""


def golden_image(folder: Path, *, close: bool, adopts: bool = False) -> bytes:
    folder.mkdir(exist_ok=True)
    path = folder / "image"
    with Disk(folder, "plain") as disk:
        file = new_file(disk, str(path))
        harness = JournalHarness(
            disk,
            ring_bytes=256 * 1024,
            predecessor_file_id=2,
            predecessor_sequence=41,
            predecessor_crc=0xDEADBEEF,
            next_record_sequence=1000,
            run_bytes_min=1,
        )
        assert harness.journal is not None
        harness.journal.roll(file, 3, SALT, FILE_BYTES, adopts=adopts)
        golden_content(harness)
        if close:
            assert harness.journal.close()
        status = harness.journal.status
        harness.close()
        disk.close(file)
    image = path.read_bytes()[: status.offset_bytes + 4096]
    path.unlink()
    return image


def scan_bytes(
    folder: Path, image: bytes, **more: int
) -> tuple[list[list[tuple[int, ...]]], str, object]:
    path = folder / "copy"
    path.write_bytes(image)
    with (
        Disk(folder, "plain") as disk,
        JournalScan(disk, str(path), 3, INCARNATION, **more) as scan,
    ):
        batches = [
            [(r.kind, r.ledger_id, r.entry_id, r.flags, r.request_id) for r in batch.records()]
            for batch in scan
        ]
        return batches, scan.end.kind, scan.end


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("closed.bin", EXPECTED),
        ("closed_version_1.bin", EXPECTED),
        ("closed_version_3.bin", EXPECTED_RUNS),
    ],
)
def test_golden_file_reads_as_it_was_written(
    tmp_path: Path, name: str, expected: list[list[tuple[int, ...]]]
) -> None:
    image = (GOLDEN / name).read_bytes()
    batches, kind, end = scan_bytes(tmp_path, image)
    assert batches == [*expected, []]
    assert kind == "closing"
    assert end.last_sequence == 46
    assert end.next_record_sequence == 1000 + sum(map(len, expected))
    (tmp_path / "copy").write_bytes(image)
    with Disk(tmp_path, "plain") as disk:
        header = read_header(disk, str(tmp_path / "copy"))
    assert header.state == "valid"
    assert (header.file_id, header.salt, header.incarnation) == (3, SALT, INCARNATION)
    assert (header.predecessor_file_id, header.predecessor_sequence, header.predecessor_crc) == (
        2,
        41,
        0xDEADBEEF,
    )
    assert (header.first_sequence, header.first_record_sequence) == (42, 1000)
    assert header.bookie_id == "127.0.0.1:3181"


def test_golden_tail_damage_and_recycled(tmp_path: Path) -> None:
    batches, kind, _ = scan_bytes(tmp_path, (GOLDEN / "torn_tail.bin").read_bytes())
    assert (batches, kind) == (EXPECTED[:3], "tail")
    batches, kind, end = scan_bytes(tmp_path, (GOLDEN / "damaged.bin").read_bytes())
    assert (batches, kind, end.later_sequence) == (EXPECTED[:1], "damage", 44)


def mask_times(image: bytes) -> bytes:
    """Zero what differs from one writing to the next: wall clocks and every checksum over them."""
    masked = bytearray(image)
    for block in (0, 4096):
        masked[block + 96 : block + 104] = bytes(8)  # created_s
        masked[block + 236 : block + 240] = bytes(4)
    for at in range(8192, len(masked), 4096):
        if masked[at : at + 4] == b"BTCH":
            masked[at + 56 : at + 64] = bytes(8)  # written_s
            masked[at + 76 : at + 80] = bytes(4)  # previous_crc
            masked[at + 84 : at + BATCH_HEADER_BYTES] = bytes(4)
    return bytes(masked)


@pytest.mark.parametrize(
    ("name", "adopts"), [("closed.bin", False), ("closed_version_3.bin", True)]
)
def test_this_version_writes_the_golden_bytes(tmp_path: Path, name: str, adopts: bool) -> None:
    fresh = golden_image(tmp_path, close=True, adopts=adopts)
    assert mask_times(fresh) == mask_times((GOLDEN / name).read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"), [("closed.bin", EXPECTED), ("closed_version_3.bin", EXPECTED_RUNS)]
)
def test_any_change_of_a_golden_file_is_harmless_or_seen(
    tmp_path: Path, rng: random.Random, name: str, expected: list[list[tuple[int, ...]]]
) -> None:
    """Bits, bytes, runs and cuts: never a record that was not written, never an earlier end without a word."""
    image = (GOLDEN / name).read_bytes()
    for _ in range(300):
        changed = bytearray(image)
        at = rng.randrange(8192, len(image))
        what = rng.random()
        if what < 0.5:
            changed[at] ^= 1 << rng.randrange(8)
        elif what < 0.8:
            length = rng.choice([1, 8, 512, 4096])
            changed[at : at + length] = rng.randbytes(len(changed[at : at + length]))
        else:
            start = rng.randrange(0, len(image), 512)
            changed[at : at + 512] = image[start : start + len(changed[at : at + 512])]
        batches, kind, _ = scan_bytes(tmp_path, bytes(changed))
        assert batches == [*expected, []][: len(batches)]
        if len(batches) < 4:
            # The last batch says that the third is acknowledged, the closing one that the fourth is.
            assert kind in ("damage", "tail")
            later_is_whole = changed[20480:] == image[20480:]
            assert kind == "damage" or not later_is_whole


@pytest.mark.parametrize("how", ["zeros", "half of it", "the header"])
def test_a_hole_in_the_middle_is_not_the_end(how: str, tmp_path: Path) -> None:
    """P30: a scan that stopped quietly at the first empty place would lose all that was acknowledged behind it."""
    image = bytearray((GOLDEN / "closed.bin").read_bytes())
    start = 8192 + 4096
    size = {"zeros": 4096, "half of it": 2048, "the header": BATCH_HEADER_BYTES}[how]
    image[start : start + size] = bytes(size)
    batches, kind, end = scan_bytes(tmp_path, bytes(image))
    assert (batches, kind) == (EXPECTED[:1], "damage")
    assert end.later_sequence > 43


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFF0])
def test_a_length_that_cannot_be_is_damage_and_no_buffer(length: int, tmp_path: Path) -> None:
    """P31: every word of a batch's and a record's header takes its turn at being an absurd length."""
    image = (GOLDEN / "closed.bin").read_bytes()
    start = 8192 + 4096
    tracemalloc.start()
    try:
        for at in range(start, start + BATCH_HEADER_BYTES + 96, 4):
            changed = image[:at] + length.to_bytes(4, "little") + image[at + 4 :]
            batches, kind, _ = scan_bytes(tmp_path, changed)
            assert (batches, kind) == (EXPECTED[:1], "damage")
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


def write_golden() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        FUZZ_SEEDS.mkdir(parents=True, exist_ok=True)
        closed = golden_image(Path(name), close=True)
        (GOLDEN / "closed.bin").write_bytes(closed)
        open_image = golden_image(Path(name), close=False)
        torn = bytearray(open_image)
        torn[8192 + 3 * 4096 + 4096 : 8192 + 3 * 4096 + 4608] = bytes(512)
        (GOLDEN / "torn_tail.bin").write_bytes(torn)
        damaged = bytearray(open_image)
        damaged[8192 + 4096 + 300] ^= 1
        (GOLDEN / "damaged.bin").write_bytes(damaged)
        runs = golden_image(Path(name), close=True, adopts=True)
        (GOLDEN / "closed_version_3.bin").write_bytes(runs)
        for mode in (0, 2 + 4 + 8, 31):
            (FUZZ_SEEDS / f"closed-{mode}.bin").write_bytes(bytes([mode, 0x83]) + closed)
            (FUZZ_SEEDS / f"runs-{mode}.bin").write_bytes(bytes([mode, 0x83]) + runs)


if __name__ == "__main__":
    write_golden()
