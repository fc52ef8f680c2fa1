"""Builds fastbk's configuration from the keys of Apache's file, and reports what became of each
key.

`key_translation.py` has the rules. The report is for the log, the command line and people.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbk.apache.configuration import keys
from fastbk.apache.configuration.keys import KEYS, Kind, Verdict, key_of
from fastbk.errors import ConfigError
from fastbk.server.configuration.bookie_config import BookieConfig

if TYPE_CHECKING:
    from fastbk.apache.configuration.keys import Key
    from fastbk.apache.configuration.source import KeySource

TOO_MUCH = 1 << 60
JOINED = ("metadataServiceUri",)
"""Its commas stand between servers."""


class ConfigBuilder:
    """The keys of one file, and the settings that the rules have set so far."""

    def __init__(self, source: KeySource) -> None:
        self.source = source
        self.report = Report()
        self.document: dict[str, dict[str, Any]] = {}
        self._remarks: dict[str, list[str]] = {}

    def put(self, setting: str, value: object, *keys: str) -> None:
        """Set one of ours (`section.field`); `keys` are those that it comes from."""
        section, _, name = setting.partition(".")
        self.document.setdefault(section, {})[name] = value
        self.report.origins[setting] = ", ".join(
            f"{key} ({self.source.origin(key)})" for key in keys if key in self.source.properties
        )

    def get(self, setting: str) -> Any:  # noqa: ANN401 (whatever type that setting has)
        """Return what one of ours is as things stand, its default where nothing set it."""
        section, _, name = setting.partition(".")
        if name in self.document.get(section, {}):
            return self.document[section][name]
        return getattr(getattr(BookieConfig(), section), name)

    def is_set(self, setting: str) -> bool:
        """Return whether something set one of ours."""
        section, _, name = setting.partition(".")
        return name in self.document.get(section, {})

    def raise_to(self, setting: str, least: int, why: str) -> None:
        """Make one of ours at least `least`, and say so where it was set."""
        was = self.get(setting)
        if was < least:
            origin = self.report.origins.get(setting, "")
            self.put(setting, least)
            self.report.origins[setting] = ", ".join(filter(None, (origin, f"raised: {why}")))

    def remark(self, key: str, text: str) -> None:
        """Note what was done to a key's value."""
        self._remarks.setdefault(key, []).append(text)

    def remark_bounded(self, key: str, wanted: int, allowed: int, shown: str) -> None:
        """Note that a key's value was brought within bounds, if it was; `shown`: what is allowed, for people."""
        if allowed != wanted:
            self.remark(key, f"{'raised' if allowed > wanted else 'lowered'} to {shown}")

    def integer(self, key: str) -> int | None:
        """Return a key's value within the bounds of its row, times what the row says; None when it is not set."""
        value = self.source.integer(key)
        if value is None:
            return None
        row = KEYS[key]
        scaled = value * row.times
        least, most = row.least, row.most or TOO_MUCH
        bounded = min(max(scaled, least) if least is not None else scaled, most)
        if row.off is None or value > row.off:
            self.remark_bounded(key, scaled, bounded, str(bounded // row.times))
        return bounded

    def simple(self) -> None:
        """Set what stands for itself."""
        for row in keys.SETTINGS:
            if not row.rule and row.setting and row.kind is Kind.BOOLEAN:
                if (switch := self.source.boolean(row.name)) is not None:
                    self.put(row.setting, switch, row.name)
                continue
            if row.rule or row.kind is not Kind.INTEGER:
                continue
            value = self.source.integer(row.name)
            if value is None:
                continue
            if row.off is not None and value <= row.off:
                self.put(row.setting, int(row.off_setting), row.name)
            else:
                self.put(row.setting, self.integer(row.name), row.name)

    def refuse(self) -> None:
        """Note what the bookie must not start with."""
        for key in self.source.names():
            row = key_of(key)
            if row.verdict is Verdict.REFUSED and not self._is_harmless(key):
                shown = self.source.shown(key)
                self.report.problems.append(
                    f"{self.source.origin(key)}: {key} = {shown}: {row.note}"
                )

    def finish(self) -> Report:
        """Return the report, with a finding for each key."""
        by_key: dict[str, list[str]] = {}
        for setting, origin in self.report.origins.items():
            for word in origin.split():
                by_key.setdefault(word, []).append(setting)
        for key in self.source.names():
            row = key_of(key)
            if row.setting and row.kind is not Kind.LIST and key not in JOINED:
                self._remark_on_several(key)
            self.report.findings.append(
                Finding(
                    row,
                    self.source.shown(key),
                    self.source.origin(key),
                    tuple(by_key.get(key, ())),
                    tuple(self._remarks.get(key, ())),
                    is_harmless=row.verdict is Verdict.REFUSED and self._is_harmless(key),
                )
            )
        return self.report

    def _remark_on_several(self, key: str) -> None:
        """Say so where only one of a key's values counts: a line added below another one is there in vain."""
        with contextlib.suppress(ConfigError):  # a problem already
            values = self.source.items(key)
            if len(set(values)) > 1:
                self.report.remarks.append(
                    f"{key} ({self.source.origin(key)}) has several values, {','.join(values)}:"
                    " the first one counts, as in Apache"
                )

    def _is_harmless(self, key: str) -> bool:
        return (self.source.text(key) or "").lower() in ("", *key_of(key).harmless)


SECRET = ("password", "passwd")
"""Words in the names of keys whose values are not shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one key that is set."""

    key: Key
    value: str
    """The value as it is written, with its variables."""
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
            finding.key.name
            for finding in self.findings
            if finding.verdict is verdict and not keys.is_unknown(finding.key)
        ]

    def unknown(self) -> list[str]:
        """Return the names of keys that nobody knows."""
        return [finding.key.name for finding in self.findings if keys.is_unknown(finding.key)]
