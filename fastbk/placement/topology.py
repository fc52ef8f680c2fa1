"""Where bookies are: locations as text, the table of a configuration, and what a topology script printed. Pure.

A location is `/region/rack`, or `/rack` alone; for the zone policy `/zone/upgrade-domain`. What people write is
checked here (ConfigError); what comes from the network or a script and is wrong counts as not said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastbk.errors import ConfigError
from fastbk.model.ids import BookieId

LOCATION_CHARACTERS_MAX = 255
LABELS_MAX = 64
_LOCATION = re.compile(r"(?:/[A-Za-z0-9_.:\-]+){1,8}/?")
_LABEL = re.compile(r"[A-Za-z0-9_.:\-]{1,63}")


def valid_location(text: str) -> str | None:
    """Return `text` as a location without a slash at its end, None if it is none."""
    stripped = text.strip()
    if len(stripped) > LOCATION_CHARACTERS_MAX or not _LOCATION.fullmatch(stripped):
        return None
    return stripped.rstrip("/")


def check_location(text: str) -> str:
    """Return `text` as a location without a slash at its end; ConfigError if it is none."""
    location = valid_location(text)
    if location is None:
        raise ConfigError(
            f"location {text!r}: write /region/rack or /rack, of letters, digits and the characters _ . : -"
        )
    return location


def valid_labels(text: str) -> frozenset[str]:
    """Return the labels of a list with commas; those that are none are left out, at most 64 are kept."""
    names = [name.strip() for name in text.split(",")]
    return frozenset([name for name in names if _LABEL.fullmatch(name)][:LABELS_MAX])


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return `labels`, each once and in order; ConfigError if one is none or there are more than 64."""
    wrong = [label for label in labels if not _LABEL.fullmatch(label)]
    if wrong:
        raise ConfigError(
            f"label {wrong[0]!r}: 1 to 63 letters, digits and the characters _ . : - are allowed"
        )
    if len(labels) > LABELS_MAX:
        raise ConfigError(f"{len(labels)} labels: at most {LABELS_MAX} are allowed")
    return tuple(sorted(set(labels)))


@dataclass(frozen=True, slots=True)
class Topology:
    """The table of a configuration: bookie id, host, or the beginning of one (`10.1.*`) -> location.

    A bookie's id goes before its host, both before beginnings, and of these the longest wins.
    """

    exact: Mapping[str, str] = field(default_factory=dict)
    beginnings: tuple[tuple[str, str], ...] = ()
    """The longest first."""

    @classmethod
    def of(cls, table: Mapping[str, str]) -> Topology:
        """Return the topology of a table as a TOML file has it. ConfigError names the key that is wrong."""
        exact: dict[str, str] = {}
        beginnings: dict[str, str] = {}
        for key, value in table.items():
            if not isinstance(value, str):
                raise ConfigError(f"topology: {key!r} = {value!r}: a location is text")
            name, star, rest = key.partition("*")
            if rest or not key.strip():
                raise ConfigError(
                    f"topology: {key!r}: write a bookie id, a host, or the beginning of one and a * at its end"
                )
            try:
                (beginnings if star else exact)[name] = check_location(value)
            except ConfigError as error:
                raise ConfigError(f"topology: {key!r}: {error.message}") from error
        by_length = sorted(beginnings.items(), key=lambda one: (-len(one[0]), one[0]))
        return cls(exact, tuple(by_length))

    def location_of(self, bookie_id: BookieId, host: str = "") -> str | None:
        """Return where that bookie is, None if the table does not say."""
        for name in (bookie_id, host):
            if name in self.exact:
                return self.exact[name]
        for beginning, location in self.beginnings:
            if bookie_id.startswith(beginning) or host.startswith(beginning):
                return location
        return None


def locations_printed(output: str, hosts: Sequence[str]) -> dict[str, str]:
    """Return where `hosts` are, from what a topology script printed for them: one location each, in order.

    ValueError with a sentence if the number is another; a location that is none is left out.
    """
    printed = output.split()
    if len(printed) != len(hosts):
        raise ValueError(f"it printed {len(printed)} locations for {len(hosts)} hosts")
    found = ((host, valid_location(text)) for host, text in zip(hosts, printed, strict=True))
    return {host: location for host, location in found if location is not None}
