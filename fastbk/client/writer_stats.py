"""What a writer tells about itself."""

from __future__ import annotations

from dataclasses import dataclass

from fastbk.model.ids import BookieId
from fastbk.observe.latency import Latency
from fastbk.replication.writer_machine import WriterMachine


@dataclass(frozen=True, slots=True)
class WriterStats:
    """Figures of one writer at one moment."""

    entries: int
    """Acknowledged entries."""
    bytes: int
    """Bytes of their data."""
    entries_in_flight: int
    bytes_in_flight: int
    entries_resent: int
    """Copies sent again after a lost connection or a refusal."""
    held_bytes: int
    """Encoded entries that are held until every bookie has them."""
    lagging: dict[BookieId, int]
    """Entries that each bookie has yet to acknowledge; they are sent when it takes them."""
    under_replicated: dict[BookieId, int]
    """Acknowledged entries that each bookie was to hold and will not get from this writer."""
    trouble: dict[BookieId, str]
    """Bookies that do not answer well, and why."""
    ensemble: tuple[BookieId, ...]
    """The bookies that are written to now."""
    ensemble_changes: int
    """How often this writer took others in place of some."""
    append_latency: Latency
    """Of an entry, from the turn of the event loop that sent it to its acknowledgement by the ack quorum."""

    @property
    def is_under_replicated(self) -> bool:
        """Whether some acknowledged entry has fewer copies than the write quorum."""
        return any(self.under_replicated.values()) or any(self.lagging.values())

    @classmethod
    def of(
        cls, writer: WriterMachine, in_flight: int, bytes_in_flight: int, latency: Latency
    ) -> WriterStats:
        """Return the figures of a writer with this machine."""
        machine = writer.adds
        return cls(
            entries=machine.head,
            bytes=machine.length_confirmed,
            entries_in_flight=in_flight,
            bytes_in_flight=bytes_in_flight,
            entries_resent=machine.entries_resent,
            held_bytes=machine.held_bytes,
            lagging={
                bookie: machine.lagging(index) for index, bookie in enumerate(machine.ensemble)
            },
            under_replicated=dict(zip(machine.ensemble, machine.under_replicated, strict=True)),
            trouble=machine.trouble(),
            ensemble=writer.ensemble,
            ensemble_changes=writer.changes,
            append_latency=latency,
        )
