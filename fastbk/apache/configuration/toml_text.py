"""A file of Apache's in our own format: what it sets and where each setting came from, and what was left out."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from fastbk.apache.configuration.keys import Verdict
from fastbk.config import key_of
from fastbk.server.configuration import bookie_file
from fastbk.server.configuration.example import value_text

if TYPE_CHECKING:
    from fastbk.server.configuration.bookie_file import BookieFile

_WIDTH = 100


def toml_text(file: BookieFile) -> str:
    """Return the text of a TOML file that configures the same bookie. `file` is one of Apache's."""
    assert file.report is not None, "only a file of Apache's is converted"
    lines = [
        f"# From {file.path.name}. What is not here has fastbk's default (`fastbk bookie --example`).",
        "# Address and id are those of the machine where this was made.",
        "",
    ]
    for section, settings in bookie_file.differences(file.config).items():
        lines.append(f"[{section}]")
        for name, value in settings.items():
            key, unit = key_of(name)
            origin = file.origin(f"{section}.{name}")
            if origin:
                lines.append(f"# {origin}")
            lines.append(f"{key} = {value_text(value, unit)}")
        lines.append("")
    left_out: dict[str, list[str]] = {}
    for finding in file.report.findings:
        if finding.verdict is Verdict.IGNORED:
            left_out.setdefault(finding.reason, []).append(finding.key.name)
    if left_out:
        lines.append("# Left out:")
    for reason, names in left_out.items():
        text = f"{', '.join(names)}: {reason}"
        lines += textwrap.wrap(
            text, _WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False
        )
    return "\n".join(lines).rstrip() + "\n"
