"""Every operation that a bookie does on its disk, cut, torn, failed, filled or short; then the next start is asked.

Journal, index and store are the real ones, on the fake disk (`tests/fixtures/storage_harness.py`). Whatever
happens: what was acknowledged is there byte by byte (INV-A1, INV-J1, INV-X3), what is there was sent by someone, a
fence that was answered still fences (INV-F1, INV-F2), "no" is never said of what was acknowledged (INV-X1), no id
was acknowledged with two payloads (INV-A5), and the bookie goes on to take adds.
"""

from __future__ import annotations

import copy
import errno
import functools
import random
from collections.abc import Callable

import pytest

from fastbk.errors import Error
from fastbk.storage.checkpoint import Checkpoint
from fastbk.storage.manifest import JOURNAL
from tests.fixtures.fake_disk import FakeDisk, operations_to_fault
from tests.fixtures.index_harness import CANNOT_TELL, FENCED, NO_ENTRY, NO_LEDGER, OK
from tests.fixtures.reading import read_all
from tests.fixtures.storage_harness import AdoptingLife, Book, LeavingLife, Life, format_disk

pytestmark = pytest.mark.no_service

STRIDE = 29
"""Of the operations that are faulted; ALL=1 faults all. The rig `disk` draws thousands more."""
LAST_ID = 20_000
"""Above every id in use here."""
SCRATCH = 77
"""A ledger written to only after a restart, to see that the bookie lives."""


def mixed(life: Life, rng: random.Random) -> None:
    """Adds, batches, recovery adds, repeats, conflicts, fences, flushes, a deletion."""
    for round_number in range(6):
        first = round_number * 10
        for n in range(6):
            life.add(1, first + n, rng.randbytes(rng.choice([0, 30, 900, 3000])))
        life.add_batch(2, first, [rng.randbytes(50), b"", rng.randbytes(700)])
        life.settle()
        life.add(1, first + 2, rng.randbytes(40))  # another payload: a conflict
        life.recovery_add(3, 100 - round_number, rng.randbytes(200))
        life.settle()
        if round_number == 1:
            life.fence(2)
            life.fence(900)
        if round_number in (2, 4):
            life.flush()
        if round_number == 3:
            life.delete(3)
    life.settle()


def many_flushes(life: Life, rng: random.Random) -> None:
    """Small flushes, each with few entries: merges, and journal files that are recycled."""
    for round_number in range(12):
        for n in range(3):
            life.add(n, round_number, rng.randbytes(4000))
        life.settle()
        life.flush()
        if round_number == 6:
            life.fence(0)
            life.settle()


def full_caches(life: Life, rng: random.Random) -> None:
    """More than both caches hold, so that flushes begin by themselves."""
    for n in range(60):
        life.add(n % 4, n, rng.randbytes(6000))
        if n % 5 == 4:
            life.settle()
    life.settle()


