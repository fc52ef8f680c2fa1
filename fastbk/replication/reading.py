"""Reading a range of entries in order, from whichever replicas can give them.

Where E = Qw the range is asked for in batches; a striped ledger's in runs of ids that one bookie holds, several parts
of the range at the same time. The first bookie of the order is asked; the next one when its copy is missing, damaged, or
not to be had. With `speculative_s` the next one is asked as well when no answer came for so long, with `parallel` all
are asked at once. Only when all of a write set were asked without success is it an error, which names what each said.
Those that are away or busy are asked again until `pacing.give_up_s` passed without progress. Before it fails, the
metadata is read once more: copies may have moved.

For the driver: `ReadRange(ledger_id, metadata, first, last, options, order)` is a procedure whose value is None; what
it found is pulled, in order and as soon as it is there:

    reading.start(now_s)
    loop:  perform reading.take_actions()
           found = reading.take_found(now_s)   # [] when nothing is there yet; may cause actions: take them again
           if reading.is_finished and not found: reading.value(); done
           else wait for an outcome, reading.completed(tag, outcome, now_s)

What was found and not taken is bounded by `size_bytes_max`: a reader that does not take stops the asking. An error
comes behind everything that was found before it. It asks for ReadEntries, Sleep and (before failing) ReadMetadata.
`metadata` is the newest known to it, `position` the next entry to be handed out, `slow` counts per bookie how often
another was quicker: feed it to the order of later reads.

Unconfirmed reading (`is_unconfirmed`): the range ends without an error before the first entry that is missing.
Errors: NoSuchEntry only with Qw - Qa + 1 proofs; DigestMismatch, Unauthorized, else NotEnoughBookies.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.actions import Found
from fastbk.replication.polling import Order, as_they_are
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import Pacing


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a range is read.

    Attributes:
        batch_entries, batch_bytes: limits of one answer.
        size_bytes_max: data that may be found and not taken yet; one answer is always allowed.
        speculative_s: ask the next replica as well after so long without an answer, doubled each time; None: never.
        parallel: ask all replicas at once.
        is_unconfirmed: end before the first entry that is missing instead of failing.
        pacing: `give_up_s` is the limit of one step over all replicas; no single one gets more than its share of it.
    """

    batch_entries: int = 2_000
    batch_bytes: int = 1024 * 1024
    size_bytes_max: int = 4 * 1024 * 1024
    speculative_s: float | None = None
    parallel: bool = False
    is_unconfirmed: bool = False
    pacing: Pacing = field(default_factory=Pacing)


class ReadRange(Procedure[None]):
    """Reads [first, last]; see the module's text."""

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        options: ReadOptions | None = None,
        order: Order = as_they_are,
    ) -> None:
        super().__init__()
        self.metadata = metadata
        self.position = first
        self.slow: dict[BookieId, int] = {}

    def take_found(self, now_s: float) -> list[Found]:
        """Return the next entries in order, as many as are there; makes room for more."""
        raise NotImplementedError
