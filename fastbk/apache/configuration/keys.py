"""What a row of the tables of Apache's keys says. Data only; the rows are in `keys_settings` and `keys_ignored`."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """What becomes of a key."""

    HONOURED = "honoured"
    """It means here what it means there."""
    TRANSLATED = "translated"
    """It sets something of ours that comes nearest; the note says how they differ."""
    IGNORED = "ignored"
    """It changes nothing here; the note says why that is all right."""
    REFUSED = "refused"
    """The bookie does not start: ignoring it would change durability, security or placement."""


class Kind(enum.StrEnum):
    """How a value is written."""

    INTEGER = "integer"
    BOOLEAN = "boolean"
    RATIO = "ratio"
    TEXT = "text"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Key:
    """One of Apache's keys.

    Attributes:
        name: as Apache spells it.
        default: what Apache does without it, as its file would say it; empty: nothing.
        verdict: for REFUSED, what becomes of it when its value is not one of `harmless`.
        setting: ours, as `section.field`, several with spaces between; empty where there is none.
        kind: how its value is written.
        times: an integer times this is what the setting counts in.
        least, most: the setting's bounds: what is outside is brought to the nearest, and reported.
        off: an integer of at most this switches something off; `off_setting` is then what the setting gets.
        rule: the part of `translate` that handles it together with others; empty: it stands for itself.
        harmless: values, in lower case, that ask for nothing that is missing here.
        note: what people should know; for IGNORED and REFUSED the reason.
    """

    name: str
    default: str
    verdict: Verdict
    setting: str = ""
    kind: Kind = Kind.INTEGER
    times: int = 1
    least: int | None = None
    most: int | None = None
    off: int | None = None
    off_setting: float = 0
    rule: str = ""
    harmless: tuple[str, ...] = ()
    note: str = ""
