"""The named conditions that speak against using a bookie now, each with its reason. Pure.

`/readyz` answers for data: 503 while a condition of `data` stands. `/readyz/metadata` answers for
both: 503 while a condition of `data` or `metadata` stands. A `notice` is reported and changes no
status. Whoever finds a fault puts a condition under a name of its own and removes it afterwards.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Concern = Literal["data", "metadata", "notice"]


class Condition(msgspec.Struct, frozen=True):
    """One reason.

    Attributes:
        name: unique, with the subject first: `state`, `metadata`, `disk.ledger.0`, `frozen.journal`.
        concerns: what it speaks against.
        reason: a sentence for people.
    """

    name: str
    concerns: Concern
    reason: str


class Conditions:
    """The conditions that stand now, in the order in which they came."""

    def __init__(self) -> None:
        self._standing: dict[str, Condition] = {}

    def put(self, name: str, reason: str | None, concerns: Concern = "data") -> None:
        """Set the condition `name`, or remove it (None)."""
        if reason is None:
            self._standing.pop(name, None)
        else:
            self._standing[name] = Condition(name, concerns, reason)

    def all(self) -> list[Condition]:
        """Return all conditions."""
        return list(self._standing.values())


def reasons_of(conditions: list[Condition], *concerns: Concern) -> list[str]:
    """Return the reasons of those conditions that concern one of `concerns`."""
    return [one.reason for one in conditions if one.concerns in concerns]
