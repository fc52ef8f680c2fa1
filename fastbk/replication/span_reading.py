"""Reading one bookie's share of a striped fragment in few requests: of each other holder a whole span of ids. Pure.

The share of an ensemble's bookie is many short runs: with E = 3 and Qw = 2, two ids of each three. A request for each
run costs more than its entries. So a few holders, which have the whole share together, are asked for everything that
they hold of a span, and what is not of the share is dropped: with Qw = 2 that is half, in general less than that.

It asks each holder once and proves nothing. What it does not get is `left`, and is read with all patience by
`ReadRange`, which asks every holder before it says that an entry is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import write_set
from fastbk.replication.actions import Found, Outcome, ReadEntries, Reply
from fastbk.replication.options import ReadOptions
from fastbk.replication.procedure import Procedure
from fastbk.wire.statuses import Status

Run = tuple[EntryId, EntryId]


@dataclass(slots=True)
class SpanRead:
    """What came of a span.

    Attributes:
        found: entries of the share, by rising id. left: runs that no answer had.
        ahead: runs behind what the shortest answer reached, untouched.
        silent: holders that gave nothing at all.
    """

    found: list[Found] = field(default_factory=list)
    left: list[Run] = field(default_factory=list)
    ahead: list[Run] = field(default_factory=list)
    silent: set[BookieId] = field(default_factory=set)


def choose_sources(
    metadata: LedgerMetadata,
    fragment: Fragment,
    lost: BookieId,
    away: Collection[BookieId],
    turn: int,
    pressed: Collection[BookieId] = (),
) -> dict[int, BookieId]:
    """Return who is asked for which ids of the share, by id modulo E: few holders, and not the same ones each `turn`.

    Ids that only `lost` and those that are `away` hold are not in it. `pressed`: asked only for what others lack.
    """
    size, ensemble = metadata.ensemble_size, fragment.ensemble
    lost_index = ensemble.index(lost)
    holders = {one: write_set(one, size, metadata.write_quorum) for one in range(size)}
    due = {one for one, indexes in holders.items() if lost_index in indexes}
    candidates = [
        (lost_index + turn + offset) % size
        for offset in range(size)
        if ensemble[(lost_index + turn + offset) % size] not in {lost, *away}
    ]
    candidates.sort(key=lambda index: ensemble[index] in pressed)
    chosen: dict[int, BookieId] = {}
    while due and candidates:
        best = max(
            candidates,
            key=lambda index: (
                ensemble[index] not in pressed,
                sum(index in holders[one] for one in due),
            ),
        )
        covered = {one for one in due if best in holders[one]}
        candidates.remove(best)
        chosen.update(dict.fromkeys(covered, ensemble[best]))
        due -= covered
    return chosen


class ReadSpan(Procedure[SpanRead]):
    """Reads these runs of one share, each id from the holder in `sources`; the value is a `SpanRead`."""

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble_size: int,
        runs: Sequence[Run],
        sources: Mapping[int, BookieId],
        options: ReadOptions,
    ) -> None:
        super().__init__()
        self._ledger_id = ledger_id
        self._runs = runs
        self._options = options
        self._wanted: dict[BookieId, set[EntryId]] = {}
        for first, last in runs:
            for entry_id in range(first, last + 1):
                source = sources.get(entry_id % ensemble_size)
                if source is not None:
                    self._wanted.setdefault(source, set()).add(entry_id)
        self._found: list[Found] = []
        self._span = SpanRead()
        self._last = runs[-1][1]
        self._waiting = len(self._wanted)
        self._asked_s = 0.0

    def begin(self, now_s: float) -> None:
        """Ask all at once."""
        options = self._options
        self._asked_s = now_s
        for bookie_id, wanted in self._wanted.items():
            first, last = min(wanted), max(wanted)
            request = ReadEntries(first, last, options.batch_entries, options.batch_bytes)

            def answered(
                outcome: Outcome,
                at_s: float,
                source: BookieId = bookie_id,
                asked: ReadEntries = request,
            ) -> None:
                self._answered(source, asked, outcome, at_s)

            self._ask(bookie_id, request, options.pacing.request_timeout_s, answered)
        if not self._wanted:
            self._end_span(now_s)

    def _answered(
        self, source: BookieId, asked: ReadEntries, outcome: Outcome, now_s: float
    ) -> None:
        self._waiting -= 1
        self._options.noted(source, outcome, self._asked_s, now_s)
        if isinstance(outcome, Reply) and outcome.status == Status.OK:
            wanted = self._wanted[source]
            self._found += [one for one in outcome.found if one.entry_id in wanted]
            # What is damaged hides how far the answer goes: the rest of this holder's part is left.
            if not outcome.damaged and asked.first < outcome.next_entry_id <= asked.last:
                self._last = min(self._last, outcome.next_entry_id - 1)
        else:
            self._span.silent.add(source)
        if not self._waiting:
            self._end_span(now_s)

    def _end_span(self, now_s: float) -> None:
        read = self._span
        read.found = sorted(
            (one for one in self._found if one.entry_id <= self._last), key=lambda one: one.entry_id
        )
        there = {one.entry_id for one in read.found}
        for first, last in self._runs:
            if last > self._last:
                read.ahead.append((max(first, self._last + 1), last))
            for entry_id in range(first, min(last, self._last) + 1):
                if entry_id in there:
                    continue
                if read.left and read.left[-1][1] == entry_id - 1:
                    read.left[-1] = read.left[-1][0], entry_id
                else:
                    read.left.append((entry_id, entry_id))
        self._finish(read, now_s)
