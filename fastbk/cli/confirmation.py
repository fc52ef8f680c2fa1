"""Consent to what cannot be undone: every delete, truncate, seal and decommission asks for it in the same way.

On a terminal the command prints what it is about to do and waits for `yes`. Elsewhere it needs `--yes`, so that a
script never deletes by accident. `--dry-run` prints the same sentence and changes nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fastbk.cli.options import note, print_json
from fastbk.errors import ConfigError
from fastbk.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    """Add --yes and --dry-run."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
    add_dry_run(parser)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add --dry-run."""
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be done, and change nothing"
    )


def exit_without_consent(
    options: argparse.Namespace, action: str, facts: Mapping[str, object] | None = None
) -> int | None:
    """Return None to go on, else the exit code to end with now.

    `action` completes "fastbk would ...": `delete stream shop/a (3 segments, 4.1 MB)`. `facts` is what --dry-run prints
    with --json. Raises ConfigError without --yes where nobody can be asked.
    """
    if options.dry_run:
        if options.json:
            print_json({"dry_run": True, "action": action, **(facts or {})})
        else:
            print(f"would {action}; nothing was changed")
        return DONE
    if options.yes:
        return None
    if not sys.stdin.isatty():
        raise ConfigError(
            f"this would {action}, and there is no terminal to ask at: give --yes to do it, or --dry-run to see more"
        )
    print(f"This will {action}. Type yes to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() == "yes":
        return None
    note("nothing was changed")
    return FAILED
