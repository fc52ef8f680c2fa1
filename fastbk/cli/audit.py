"""`fastbk audit verify FILE...`: whether lines of a bookie's audit log were changed, taken out or put in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_json, add_verb, add_verbs, print_answer, run_verb, some_of
from fastbk.errors import ConfigError, os_errors_as
from fastbk.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    import argparse

FAULTS_MAX = 20
run = run_verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = add_verbs(parser)
    text = "check the chain of an audit log's lines; exit code 1 where it is broken"
    verify = add_verb(verbs, "verify", _verify, text)
    verify.add_argument(
        "files", nargs="+", type=Path, help="the oldest first: audit.log.2 audit.log.1 audit.log"
    )
    add_json(verify)
    verify.add_argument(
        "--head",
        default="",
        metavar="HASH",
        help="a hash that it has to contain: an `audit.head` of its process's log",
    )


def _verify(options: argparse.Namespace) -> int:
    from fastbk.security.audit_log import faults, last_of

    lines: list[bytes] = []
    for path in options.files:
        with os_errors_as(ConfigError, str(path)), path.open("rb") as file:
            lines += file.readlines()
    found = list(faults(lines))
    heads = {chain.head for line in lines if (chain := last_of(line)) is not None}
    if options.head and options.head not in heads:
        found.append(
            f"no line has the hash {options.head}: lines are missing at the end, or it is another log's"
        )
    last = last_of(lines[-1]) if lines else None
    facts = {
        "lines": len(lines),
        "faults": found,
        "last": None if last is None else {"sequence": last.sequence, "head": last.head},
    }
    end = f"; ends with number {last.sequence}, {last.head}" if last else ""
    print_answer(
        options, facts, *some_of(found, FAULTS_MAX), f"{len(lines)} lines, {len(found)} faults{end}"
    )
    return FAILED if found else DONE
