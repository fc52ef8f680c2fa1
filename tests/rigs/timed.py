"""A life of the storage rig whose acknowledgements have a time, so that any moment of it can be judged afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastbk.native._bookie import ffi
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.journal_harness import JOURNAL_PUBLISHED
from tests.fixtures.storage_harness import Book, Disks, Life, Sent
from tests.rigs.judge import Key, Known

if TYPE_CHECKING:
    from fastbk.native.ffi import CData


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
    adopted_runs: int = 0
    told: dict[Key, Told] = field(default_factory=dict)
    fenced_at: dict[int, int] = field(default_factory=dict)
    deleted_at: dict[int, int] = field(default_factory=dict)

    def known_at(self, moment: int, published: int | None = None) -> Known:
        """What clients knew at a moment.

        Args:
            moment: acknowledgements that left before it are known.
            published: descriptors that the journal had published then, when the moment lies in the life under way:
                more exact than the moment at which the rig looked at them.
        """

        def is_known(told: Told) -> bool:
            if published is not None and told.life == self.life and told.descriptor >= 0:
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


class TimedDisks(Disks, Protocol):
    """Disks with a clock of their own."""

    @property
    def moments(self) -> int:
        """The time: never falls, and rises with everything that changes what a crash leaves."""


class TimedLife(Life):
    """A life whose acknowledgements have times; on a fake disk it takes snapshots every `stride` moments."""

    book: TimedBook

    def __init__(
        self, fake: TimedDisks, book: TimedBook, *, stride: int = 0, **options: Any
    ) -> None:
        self._times = fake
        self._fake = fake if isinstance(fake, FakeDisk) and stride else None
        self._stride = stride
        self._segment: CData | None = None
        book.life += 1
        if self._fake is not None:
            self._fake.take_snapshots(stride, stride)
        super().__init__(fake, book, **options)

    def _segments_made(self) -> None:
        if self._fake is not None and self.harness is not None:
            self._segment = ffi.from_buffer("uint8_t[]", self.harness.journal.map)
            word = ffi.cast("uint64_t *", self._segment + JOURNAL_PUBLISHED)
            self._fake.take_snapshots(self._stride, self._stride, word)

    def close(self) -> None:
        if self._fake is not None:
            self._fake.take_snapshots(1, 0)
        if self._segment is not None:
            ffi.release(self._segment)  # else the segment could not be unmapped
            self._segment = None
        super().close()

    def _acked(self, sent: Sent) -> None:
        super()._acked(sent)
        direct = sent.verdict == 0
        told = Told(self.book.life, sent.descriptor if direct else -1, self._times.moments)
        for n in range(len(sent.entries)):
            self.book.told.setdefault((sent.ledger_id, sent.entry_id + n), told)

    def _fenced(self, ledger_id: int) -> None:
        super()._fenced(ledger_id)
        self.book.fenced_at.setdefault(ledger_id, self._times.moments)

    def delete(self, ledger_id: int) -> None:
        self.book.deleted_at.setdefault(ledger_id, self._times.moments)
        super().delete(ledger_id)
