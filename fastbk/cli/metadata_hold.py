"""`fastbk metadata hold|status|confirm`: a hold keeps bookies from deleting what restored metadata does not list.

They need the metadata store only, so they work before the first bookie starts.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastbk.cli.confirmation import add_confirmation, exit_without_consent
from fastbk.cli.options import metadata_uri, print_json
from fastbk.errors import MetadataConflict
from fastbk.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from fastbk.meta import MetadataStore
    from fastbk.meta.hold import Hold

BY_HAND = "an operator ran `fastbk metadata hold`"


def add_verbs(verbs: argparse._SubParsersAction[Any]) -> list[argparse.ArgumentParser]:
    """Declare the subcommands and return their parsers."""
    hold = verbs.add_parser(
        "hold", help="put metadata on hold: nothing is deleted by its word until `confirm`"
    )
    hold.add_argument("--reason", default="", help="what other operators read")
    status = verbs.add_parser(
        "status", help="say whether metadata is on hold (exit code 1) and why"
    )
    confirm = verbs.add_parser(
        "confirm", help="end the hold: what metadata does not list now may be deleted"
    )
    add_confirmation(confirm)
    return [hold, status, confirm]


def _hold(options: argparse.Namespace) -> int:
    from fastbk.meta.hold import new_hold, place_hold

    reason = f"{BY_HAND}: {options.reason}" if options.reason else BY_HAND
    with _store(options) as store:
        return _print(options, place_hold(store, new_hold(reason)), code=DONE)


def _status(options: argparse.Namespace) -> int:
    from fastbk.meta.hold import read_hold

    with _store(options) as store:
        hold = read_hold(store)
    return _print(options, hold, code=DONE if hold is None else FAILED)


def _confirm(options: argparse.Namespace) -> int:
    from fastbk.meta.hold import confirm_hold, read_hold

    with _store(options) as store:
        hold = read_hold(store)
        if hold is None:
            return _print(options, None, code=DONE)
        action = f"end the hold on metadata ({hold}); bookies then delete what it does not list"
        code = exit_without_consent(options, action)
        if code is not None:
            return code
        if not confirm_hold(store, hold.hold_id):
            raise MetadataConflict(
                "the hold has changed meanwhile: read it by `fastbk metadata status`, then confirm again"
            )
    return _print(options, None, code=DONE)


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "hold": _hold,
    "status": _status,
    "confirm": _confirm,
}


@contextmanager
def _store(options: argparse.Namespace) -> Iterator[MetadataStore]:
    from fastbk.meta import open_store

    store = open_store(metadata_uri(options), 10.0, may_make=False)
    try:
        yield store
    finally:
        store.close()


def _print(options: argparse.Namespace, hold: Hold | None, *, code: int) -> int:
    from fastbk.meta.hold import NEXT_STEP, when

    if options.json:
        facts = None
        if hold is not None:
            facts = {"id": hold.hold_id, "since_ms": hold.since_ms, "reasons": list(hold.reasons)}
        print_json({"hold": facts})
    elif hold is None:
        print("metadata is not on hold")
    else:
        print(f"metadata is on hold since {when(hold)}:")
        for reason in hold.reasons:
            print(f"  {reason}")
        print(f"{NEXT_STEP}.")
    return code
