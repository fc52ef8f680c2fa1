"""`fastbk bookie --config FILE`: one bookie in the foreground; `fastbk bookie VERB`: about one that runs or is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli import cluster
from fastbk.cli.bookie import recover, running, stopped
from fastbk.cli.options import add_json, add_metadata, add_verb, need_linux, run_verb
from fastbk.cli.terminal import add_watch
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    import argparse

VERBS = (
    "list, info, disk, log-level, maintenance, gc, check, rebuild-locations, unadopt, expand, move-shards, import,"
    " repair, recover, decommission"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    title = "about a bookie, running or stopped"
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title=title)
    text = "every bookie: state, address, disk, why it is not up"
    listing = add_verb(verbs, "list", cluster.print_bookies, text)
    add_metadata(listing)
    add_json(listing)
    add_watch(listing)
    text = "copy what a lost bookie held to others"
    recover.add_recover(add_verb(verbs, "recover", recover.recover, text))
    text = "the same for a stopped bookie, then free its id in the metadata"
    recover.add_decommission(add_verb(verbs, "decommission", recover.decommission, text))
    text = "state, reasons, processes and disks of a running bookie"
    running.add_info_arguments(add_verb(verbs, "info", running.info, text))
    text = "the disks of a running bookie: state, space, what is refused"
    running.add_info_arguments(add_verb(verbs, "disk", running.disk, text))
    text = "how much a running bookie logs; change it until it is restarted"
    running.add_log_level_arguments(add_verb(verbs, "log-level", running.log_level, text))
    text = "let a bookie be away for a while, without copying its ledgers"
    running.add_maintenance_arguments(add_verb(verbs, "maintenance", running.maintenance, text))
    text = "garbage collection and compaction of a running bookie"
    running.add_gc_arguments(add_verb(verbs, "gc", running.gc, text))
    text = "heal damaged or lost copies of a running bookie"
    recover.add_repair(add_verb(verbs, "repair", recover.repair, text))
    text = "verify all that a stopped bookie has stored"
    stopped.add_check(add_verb(verbs, "check", stopped.check, text))
    text = "make a stopped bookie's locations files anew from its entry logs"
    stopped.add_rebuild(add_verb(verbs, "rebuild-locations", stopped.rebuild, text))
    text = (
        "move what lives in a stopped bookie's journal files into entry logs, for an older version"
    )
    stopped.add_unadopt(add_verb(verbs, "unadopt", stopped.unadopt, text))
    text = "add the new directories of its file to a stopped bookie"
    stopped.add_expand(add_verb(verbs, "expand", stopped.expand, text))
    text = "move a part of a stopped bookie's ledgers to other directories of it"
    stopped.add_move(add_verb(verbs, "move-shards", stopped.move, text))
    text = "take over what a stopped bookie of Apache BookKeeper has stored, under its id"
    stopped.add_import(add_verb(verbs, "import", stopped.import_apache, text))
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
        "--check",
        action="store_true",
        help="only check the file, and the files of keys that it names; print what it takes of memory",
    )


def run(options: argparse.Namespace) -> int:
    """Run the bookie until it is stopped; errors are one log line on stderr."""
    if options.verb is not None:
        return run_verb(options)
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
    from fastbk.server.configuration.checks import check, check_security_files
    from fastbk.units import format_size

    loaded = bookie_file.load(path)
    check(loaded)
    check_security_files(loaded)
    for budget in process_table.memory_table(loaded):
        print(f"{budget.role:<11} {budget.what:<24} {format_size(budget.size_bytes):>10}")
    total = format_size(process_table.memory_bytes(loaded))
    print(
        f"{'together':<36} {total:>10} of {format_size(process_table.memory_total_bytes(loaded))}"
    )
    return 0
