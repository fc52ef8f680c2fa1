"""`fastbk shell VERB ...`: the verbs of Apache's `bookkeeper shell`, with its options, outcome and exit codes.

Exit codes are Apache's, not those of fastbk's other commands: 0 done, 255 an error or a wrong call, 1 what some verbs
give when they refuse.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.shell.context import ENTRY_FORMATS, HELP, LEDGER_FORMATS, Context, Verb, fail
from fastbk.errors import Error

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUPS = ("cluster", "ledgers", "bookies")
EXIT_FAILED = 255


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what stands before the verb; each verb reads its own options."""
    parser.add_argument(
        "-conf",
        "--conf",
        type=Path,
        metavar="FILE",
        help="the bookie's file, in Apache's format (.conf) or ours; default: the variable BOOKIE_CONF",
    )
    parser.add_argument(
        "-metadata", "--metadata", metavar="URI", help="which cluster, instead of a file"
    )
    # Without "-context": argparse would then find the verbs' own "-c" ambiguous, also behind a verb.
    parser.add_argument(
        "--context", metavar="NAME", help="a cluster by its name (`fastbk context`)"
    )
    parser.add_argument(
        "-ledgeridformat", choices=LEDGER_FORMATS, default="long", help="how ledger ids are written"
    )
    parser.add_argument(
        "-entryformat", choices=ENTRY_FORMATS, default="string", help="how entries are printed"
    )
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="VERB ...", help="`help` lists all of them"
    )
    parser.allow_abbrev = False


def run(options: argparse.Namespace) -> int:
    """Run one verb. An error is one line on stderr and the code 255."""
    context = Context(options.metadata, options.conf, options.ledgeridformat, options.entryformat)
    words: list[str] = options.words
    if not words:
        fail(_listing())
        return EXIT_FAILED
    if words[0] == HELP:
        return _help(words[1:])
    verb = _verbs().get(words[0])
    if verb is None:
        return _unknown(words[0])
    try:
        said = verb.parse(words[1:])
        if said.has(HELP):
            print(verb.usage())
            return 0
        return verb.run(context, said) & 0xFF
    except Error as error:
        fail(f"fastbk shell {verb.name}: {' '.join(str(error).split())}")
        return EXIT_FAILED


def _verbs() -> dict[str, Verb]:
    verbs: dict[str, Verb] = {}
    for group in GROUPS:
        module = importlib.import_module(f"fastbk.apache.shell.{group}")
        verbs |= {verb.name: verb for verb in module.VERBS}
    return verbs


def _help(words: Sequence[str]) -> int:
    if not words:
        print(_listing())
        return 0
    verb = _verbs().get(words[0])
    if verb is None:
        return _unknown(words[0])
    print(verb.usage())
    return 0


def _unknown(name: str) -> int:
    close = difflib.get_close_matches(name, _verbs(), n=1)
    hint = f"did you mean {close[0]}?" if close else "`fastbk shell help` lists all"
    fail(f"ERROR: Unknown command {name}: {hint}")
    return EXIT_FAILED


def _listing() -> str:
    verbs = _verbs()
    width = max(map(len, verbs))
    lines = [f"  {name:<{width}}  {verb.text}" for name, verb in sorted(verbs.items())]
    usage = (
        "usage: fastbk shell [-conf FILE] [-metadata URI] [-context NAME] [-ledgeridformat long|hex|uuid]"
        " [-entryformat string|hex]"
    )
    return "\n".join([f"{usage} VERB ...", *lines])
