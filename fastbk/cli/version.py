"""`fastbk version`: which version this is; with --formats, what it reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fastbk
from fastbk.cli.options import add_json, print_answer, table
from fastbk.formats import FORMATS, LEVEL_FIRST, LEVEL_MAX, LEVELS

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--formats",
        action="store_true",
        help="also all formats: which versions are read and written",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print it."""
    facts: dict[str, object] = {"version": fastbk.__version__, "format_level_max": LEVEL_MAX}
    lines = [f"fastbk {fastbk.__version__}"]
    if options.formats:
        facts["formats"] = [
            {
                "name": one.name,
                "reads": [one.read_min, one.newest],
                "writes": {str(level): version for level, version in one.written.items()},
                "where": one.where,
            }
            for one in FORMATS
        ]
        facts["levels"] = {str(level): text for level, text in LEVELS.items()}
        lines += [
            "",
            *format_lines(),
            "",
            *(f"level {level}: {text}" for level, text in LEVELS.items()),
        ]
    return print_answer(options, facts, *lines)


def format_lines() -> list[str]:
    """Return the table of all formats as aligned lines."""
    rows = [("format", "reads", "writes", "where")]
    for one in FORMATS:
        reads = str(one.newest) if one.read_min == one.newest else f"{one.read_min} to {one.newest}"
        writes = ", ".join(
            f"{version} from level {level}" if level > LEVEL_FIRST else str(version)
            for level, version in sorted(one.written.items())
        )
        rows.append((one.name, reads, writes, one.where))
    return table(rows, "<<<<")
