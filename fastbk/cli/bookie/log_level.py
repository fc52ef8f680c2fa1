"""`fastbk bookie log-level ID [LEVEL]`: how much a running bookie logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.cli.admin_client import add_bookie, admin_client
from fastbk.cli.options import add_json, print_answer
from fastbk.errors import ConfigError
from fastbk.observe import logs

if TYPE_CHECKING:
    import argparse

PATH = "/log_level"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_bookie(parser)
    parser.add_argument(
        "level",
        nargs="?",
        metavar="LEVEL",
        help=f"{', '.join(logs.LEVELS)}; without: print the level that it has",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print or change it."""
    if options.level is None and options.bookie_id in logs.LEVELS:
        # `log-level debug` of the only bookie.
        options.bookie_id, options.level = None, options.bookie_id
    if options.level is None:
        found = admin_client(options).get(PATH)
        return print_answer(options, found, found["level"])
    if options.level not in logs.LEVELS:
        raise ConfigError(f"no log level {options.level!r}: choose one of {', '.join(logs.LEVELS)}")
    found = admin_client(options).put(PATH, {"level": options.level})
    text = f"{', '.join(found['processes'])} log from {found['level']} on, until the bookie is restarted"
    return print_answer(options, found, text)
