"""Rig `flips`: one bit of one file of a stopped bookie is turned over; then it is checked offline, and started.

Every kind of file takes its turn. Whatever the bit was: no wrong byte is served, nothing acknowledged is denied, fences
hold; and what the bookie cannot tell of afterwards, the offline check has found. Where one file says who may start
(identities, manifests) a refusal is right, too.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from functools import cache

from fastbk.errors import Error
from fastbk.storage import unclean
from fastbk.storage.check import Checked, DirectoryCheck
from fastbk.storage.identity import new_identity, read_identity, write_identity
from fastbk.storage.limbo import read_limbo, write_limbo
from fastbk.storage.unclean import Unclean, read_unclean, write_unclean
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import CANNOT_TELL, FENCED, OK
from tests.fixtures.storage_harness import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    AdoptingLife,
    Book,
    Life,
    format_disk,
)
from tests.rigs.report import Plan, Report

IMAGES = 8
ADOPTING_FROM = 4
"""From this image on bookies whose journal files stay as logs."""
FENCED_LEDGER, EMPTY_FENCED_LEDGER, LAST_LEDGER = 2, 900, 50
"""LAST_LEDGER: of the journal's last batches. Those can't be told from a torn tail (A10), so they are nobody's."""
IDENTITY = new_identity("b:1", INCARNATION, "ledger", 1_700_000_000)
UNCLEAN = Unclean(incarnation=f"{INCARNATION:016x}", sync="always", started_s=1_700_000_000)
LIMBO_IDS = (70, 71)
LEDGERS_NAMED = (1, 2, 3, EMPTY_FENCED_LEDGER, LAST_LEDGER)
"""By metadata."""


@dataclass(frozen=True)
class Image:
    """A stopped bookie's disk, what clients know of it, and its files by kind."""

    fake: FakeDisk
    book: Book
    files: dict[str, list[tuple[str, int]]]


@dataclass
class Flip:
    """One case. outcome: "harmless", "told" or "refused"; losses: what must never be."""

    path: str
    at: int
    bit: int
    outcome: str = "harmless"
    losses: list[str] = field(default_factory=list)


@cache
def image(number: int) -> Image:
    """Make one of some bookies: flushed and merged files, a journal behind the mark, fences; killed."""
    rng = random.Random(number)
    fake = FakeDisk(seed=number)
    format_disk(fake)
    disk = fake.disk()
    write_identity(disk, LEDGERS, IDENTITY)
    write_unclean(disk, LEDGERS, UNCLEAN)
    write_limbo(disk, LEDGERS, LIMBO_IDS, INCARNATION)
    book = Book()
    life = (AdoptingLife if number >= ADOPTING_FROM else Life)(fake, book)
    interval = 2 + number % ADOPTING_FROM
    for n in range(24):
        for ledger_id in (1, 2, 3):
            life.add(ledger_id, n * (1 + number % 2), rng.randbytes(rng.choice([20, 700, 3000])))
        if n == 20:
            life.fence(FENCED_LEDGER)
            life.fence(EMPTY_FENCED_LEDGER)
        life.settle()
        if n % interval == 1 and n < 22:
            life.flush()
    for n in range(4):
        life.add(LAST_LEDGER, n, b"last")
        life.settle()
    has_journal_logs = any(log.is_journal_file for log in life.checkpoint.manifest.logs)
    assert has_journal_logs == life.adopts
    life.close()
    files: dict[str, list[tuple[str, int]]] = {}
    for folder in (LEDGERS, f"{LEDGERS}/logs", f"{LEDGERS}/locations", JOURNAL):
        for name in disk.list(folder):
            path = f"{folder}/{name}"
            if path in (f"{LEDGERS}/logs", f"{LEDGERS}/locations"):
                continue
            kind = name.split(".")[-1 if "." in name and not name.startswith("manifest") else 0]
            files.setdefault(kind, []).append((path, len(disk.read_file(path))))
    return Image(fake, book, files)


def flip_case(seed: int) -> Flip:
    """Turn one bit over, and look at what follows from it."""
    rng = random.Random(seed)
    base = image(rng.randrange(IMAGES))
    kind = rng.choice(sorted(base.files))
    path, size = rng.choice(base.files[kind])
    # Half of them near the front, where the headers are.
    at = rng.randrange(min(size, 12_288) if rng.random() < 0.5 else size)
    flip = Flip(path, at, rng.randrange(8))
    with base.fake.copy() as fake:
        fake.corrupt(path, at, 1, 1 << flip.bit)
        checked = _check(fake, flip)
        _start(fake, base, flip)
    if flip.outcome == "told" and checked is not None and checked.is_whole:
        flip.losses.append("the bookie can't tell, and the check has found nothing")
    return flip


def _check(fake: FakeDisk, flip: Flip) -> Checked | None:
    disk = fake.disk()
    try:
        if read_identity(disk, LEDGERS) != IDENTITY:
            flip.losses.append("another identity")
        if read_unclean(disk, LEDGERS) not in (UNCLEAN, unclean.WORST):
            flip.losses.append("another mark of an unclean stop")
        if tuple(read_limbo(disk, LEDGERS, INCARNATION)) != LIMBO_IDS:
            flip.losses.append("another list of ledgers in limbo")
        return DirectoryCheck(disk, LEDGERS, disk, JOURNAL, INCARNATION).run()
    except Error:
        flip.outcome = "refused"
        return None


def _start(fake: FakeDisk, base: Image, flip: Flip) -> None:
    book = copy.deepcopy(base.book)
    try:
        life = Life(fake, book)
        if life.replayed.is_newly_damaged:  # what the supervisor does then
            life.close()
            life = Life(fake, book, limbo=LEDGERS_NAMED)
    except Error:
        flip.outcome = "refused"
        return
    try:
        for key, raw in base.book.acked.items():
            if key[0] == LAST_LEDGER:
                continue
            answer = life.ask(life.harness.read(*key))
            if answer.status == CANNOT_TELL:
                flip.outcome = "told"
            elif answer.status != OK:
                flip.losses.append(f"{key}: acknowledged, and now {answer.status}")
            elif answer.entry != raw:
                flip.losses.append(f"{key}: other bytes")
        if life.index.status.limbo:
            flip.outcome = "told"
        for ledger_id in () if life.replayed.lost_states else (FENCED_LEDGER, EMPTY_FENCED_LEDGER):
            life.add(ledger_id, 5000, b"late")
            (sent,) = life.waiting
            life.settle()
            if sent.verdict != FENCED:
                flip.losses.append(f"ledger {ledger_id} was fenced, and took an add")
    finally:
        life.close()


def run(plan: Plan) -> Report:
    """The rig."""
    report = Report("flips")
    while plan.goes_on(report.cases):
        flip = flip_case(plan.seed + report.cases)
        report.cases += 1
        report.counts[flip.outcome] += 1
        if flip.losses:
            report.lose(
                flip.losses,
                f"seed {plan.seed + report.cases - 1}: {flip.path} byte {flip.at} bit {flip.bit}",
            )
    return report
