"""The table of Apache's keys in docs/configuration.md, which `./dev docs` writes."""

from __future__ import annotations

from fastbk.apache.configuration import keys_ignored, keys_settings
from fastbk.config import key_of

BEGIN = "<!-- written by ./dev docs -->"
END = "<!-- end -->"


def reference() -> str:
    """Return the Markdown between the two marks, marks included."""
    lines = [BEGIN, "", "| Apache's key | its default | | ours | |", "|---|---|---|---|---|"]
    for row in keys_settings.KEYS:
        ours = ", ".join(f"`{_spelt(each)}`" for each in row.setting.split())
        lines.append(
            f"| `{row.name}` | {_code(row.default)} | {row.verdict} | {ours} | {row.note} |"
        )
    lines += [
        "",
        "Refused, unless the value asks for nothing:",
        "",
        "| key | because |",
        "|---|---|",
    ]
    lines += [f"| `{row.name}` | {row.note} |" for row in keys_ignored.REFUSED]
    lines += ["", "Ignored, and reported when they are set:", "", "| keys | because |", "|---|---|"]
    for reason, names in keys_ignored.IGNORED:
        keys = ", ".join(f"`{each.partition('=')[0]}`" for each in names.split())
        lines.append(f"| {keys} | {reason} |")
    return "\n".join([*lines, "", END])


def _spelt(setting: str) -> str:
    section, _, field = setting.partition(".")
    return f"[{section}] {key_of(field)[0]}"


def _code(default: str) -> str:
    return f"`{default}`" if default and " " not in default else default
