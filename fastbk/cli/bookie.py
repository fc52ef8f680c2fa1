"""`fastbk bookie --config FILE`: one bookie in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import need_linux

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, metavar="FILE", help="its TOML file")
    what.add_argument(
        "--example", action="store_true", help="print a file with every key, its default and text"
    )
    parser.add_argument(
        "--check", action="store_true", help="only check the file; print what it takes of memory"
    )


def run(options: argparse.Namespace) -> int:
    """Run the bookie until it is stopped; errors are one log line on stderr."""
    need_linux("fastbk bookie")
    if options.example:
        from fastbk.server.example import example

        print(example(), end="")
        return 0
    if options.check:
        return _check(options.config)
    from fastbk.server.__main__ import serve

    return serve(options.config)


def _check(path: Path) -> int:
    from fastbk import config
    from fastbk.server import config as server_config
    from fastbk.server import topology
    from fastbk.units import format_size

    loaded = config.load(path, server_config.BookieConfig)
    server_config.check(loaded)
    for budget in topology.memory_table(loaded):
        print(f"{budget.role:<11} {budget.what:<24} {format_size(budget.size_bytes):>10}")
    total = format_size(topology.memory_bytes(loaded))
    print(f"{'together':<36} {total:>10} of {format_size(topology.memory_total_bytes(loaded))}")
    return 0
