"""`fastbk bookie --config FILE`: one bookie in the foreground; `fastbk bookie VERB`: about one that runs or is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli import (
    bookie_check,
    bookie_gc,
    bookie_heal,
    bookie_import,
    bookie_info,
    bookie_pairs,
    bookie_repair,
    cluster,
)
from fastbk.cli.bookie_repair import add_recover
from fastbk.cli.options import add_json, add_metadata, need_linux
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    import argparse

VERBS = "list, info, disk, gc, check, rebuild-locations, expand, move-shards, import, repair, recover, decommission"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", title="about a bookie, running or stopped"
    )
    listing = verbs.add_parser("list", help="every bookie: state, address, disk, why it is not up")
    add_metadata(listing)
    add_json(listing)
    listing.set_defaults(act=cluster.print_bookies)
    recover = verbs.add_parser("recover", help="copy what a lost bookie held to others")
    recover.add_argument(
        "--even-if-alive", action="store_true", help="empty a bookie that is running"
    )
    retire = verbs.add_parser(
        "decommission", help="the same for a stopped bookie, then free its id in the metadata"
    )
    for one in (recover, retire):
        add_recover(one)
    retire.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
    recover.set_defaults(act=bookie_repair.recover)
    retire.set_defaults(act=bookie_repair.decommission)
    info = verbs.add_parser("info", help="state, reasons, processes and disks of a running bookie")
    disk = verbs.add_parser(
        "disk", help="the disks of a running bookie: state, space, what is refused"
    )
    for one, act in ((info, bookie_info.info), (disk, bookie_info.disk)):
        bookie_info.add_arguments(one)
        one.set_defaults(act=act)
    collect = verbs.add_parser("gc", help="garbage collection and compaction of a running bookie")
    bookie_gc.add_arguments(collect)
    collect.set_defaults(act=bookie_gc.run)
    repair = verbs.add_parser("repair", help="heal damaged or lost copies of a running bookie")
    bookie_heal.add_arguments(repair)
    repair.set_defaults(act=bookie_heal.run)
    _add_verbs_of_stopped(verbs)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--config",
        "--conf",
        type=Path,
        metavar="FILE",
        help="its TOML file, or a file in Apache's format (.conf), with BK_ variables before it",
    )
    what.add_argument(
        "--example", action="store_true", help="print a file with every key, its default and text"
    )
    parser.add_argument(
        "--accept-data-loss",
        action="store_true",
        help="start once although this bookie's data is gone for good: of the ledgers that it held it says nothing is"
        " missing nor there until `fastbk bookie recover` has repaired them; without effect when nothing is missing",
    )
    parser.add_argument(
        "--check", action="store_true", help="only check the file; print what it takes of memory"
    )


def _add_verbs_of_stopped(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verbs about the directories of a stopped bookie."""
    check = verbs.add_parser("check", help="verify all that a stopped bookie has stored")
    bookie_check.add_check(check)
    check.set_defaults(act=bookie_check.check)
    rebuild = verbs.add_parser(
        "rebuild-locations", help="make a stopped bookie's locations files anew from its entry logs"
    )
    bookie_check.add_rebuild(rebuild)
    rebuild.set_defaults(act=bookie_check.rebuild)
    more = verbs.add_parser(
        "expand", help="add the new directories of its file to a stopped bookie"
    )
    bookie_pairs.add_expand(more)
    more.set_defaults(act=bookie_pairs.expand)
    shards = verbs.add_parser(
        "move-shards", help="move a part of a stopped bookie's ledgers to other directories of it"
    )
    bookie_pairs.add_move(shards)
    shards.set_defaults(act=bookie_pairs.move)
    taking = verbs.add_parser(
        "import",
        help="take over what a stopped bookie of Apache BookKeeper has stored, under its id",
    )
    bookie_import.add_arguments(taking)
    taking.set_defaults(act=bookie_import.run)


def run(options: argparse.Namespace) -> int:
    """Run the bookie until it is stopped; errors are one log line on stderr."""
    if options.verb is not None:
        return int(options.act(options))
    need_linux("fastbk bookie")
    if options.config is None and not options.example:
        raise ConfigError(f"give --config FILE, --example, or one of: {VERBS}")
    if options.example:
        from fastbk.server.configuration.example import example

        print(example(), end="")
        return 0
    if options.check:
        return _check(options.config)
    from fastbk.server.__main__ import serve

    return serve(options.config, accept_data_loss=options.accept_data_loss)


def _check(path: Path) -> int:
    from fastbk.server import process_table
    from fastbk.server.configuration import bookie_file
    from fastbk.server.configuration import process_config as server_config
    from fastbk.units import format_size

    loaded = bookie_file.load(path)
    server_config.check(loaded)
    for budget in process_table.memory_table(loaded):
        print(f"{budget.role:<11} {budget.what:<24} {format_size(budget.size_bytes):>10}")
    total = format_size(process_table.memory_bytes(loaded))
    print(f"{'together':<36} {total:>10} of {format_size(process_table.memory_total_bytes(loaded))}")
    return 0
