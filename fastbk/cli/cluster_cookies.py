"""`fastbk cluster cookies`: which bookies the metadata knows; `--forget ID` frees an id."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.confirmation import add_confirmation, exit_without_consent
from fastbk.cli.options import metadata_uri, note, print_json
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the verb."""
    parser.add_argument(
        "--forget",
        metavar="ID",
        help="delete the cookie and identity of a bookie that does not run and that no ledger names",
    )
    parser.add_argument(
        "--even-if-named", action="store_true", help="with --forget: also when ledgers name it"
    )
    add_confirmation(parser)


def run(options: argparse.Namespace) -> int:
    """List, or forget one."""
    from fastbk.admin.cookies import forget, known_bookies
    from fastbk.meta import open_store
    from fastbk.model.ids import BookieId

    if options.even_if_named and not options.forget:
        raise ConfigError("--even-if-named goes with --forget ID")
    store = open_store(metadata_uri(options), 10.0, may_make=False)
    try:
        if options.forget:
            action = f"delete the cookie and identity of bookie {options.forget}"
            if (code := exit_without_consent(options, action)) is not None:
                return code
            forget(store, BookieId(options.forget), even_if_named=options.even_if_named)
            note(f"bookie {options.forget} is forgotten; its directories start no bookie any more")
            return 0
        found = known_bookies(store)
        instance_id = store.instance_id()
    finally:
        store.close()
    if options.json:
        print_json({"instance_id": instance_id, "bookies": [asdict(one) for one in found]})
        return 0
    print(f"cluster {instance_id or 'without an instance id'}")
    for one in found:
        state = "running" if one.is_registered else "not running"
        print(f"{one.bookie_id}  incarnation {one.incarnation}, {one.starts + 1} starts, {state}")
        for directory in one.directories:
            print(f"    {directory}")
    return 0
