"""A life of the storage rig whose acknowledgements have a time, so that any moment of it can be judged afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbk.native._bookie import ffi
from tests.fixtures.journal_rig import JOURNAL_PUBLISHED
from tests.fixtures.storage_rig import Book, Life, Sent
from tests.rigs.judge import Key, Known

if TYPE_CHECKING:
    from fastbk.native.cdata import CData
    from fastbk.native.fake_disk import FakeDisk, Snapshot

NEVER = 1 << 62


@dataclass(frozen=True)
class Told:
    """When an acknowledgement left: by the journal with a descriptor, or (-1) by the index at a moment."""

    life: int
    descriptor: int
    moment: int


@dataclass
class TimedBook(Book):
    """What clients know, with times. A moment is one of the fake disk's."""

    life: int = 0
    told: dict[Key, Told] = field(default_factory=dict)
    fenced_at: dict[int, int] = field(default_factory=dict)
    deleted_at: dict[int, int] = field(default_factory=dict)

    def known_at(self, snapshot: Snapshot) -> Known:
        """What clients knew when a snapshot was taken in the life that is under way."""
        moment, published = snapshot.moment, snapshot.watched

        def is_known(told: Told) -> bool:
            if told.life == self.life and told.descriptor >= 0:
                return told.descriptor < published
            return told.moment < moment

        return Known(
            acked={key: data for key, data in self.acked.items() if is_known(self.told[key])},
            sent=self.sent,
            fenced={ledger_id for ledger_id, at in self.fenced_at.items() if at < moment},
            deleted={ledger_id for ledger_id, at in self.deleted_at.items() if at < moment},
        )

    def known(self) -> Known:
        """What clients know now."""
        return Known(self.acked, self.sent, self.fenced, self.deleted)


class TimedLife(Life):
    """A life on a fake disk that takes snapshots every `stride` moments (0: none)."""

    book: TimedBook

    def __init__(self, fake: FakeDisk, book: TimedBook, *, stride: int = 0, **options: Any) -> None:
        self._fake = fake
        self._stride = stride
        self._segment: CData | None = None
        book.life += 1
        if stride:
            fake.take_snapshots(stride, stride)
        super().__init__(fake, book, **options)

    def _segments_made(self) -> None:
        if self._stride and self.rig is not None:
            self._segment = ffi.from_buffer("uint8_t[]", self.rig.journal.map)
            word = ffi.cast("uint64_t *", self._segment + JOURNAL_PUBLISHED)
            self._fake.take_snapshots(self._stride, self._stride, word)

    def close(self) -> None:
        if self._stride:
            self._fake.take_snapshots(1, 0)
        if self._segment is not None:
            ffi.release(self._segment)  # else the segment could not be unmapped
            self._segment = None
        super().close()

    def _acked(self, sent: Sent) -> None:
        super()._acked(sent)
        direct = sent.verdict == 0
        told = Told(self.book.life, sent.descriptor if direct else -1, self._fake.moments)
        for n in range(len(sent.entries)):
            self.book.told.setdefault((sent.ledger_id, sent.entry_id + n), told)

    def _fenced(self, ledger_id: int) -> None:
        super()._fenced(ledger_id)
        self.book.fenced_at.setdefault(ledger_id, self._fake.moments)

    def delete(self, ledger_id: int) -> None:
        self.book.deleted_at.setdefault(ledger_id, self._fake.moments)
        super().delete(ledger_id)
