"""systemd's unit files as tests read them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.style.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

UNITS = ROOT / "packaging" / "systemd"
SERVICES = (
    "fastbk-bookie@.service",
    "fastbk-janitor.service",
    "fastbk-autorecovery.service",
    "fastbk-gateway.service",
    "fastbk-console.service",
)


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """Return a unit's sections: each key has all its values."""
    sections: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            sections[section][key].append(value)
    return sections