def runs(life: Life, rng: random.Random) -> None:
    """Runs that stay in the journal's files, loose records beside them, a deletion that empties a file."""
    for round_number in range(10):
        first = round_number * 8
        for n in range(8):
            life.add(1 + round_number // 5, first + n, rng.randbytes(rng.choice([900, 3000])))
        life.add_batch(5, first, [rng.randbytes(50), rng.randbytes(2500), b""])
        life.add(6, round_number, b"small")
        life.settle()
        life.add(1 + round_number // 5, first + 2, rng.randbytes(40))  # another payload: a conflict
        life.recovery_add(3, 100 - round_number, rng.randbytes(200))
        life.settle()
        if round_number % 3 == 1:
            life.flush()
        if round_number == 6:
            life.fence(5)
            life.delete(1)
    life.settle()


WORKLOADS: dict[str, Callable[[Life, random.Random], None]] = {
    "mixed": mixed,
    "many_flushes": many_flushes,
    "full_caches": full_caches,
    "runs": runs,
    "left_early": runs,
}
FAULTS = {
    "cut": {"action": "cut"},
    "eio": {"action": "fail", "errno": errno.EIO},
    "enospc": {"action": "fail", "errno": errno.ENOSPC},
    "short": {"action": "short"},
}


def lives(workload: str) -> type[Life]:
    """Return what kind of bookie a workload is for."""
    return {"runs": AdoptingLife, "left_early": LeavingLife}.get(workload, Life)


def nothing(_life: Life, _rng: random.Random) -> None:
    """Do no work."""


def run(
    fake: FakeDisk, book: Book, workload: str, seed: int, *, only_starts: bool = False
) -> BaseException | None:
    """One life of the bookie; returns what ended it early."""
    life = None
    try:
        life = lives(workload)(fake, book)
        work = nothing if only_starts else WORKLOADS[workload]
        work(life, random.Random(seed))
        life.stop()
        return None
    except (OSError, Error) as error:
        if life is not None and life.harness is not None:
            life.look_at_the_end()
            life.close()
        return error


def check_all(life: Life, note: str) -> None:
    """Ask for everything that was ever sent, one by one, in batches and as lists."""
    book = life.book
    assert not life.index.status.limbo, f"{note}: damage was found where there is none"
    wanted = [key for key in book.sent if key[0] not in book.deleted]
    for (ledger_id, entry_id), answer in zip(wanted, read_all(life, wanted), strict=True):
        raws = book.sent[ledger_id, entry_id]
        acked = book.acked.get((ledger_id, entry_id))
        where = f"{note}: ledger {ledger_id} entry {entry_id}"
        if acked is not None:
            assert answer.status == OK, f"{where}: acknowledged, and now {answer.status}"
            assert answer.entry == acked, f"{where}: acknowledged with another payload"
        else:
            assert answer.status in (OK, NO_ENTRY, NO_LEDGER), f"{where}: {answer.status}"
            assert answer.status != OK or answer.entry in raws, f"{where}: nobody sent this"
    for ledger_id in {key[0] for key in book.sent} - book.deleted:
        check_ledger(life, ledger_id, note)


def check_ledger(life: Life, ledger_id: int, note: str) -> None:
    acked = {entry_id for ledger, entry_id in life.book.acked if ledger == ledger_id}
    sent = {entry_id for ledger, entry_id in life.book.sent if ledger == ledger_id}
    answer = life.ask(life.harness.list_entries(ledger_id))
    if answer.status == NO_LEDGER:
        assert not acked, note
        return
    assert answer.status == OK, f"{note}: list {answer.status}"
    assert answer.next_entry_id == -1, note
    listed = {n for first, last in answer.ranges for n in range(first, last + 1)}
    assert acked <= listed <= sent, (
        f"{note}: ledger {ledger_id}: {acked - listed} missing, {listed - sent} invented"
    )
    found: dict[int, bytes] = {}
    position = 0
    while position <= LAST_ID:
        answer = life.ask(life.harness.read_batch(ledger_id, position, LAST_ID, 7))
        assert answer.status == OK, f"{note}: batch at {position}: {answer.status}"
        for raw in answer.entries:
            found[int.from_bytes(raw[8:16], "big")] = raw
        assert answer.next_entry_id > position, note
        position = answer.next_entry_id
    assert set(found) == listed, f"{note}: ledger {ledger_id}: batches and list disagree"
    for entry_id in acked:
        assert found[entry_id] == life.book.acked[ledger_id, entry_id], note


def check_fences(life: Life, note: str) -> None:
    """Fences hold; ledgers that nobody fenced take adds."""
    book = life.book
    for ledger_id in sorted(book.fenced - book.deleted):
        life.add(ledger_id, 5000, b"late")
        (sent,) = life.waiting
        life.settle()
        assert sent.verdict == FENCED, f"{note}: ledger {ledger_id} was fenced, and took an add"
        assert (ledger_id, 5000) not in book.acked
    entry_id = 1 + max((e for ledger, e in book.sent if ledger == SCRATCH), default=-1)
    life.add(SCRATCH, entry_id, b"alive")
    life.settle()
    assert (SCRATCH, entry_id) in book.acked, f"{note}: takes no adds any more"


def check_restart(fake: FakeDisk, book: Book, note: str, workload: str = "mixed") -> None:
    life = lives(workload)(fake, book)
    try:
        check_all(life, note)
        check_fences(life, note)
        life.flush()
        check_all(life, note + ", flushed")
    finally:
        life.close()


def formatted(seed: int = 1) -> FakeDisk:
    fake = FakeDisk(seed=seed)
    format_disk(fake)
    return fake


@functools.cache
def count_operations(workload: str) -> int:
    with formatted() as fake:
        before = fake.operations()
        book = Book()
        error = run(fake, book, workload, 5)
        assert error is None, error
        assert len(book.acked) > 20
        check_restart(fake, book, workload, workload)
        count = fake.operations() - before
    assert count > 50
    return count


ENDS = [
    ("cut", "lose"),
    ("cut", "keep"),
    ("cut", "random"),  # torn: any of the sectors that were not synced
    *((fault, mode) for fault in ("eio", "enospc", "short") for mode in ("keep", "random")),
]


@pytest.mark.parametrize(("fault", "mode"), ENDS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_operation(workload: str, fault: str, mode: str, seed: int) -> None:
    """`mode`: after a cut what becomes of what was not synced; after others, `keep`: only the processes die."""
    with formatted() as pristine:
        total = count_operations(workload)
        for nth in operations_to_fault(total, STRIDE, seed):
            with pristine.copy() as fake:
                note = f"{workload}, {fault} at operation {nth} of {total}, then {mode}"
                book = Book()
                fake.fault(nth=nth, **FAULTS[fault])
                run(fake, book, workload, 5)
                fake.clear_faults()
                if fault == "cut" or mode != "keep":
                    restart(fake, mode, nth)
                check_restart(fake, book, note, workload)


def restart(fake: FakeDisk, mode: str, seed: int) -> None:
    if not fake.is_off:
        fake.cut()
    fake.restart(mode, seed)


def killed(fake: FakeDisk, book: Book, workload: str) -> None:
    """A life that ends as by SIGKILL, with all its work in the journal's tail."""
    life = lives(workload)(fake, book, flush_used_bytes=1 << 30, cache_bytes=2 << 20)
    WORKLOADS[workload](life, random.Random(6))
    life.look_at_the_end()
    life.close()


@pytest.mark.parametrize("mode", ["lose", "random"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("workload", ["full_caches", "runs"])
def test_every_operation_of_a_replay(workload: str, fault: str, mode: str, seed: int) -> None:
    """Replay is cut off at each of its operations, and begun again (F10)."""
    with formatted() as pristine:
        known = Book()
        killed(pristine, known, workload)
        with pristine.copy() as fake:
            life = lives(workload)(fake, copy.deepcopy(known))
            assert life.replayed.batches > 5
            if workload == "runs":
                kinds = {log.kind for log in life.checkpoint.manifest.logs}
                assert JOURNAL in kinds, "replay publishes runs where they lie"
            else:
                assert life.flusher.flushes > 1, "the cache was full more than once"
            life.close()
            total = fake.operations()
        for nth in operations_to_fault(total, STRIDE // 2, seed):
            with pristine.copy() as fake:
                book = copy.deepcopy(known)
                fake.fault(nth=nth, **FAULTS[fault])
                run(fake, book, workload, 5, only_starts=True)
                fake.clear_faults()
                restart(fake, mode, nth)
                note = f"{fault} at operation {nth} of a replay's {total}, then {mode}"
                check_restart(fake, book, note, workload)


@pytest.mark.parametrize("fault", ["eio", "short"])
def test_one_bad_read_at_a_start_is_not_taken_for_damage(fault: str) -> None:
    """It would be remembered for good, and the bookie be in limbo for nothing."""
    with formatted() as pristine:
        known = Book()
        life = Life(pristine, known)
        mixed(life, random.Random(3))
        life.stop()
        with pristine.copy() as fake:
            before = fake.operations("read")
            Life(fake, copy.deepcopy(known)).close()
            total = fake.operations("read") - before
        assert total > 5
        for nth in range(1, total + 1):
            with pristine.copy() as fake:
                fake.fault(nth=nth, kind="read", **FAULTS[fault])
                try:
                    life = Life(fake, copy.deepcopy(known))
                except (OSError, Error):
                    continue  # it may refuse to start, and starts the next time
                note = f"{fault} at read {nth} of {total}"
                assert not life.checkpoint.manifest.damage, note
                assert not life.index.status.limbo, note
                life.close()


def test_crash_loop_in_replay() -> None:
    """Cut again and again, a little later each time."""
    with formatted() as fake:
        book = Book()
        killed(fake, book, "full_caches")
        for nth in (5, 12, 20, 31, 43, 57):
            fake.fault("cut", nth=nth)
            run(fake, book, "full_caches", 5, only_starts=True)
            fake.clear_faults()
            restart(fake, "random", nth)
        check_restart(fake, book, "after six cuts in replay")


# ---- damage (A10): the disk lied about what it had acknowledged


def damaged(life: Life) -> None:
    book = life.book
    assert life.replayed.is_damaged
    assert life.index.status.limbo
    told = 0
    for (ledger_id, entry_id), raws in book.sent.items():
        answer = life.ask(life.harness.read(ledger_id, entry_id))
        assert answer.status in (OK, CANNOT_TELL), "INV-X1: no is never said"
        assert answer.status != OK or answer.entry in raws
        told += answer.status == OK
    assert told > 0
    assert life.ask(life.harness.read(123456, 0)).status == CANNOT_TELL, (
        "an unknown ledger may be one of the lost"
    )
    assert life.ask(life.harness.list_entries(1)).status in (CANNOT_TELL,)


def test_acknowledged_batches_that_are_gone() -> None:
    with formatted() as fake:
        book = Book()
        life = Life(fake, book)
        for n in range(30):
            life.add(1, n, bytes(100))
            life.settle()
        life.look_at_the_end()
        life.close()
        fake.corrupt("/journal/0000000000000001.journal", 8192 + 10 * 4096 + 200, 64)
        for start in range(3):
            life = Life(fake, book)
            damaged(life)
            assert bool(life.replayed.end.damage) == (start == 0), "found once, remembered for good"
            assert len(life.checkpoint.manifest.damage) == 1
            before = len(life.waiting)
            life.add(1, 100 + start, b"fenced by damage")
            life.settle()
            assert len(life.waiting) == before
            assert (1, 100 + start) not in book.acked, "known ledgers are fenced"
            del book.sent[1, 100 + start]
            life.add(50, start, b"new ledger")
            life.settle()
            assert (50, start) in book.acked
            life.close()


IN_DOUBT = (1, 2, 900)
"""What metadata names the bookie for: two ledgers that it knows, and one of which only the lost batch knew a fence."""


def with_damage_on_record(fake: FakeDisk, book: Book) -> None:
    life = Life(fake, book)
    for n in range(30):
        life.add(1 + n % 2, n, bytes(100))
        life.settle()
    life.close()
    fake.corrupt("/journal/0000000000000001.journal", 8192 + 10 * 4096 + 200, 64)
    life = Life(fake, book)
    assert len(life.checkpoint.manifest.damage) == 1
    life.close()


def is_in_doubt(life: Life, ledger_id: int) -> bool:
    """Whether it says no, and takes an old writer's add."""
    assert life.harness is not None
    answers = life.ask(life.harness.read(ledger_id, LAST_ID)).status
    before = len(life.book.acked)
    life.add(ledger_id, LAST_ID, b"an old writer's")
    life.settle()
    del life.book.sent[ledger_id, LAST_ID]
    assert len(life.book.acked) == before or answers != CANNOT_TELL
    return answers == CANNOT_TELL


def test_damage_on_record_ends_in_the_limbo_of_all_that_may_be_harmed() -> None:
    """INV-X6: from then on "no" is the truth of all others again, and new ledgers are in no doubt."""
    with formatted() as fake:
        book = Book()
        with_damage_on_record(fake, book)
        for start in range(3):
            life = Life(
                fake, book, **({"limbo": IN_DOUBT, "is_listed": True} if start == 0 else {})
            )
            assert bool(life.replayed.ended) == (start == 0)
            assert not life.replayed.is_damaged
            assert not life.index.status.limbo
            assert life.checkpoint.manifest.damage == ()
            batch = life.ask(life.harness.read_batch(1, 0))
            assert (batch.status, len(batch.entries)) == (OK, 1), (
                "what is on disk is shown, up to a gap"
            )
            assert [is_in_doubt(life, one) for one in IN_DOUBT] == [True] * 3, (
                "they wait for their repair"
            )
            assert life.ask(life.harness.read(123456, 0)).status == NO_LEDGER
            life.add(50, start, b"new ledger")
            life.settle()
            assert (50, start) in book.acked
            assert life.ask(life.harness.read(50, LAST_ID)).status == NO_ENTRY
            for (ledger_id, entry_id), raws in book.sent.items():
                answer = life.ask(life.harness.read(ledger_id, entry_id))
                assert answer.status in (OK, CANNOT_TELL)
                assert answer.status != OK or answer.entry in raws
            life.close()


def test_damage_that_is_met_by_the_same_start_stays_on_record() -> None:
    """The list of ledgers is older than it: who was named since is not in it."""
    with formatted() as fake:
        book = Book()
        with_damage_on_record(fake, book)
        life = Life(fake, book)
        for n in range(10):
            life.add(50, n, bytes(100))
            life.settle()
        names = life.disks[0].list("/journal")
        life.close()
        written = min(names)
        fake.corrupt(f"/journal/{written}", 8192 + 2 * 4096 + 200, 64)
        life = Life(fake, book, limbo=IN_DOUBT, is_listed=True)
        assert life.replayed.is_newly_damaged
        assert [one.file_id for one in life.checkpoint.manifest.damage] == [
            int(written.split(".")[0], 16)
        ]
        assert life.index.status.limbo
        assert life.ask(life.harness.read(123456, 0)).status == CANNOT_TELL
        life.close()
        life = Life(fake, book, limbo=(*IN_DOUBT, 50), is_listed=True)
        assert life.checkpoint.manifest.damage == ()
        assert [is_in_doubt(life, one) for one in (*IN_DOUBT, 50)] == [True] * 4
        life.close()


@pytest.mark.parametrize("mode", ["lose", "keep", "random"])
def test_cut_anywhere_the_record_ends_with_the_limbo_that_takes_its_place(mode: str) -> None:
    """INV-X6: one commit does both. Even if nobody listed anything at the next start, nothing harmed is denied."""
    with formatted() as pristine:
        known = Book()
        with_damage_on_record(pristine, known)
        with pristine.copy() as fake:
            before = fake.operations()
            Life(fake, copy.deepcopy(known), limbo=IN_DOUBT, is_listed=True).close()
            total = fake.operations() - before
        ends = set()
        for nth in range(1, total + 1):
            with pristine.copy() as fake:
                fake.fault("cut", nth=nth)
                try:
                    Life(fake, copy.deepcopy(known), limbo=IN_DOUBT, is_listed=True).close()
                except (OSError, Error):
                    pass
                fake.clear_faults()
                restart(fake, mode, nth)
                life = Life(fake, copy.deepcopy(known))
                ends.add(not life.checkpoint.manifest.damage)
                assert [is_in_doubt(life, one) for one in IN_DOUBT[:2]] == [True] * 2, nth
                assert life.ask(life.harness.read(900, 0)).status == CANNOT_TELL, (
                    f"cut at {nth} of {total}"
                )
                life.close()
        assert ends == {True, False}


def test_the_checks_find_a_lost_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that is too far ahead loses batches: these tests have to notice."""
    real = Checkpoint.run
    monkeypatch.setattr(
        Checkpoint,
        "run",
        lambda self, store, items, mark, **more: real(self, store, items, mark + 3, **more),
    )
    with formatted() as fake:
        book = Book()
        life = Life(fake, book)
        for n in range(20):
            life.add(1, n, bytes(100))
            life.settle()
        life.close()
        with pytest.raises(AssertionError):
            check_restart(fake, book, "the mark lies")


def test_the_checks_find_a_forgotten_fence() -> None:
    with formatted() as fake:
        book = Book()
        life = Life(fake, book)
        life.add(1, 0, b"x")
        life.settle()
        life.close()
        book.fenced.add(1)
        with pytest.raises(AssertionError, match="was fenced"):
            check_restart(fake, book, "nobody fenced it")


def test_what_came_late_into_a_gap_of_a_run_is_there_after_a_replay() -> None:
    """INV-A5, INV-X3: the ids of a run with gaps surround what is not in it."""
    with formatted() as fake:
        book = Book()
        life = AdoptingLife(fake, book)
        for n in (0, 1, 2, 5, 6):
            life.add(1, n, bytes([n]) * 900)
        life.settle()
        for n in (3, 4):
            life.add(1, n, bytes([n]) * 900)
        life.recovery_add(1, 8, b"repaired")
        life.settle()
        assert {(1, n) for n in (0, 1, 2, 3, 4, 5, 6, 8)} <= book.acked.keys()
        life.look_at_the_end()
        life.close()
        check_restart(fake, book, "a gap", "runs")
