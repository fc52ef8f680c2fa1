"""What became of a file in Apache's format, key by key, for the log, the command line and people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.apache.configuration import key_table
from fastbk.apache.configuration.keys import Verdict

if TYPE_CHECKING:
    from fastbk.apache.configuration.keys import Key

SECRET = ("password", "passwd")
"""Words in the names of keys whose values are not shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one key that is set."""

    key: Key
    value: str
    """As written, variables in it."""
    origin: str
    """A line of the file, or the name of an environment variable."""
    settings: tuple[str, ...] = ()
    """Ours that it set, as `section.field`."""
    remarks: tuple[str, ...] = ()
    """What was done to its value."""
    is_harmless: bool = False
    """It would be refused with another value."""

    @property
    def verdict(self) -> Verdict:
        """What became of it, with this value."""
        return Verdict.IGNORED if self.is_harmless else self.key.verdict

    @property
    def reason(self) -> str:
        """Why it changes nothing, what is different here, or what was done to it; empty: nothing to say."""
        if self.is_harmless:
            return "asks for nothing that is missing here"
        return "; ".join((*self.remarks, *([self.key.note] if self.key.note else ())))

    @property
    def shown(self) -> str:
        """The value for people."""
        return "***" if any(word in self.key.name.lower() for word in SECRET) else self.value


@dataclass(slots=True)
class Report:
    """All findings of one file."""

    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why the bookie does not start; empty when it may."""
    remarks: list[str] = field(default_factory=list)
    """What is worth a warning at each start."""
    notes: list[str] = field(default_factory=list)
    """What is worth knowing."""
    origins: dict[str, str] = field(default_factory=dict)
    """`section.field` to the keys that set it."""

    def named(self, verdict: Verdict) -> list[str]:
        """Return the names of the keys with a verdict, unknown ones left out."""
        return [
            one.key.name
            for one in self.findings
            if one.verdict is verdict and not key_table.is_unknown(one.key)
        ]

    def unknown(self) -> list[str]:
        """Return the names of keys that nobody knows."""
        return [one.key.name for one in self.findings if key_table.is_unknown(one.key)]
