"""Options and output that several commands share, and consent to what cannot be undone.

Every delete, truncate, seal and decommission asks for consent in the same way. On a terminal the command prints what
it is about to do and waits for `yes`. Elsewhere it needs `--yes`, so that a script never deletes by accident.
`--dry-run` prints the same sentence and changes nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

DIGESTS = ("crc32c", "crc32", "hmac", "dummy")


def digest_name(text: str) -> str:
    """Return the name of a digest as all of fastbk writes it; `none` is accepted for Apache's `dummy`."""
    return "dummy" if text.lower() == "none" else text.lower()


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument(
        "--json", action="store_true", help="answer in JSON on stdout; messages go to stderr"
    )


def add_metadata(parser: argparse.ArgumentParser) -> None:
    """Add --metadata."""
    parser.add_argument(
        "--metadata", metavar="URI", help="which cluster; default: the variable FASTBK_METADATA"
    )


def metadata_uri(options: argparse.Namespace) -> str:
    """Return the cluster's metadata URI. Raises ConfigError that says how to give one."""
    from fastbk.meta.uri import uri_or_default

    return uri_or_default(options.metadata or None, "give --metadata URI")


def need_linux(what: str) -> None:
    """Raise ConfigError where bookies cannot run, naming what can."""
    if sys.platform != "linux":
        raise ConfigError(
            f"{what} runs bookies, and those run on Linux only: give the URI of a cluster on Linux to"
            " the client's commands (`fastbk ledger`) instead"
        )


def print_json(answer: object) -> None:
    """Print one JSON document on a line of its own."""
    import json

    print(json.dumps(answer, ensure_ascii=False))


def note(text: str) -> None:
    """Tell the person at the terminal something that is not the answer."""
    print(text, file=sys.stderr, flush=True)


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
