"""The one checker of all rigs: what was promised before a failure, compared with what is found after it.

- An entry that was acknowledged is there with the bytes that were acknowledged; "no such entry" and "cannot tell" are
  both losses where the rig did not damage that entry itself (INV-J1, INV-X1, INV-X3).
- What is there was sent by somebody for that very id.
- A fence that was answered still fences (INV-F1, INV-F2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

Key = tuple[int, int]
"""Ledger and entry."""


@dataclass
class Known:
    """What clients know at the moment of the failure.

    Attributes:
        acked: entry -> the bytes that were acknowledged.
        sent: entry -> everything that was ever sent for it.
        fenced: ledgers whose fence was answered.
        deleted: ledgers that may be gone: their deletion had begun.
        damaged: entries that the rig itself damaged: they may be called unknown, but never missing or else.
    """

    acked: Mapping[Key, bytes]
    sent: Mapping[Key, Sequence[bytes]]
    fenced: Collection[int] = ()
    deleted: Collection[int] = ()
    damaged: Collection[Key] = ()

    def keys(self) -> list[Key]:
        """All entries that were ever sent, but for those of deleted ledgers."""
        return [key for key in self.sent if key[0] not in self.deleted]


@dataclass
class Found:
    """What a bookie says after the failure.

    Attributes:
        entries: what it has. untold: entries that it "cannot tell" of.
        fenced: ledgers that it refuses adds to.
        complaints: damage it reports although nothing was damaged.
    """

    entries: dict[Key, bytes] = field(default_factory=dict)
    untold: set[Key] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)


def judge(known: Known, found: Found) -> list[str]:
    """Return what is wrong, a line each; empty when nothing is."""
    wrong = [f"damage where there is none: {each}" for each in found.complaints]
    for key, data in known.acked.items():
        if key[0] in known.deleted:
            continue
        there = found.entries.get(key)
        if there == data:
            continue
        if there is not None:
            wrong.append(f"entry {key}: acknowledged with other bytes")
        elif key not in found.untold:
            wrong.append(f"entry {key}: acknowledged, and not there")
        elif key not in known.damaged:
            wrong.append(f"entry {key}: acknowledged, and called unknown")
    for key, data in found.entries.items():
        if data not in known.sent.get(key, ()):
            wrong.append(f"entry {key}: nobody sent this")
    for ledger_id in known.fenced:
        if ledger_id not in found.fenced and ledger_id not in known.deleted:
            wrong.append(f"ledger {ledger_id}: was fenced, and takes adds")
    return wrong
