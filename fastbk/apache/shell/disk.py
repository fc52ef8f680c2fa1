"""Verbs about the directories of the bookie of the file: initbookie, bookieformat, lastmark, listfilesondisc.

Those that read or change Apache's own files answer with what does the same for ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.shell.context import CommandLine, Verb, fail, flag
from fastbk.apache.shell.recovery import forget
from fastbk.errors import ConfigError, Error, StorageError

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context

KINDS = {
    "journal": ("Journal Files", "*.journal"),
    "entrylog": ("EntryLog/Ledger Files", "logs/*.log"),
    "index": ("Index Files", "locations/*.loc"),
}


def _init(context: Context, _: CommandLine) -> int:
    """Tell whether a new bookie may start here; changes nothing, as Apache's."""
    from fastbk.admin.bookie_identity import things_in

    config = context.bookie()
    directories = [*config.journal.all_directories, *config.ledgers.all_directories]
    for directory in directories:
        if things_in(directory, directories):
            fail(f"{directory} is existing and its not empty, try formatting the bookie")
            return 1
    bookie_id = context.bookie_id()
    with context.store() as store:
        if any(bookie.service.bookie_id == bookie_id for bookie in store.list_bookies()):
            fail(f"Bookie with bookieId: {bookie_id} is still registered, stop it first")
            return 1
        is_known = store.read_identity(bookie_id) or store.foreign_cookie(bookie_id)
    if is_known is not None:
        fail(f"Cookie still exists for {bookie_id}, try `bookieformat -d`")
        return 1
    return 0


def _format(context: Context, words: CommandLine) -> int:
    from fastbk.admin.bookie_identity import empty_directories, things_in
    from fastbk.server.directories import lock_pairs

    config = context.bookie()
    journals, ledgers = config.journal.all_directories, config.ledgers.all_directories
    if any(things_in(journal) for journal in journals):
        if words.has("nonInteractive"):
            is_wanted = words.has("force")
        else:
            is_wanted = context.confirmed("Are you sure to format Bookie data..?")
        if not is_wanted:
            fail("Bookie format aborted!!")
            return 1
    locks = lock_pairs(journals, ledgers, 0.0)
    try:
        empty_directories([*journals, *ledgers])
    except StorageError as error:
        fail(f"Bookie format aborted: {error}")
        return 1
    finally:
        for lock in reversed(locks.values()):
            lock.take_back()
            lock.close()
    if words.has("deleteCookie") and not forget(context, context.bookie_id()):
        fail(f"No cookie to delete for {context.bookie_id()}")
        return -1
    print("Bookie format completed successfully")
    return 0


def _last_mark(context: Context, _: CommandLine) -> int:
    from fastbk.inspect.small_files import read_mark

    config = context.bookie()
    pairs = zip(config.journal.all_directories, config.ledgers.all_directories, strict=True)
    for journal, directory in pairs:
        for item in read_mark(directory):
            if item.is_damage:
                raise StorageError(f"{directory}: its manifest is damaged: `fastbk bookie check`")
            print(f"LastLogMark : Journal - {journal}, Batch - {item.facts['mark']}")
    return 0


def _list_files(context: Context, words: CommandLine) -> int:
    config = context.bookie()
    for kind, (title, pattern) in KINDS.items():
        if not words.has(kind):
            continue
        section = config.journal if kind == "journal" else config.ledgers
        print(f"--------- Printing the list of {title} ---------")
        for directory in section.all_directories:
            for path in sorted(Path(directory).glob(pattern)):
                print(path.resolve())
        print()
    return 0


def _check(context: Context, words: CommandLine) -> int:
    """Run our check of a stopped bookie in the place of Apache's."""
    from fastbk.cli.__main__ import main

    if words.arguments:
        raise ConfigError(f"what is this: {' '.join(words.arguments)}")
    return main(["bookie", "check", "--config", str(context.file)])


def _elsewhere(context: Context, words: CommandLine) -> int:
    try:
        config = context.bookie()
        names = {
            "JOURNAL": config.journal.all_directories[0],
            "LEDGERS": config.ledgers.all_directories[0],
            "FILE": str(context.file),
        }
    except Error:
        names = {}
    text = INSTEAD[words.verb]
    for name, value in names.items():
        text = text.replace(name, value)
    fail(f"{words.verb} is about files of Apache's bookies. {text}")
    return -1


INSTEAD = {
    "ledger": "Ours: `fastbk inspect locations LEDGERS --ledger ID`",
    "activeledgers": "Ours: `fastbk inspect entrylog LEDGERS --summary`",
    "readlog": "Ours: `fastbk inspect entrylog LEDGERS [--ledger ID] [--entry ID]`",
    "readlogmetadata": "Ours: `fastbk inspect entrylog LEDGERS --summary`",
    "readjournal": "Ours: `fastbk inspect journal JOURNAL`",
    "convert-to-db-storage": "Ours have one kind of storage: nothing to convert",
    "convert-to-interleaved-storage": "Ours have one kind of storage: nothing to convert",
    "rebuild-db-ledger-locations-index": "Ours: `fastbk bookie rebuild-locations --config FILE`",
    "rebuild-db-ledgers-index": "Ours: `fastbk bookie rebuild-locations --config FILE`",
    "check-db-ledgers-index": "Ours: `fastbk bookie check --config FILE`",
    "regenerate-interleaved-storage-index-file": "Ours: `fastbk bookie rebuild-locations --config FILE`",
}
"""Verbs that are not done here, and what does the same; JOURNAL, LEDGERS and FILE stand for the bookie's own."""

VERBS = (
    Verb("initbookie", "Check that a new bookie may start with the file.", _init),
    Verb(
        "bookieformat",
        "Empty the directories of the stopped bookie of the file.",
        _format,
        (
            flag("n", "nonInteractive", text="do not ask: refuse where there is data"),
            flag("f", "force", text="with -nonInteractive: format also then"),
            flag("d", "deleteCookie", text="delete its cookie, too"),
        ),
    ),
    Verb("lastmark", "Up to where the journals are contained in the entry logs.", _last_mark),
    Verb(
        "listfilesondisc",
        "The files of the bookie of the file.",
        _list_files,
        (
            flag("txn", "journal", text="of its journals"),
            flag("log", "entrylog", text="its entry logs"),
            flag("idx", "index", text="its indexes"),
        ),
    ),
    Verb("localconsistencycheck", "Verify all that the stopped bookie has stored.", _check),
    *(
        Verb(name, f"Not here. {text}", _elsewhere, arguments="[...]", takes_anything=True)
        for name, text in INSTEAD.items()
    ),
)
