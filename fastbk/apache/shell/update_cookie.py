"""updatecookie: the cookies of the stopped bookie of the file, which follow its id and its directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.shell.arguments import CommandLine, Option, Verb, flag
from fastbk.apache.shell.context import fail
from fastbk.apache.shell.rename_bookie import ids_before_and_now

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context

ACTIONS = ("bookieId", "expandstorage", "list", "delete")
NO_DELETE = (
    "cookies are not deleted alone: `fastbk shell bookieformat -d` empties the bookie's directories and forgets it,"
    " `fastbk shell cookie_delete ID` has metadata forget a bookie"
)


def _update(context: Context, words: CommandLine) -> int:
    asked = [action for action in ACTIONS if words.has(action)]
    if len(asked) != 1:
        fail("Invalid command! One and only one of -bookieId, -expandstorage and -list is needed")
        return -1
    if asked[0] == "delete":
        fail(NO_DELETE)
        return -1
    if asked[0] == "expandstorage":
        from fastbk.cli.__main__ import main

        return main(["bookie", "expand", "--config", str(context.file)])
    return _list(context) if asked[0] == "list" else _rename(context, words)


def _list(context: Context) -> int:
    from fastbk.storage.cookie_file import NAME

    config, bookie_id = context.bookie(), context.bookie_id()
    print(f"Listing local Cookie Files of Bookie: {bookie_id}")
    for directory in (*config.journal.all_directories, *config.ledgers.all_directories):
        if (path := Path(directory).absolute() / NAME).exists():
            print(path)
    if (location := context.zookeeper) is not None:
        from fastbk.meta.zookeeper_cookies import Cookies

        with Cookies(location) as cookies:
            if cookies.read(bookie_id) is not None:
                print(f"{location.root}/cookies/{bookie_id}")
    return 0


def _rename(context: Context, words: CommandLine) -> int:
    from fastbk.server.directories import locked_pairs
    from fastbk.server.offline.renaming import rename

    old, new = ids_before_and_now(context, words)
    config = context.bookie()
    journals, ledgers = config.journal.all_directories, config.ledgers.all_directories
    with locked_pairs(journals, ledgers, 0.0), context.store() as store:
        is_changed = rename(config, store, old, new)
    if not is_changed:
        print(f"Cookies of {new} are up to date")
        return 0
    print(f"Updated cookies from {old} to {new}")
    print(f"Now, before it starts: `fastbk shell updateledgers -b {words.text('bookieId')}`")
    return 0


VERBS = (
    Verb(
        "updatecookie",
        "Change the cookies of the stopped bookie of the file to what the file says by now.",
        _update,
        (
            Option(("b", "bookieId"), "what the bookie is called by now", "hostname|ip"),
            flag("e", "expandstorage", text="add the file's empty directories"),
            flag("l", "list", text="print where the cookies lie"),
            Option(("d", "delete"), "not here", "force"),
        ),
    ),
)
