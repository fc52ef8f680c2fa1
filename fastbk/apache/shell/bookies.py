"""Verbs about one bookie: its cookie in ZooKeeper, its name, and its directories.

cookie_create, _delete, _update, _get and _generate work on one cookie. updateBookieInLedger and
updateledgers write a bookie's new id into ledgers' metadata, updatecookie has the cookies of the
stopped bookie of the file follow its id and its directories. initbookie, bookieformat, lastmark and
listfilesondisc are about the directories of the bookie of the file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.shell.context import CommandLine, Option, Verb, fail, flag
from fastbk.apache.shell.recovery import forget
from fastbk.errors import ConfigError, Error, StorageError, os_errors_as

if TYPE_CHECKING:
    from fastbk.admin.bookie_identity import Renaming
    from fastbk.apache.shell.context import Context
    from fastbk.meta.zookeeper.admin import Cookies
    from fastbk.model.ids import BookieId


def _opened(context: Context) -> Cookies:
    location = context.need_zookeeper("cookies are changed by hand")
    from fastbk.meta.zookeeper.admin import Cookies

    return Cookies(location)


def _bookie_id(words: CommandLine) -> BookieId:
    from fastbk.model.ids import check_bookie_id

    if len(words.arguments) != 1:
        raise ConfigError("No bookie id or more bookie ids is specified")
    return check_bookie_id(words.arguments[0])


def _put(context: Context, words: CommandLine) -> int:
    bookie_id, path = _bookie_id(words), Path(words.text("cookie-file"))
    with os_errors_as(ConfigError, f"Cookie file '{path}'"):
        data = path.read_bytes()
    with _opened(context) as cookies:
        (cookies.create if words.verb == "cookie_create" else cookies.update)(bookie_id, data)
    return 0


def _delete(context: Context, words: CommandLine) -> int:
    bookie_id = _bookie_id(words)
    with _opened(context) as cookies:
        cookies.delete(bookie_id)
    return 0


def _get(context: Context, words: CommandLine) -> int:
    bookie_id = _bookie_id(words)
    with _opened(context) as cookies:
        found = cookies.read(bookie_id)
    if found is None:
        raise ConfigError(f"Cookie not found for bookie '{bookie_id}'")
    print(f"Cookie for bookie '{bookie_id}' is:\n---")
    print(found.decode("utf-8", "backslashreplace"))
    print("---")
    return 0


def _generate(context: Context, words: CommandLine) -> int:
    from fastbk.model.cookie import Cookie, encode

    bookie_id = _bookie_id(words)
    instance_id = words.text("instance-id")
    if not instance_id:
        with context.store() as store:
            instance_id = store.instance_id()
    cookie = Cookie(
        bookie_id,
        (words.text("journal-dirs"),),
        tuple(words.text("ledger-dirs").split(",")),
        instance_id,
    )
    indexes = words.text("index-dirs")
    path = Path(words.text("output-file"))
    with os_errors_as(ConfigError, path):
        path.write_bytes(encode(cookie, tuple(indexes.split(",")) if indexes else ()))
    print(f"Successfully saved the generated cookie to {path}")
    return 0


_FILE = Option(("cf", "cookie-file"), "The file to be uploaded as cookie", "FILE", is_required=True)
_ID = "<bookie-id>"


HOST_NAME_KEY = "useHostNameAsBookieID"


def _update_bookie(context: Context, words: CommandLine) -> int:
    from fastbk.model.ids import check_bookie_id

    old = check_bookie_id(words.text("srcBookie"))
    new = check_bookie_id(words.text("destBookie"))
    if old == new:
        fail("srcBookie and destBookie can't be the same.")
        return -1
    with context.store() as store:
        if any(bookie.service.bookie_id == old for bookie in store.list_bookies()):
            fail(f"Source bookie {old} can't be active")
            return -1
    return _rename(context, words, old, new)


def _update_ledgers(context: Context, words: CommandLine) -> int:
    return _rename(context, words, *ids_before_and_now(context, words))


def ids_before_and_now(context: Context, words: CommandLine) -> tuple[BookieId, BookieId]:
    """Return the id that the bookie of Apache's file had, and the one that follows from the file. Raises ConfigError.

    The option -bookieId says what it is called by now: `hostname` or `ip`.
    """
    from fastbk.apache.configuration import source

    wanted = words.text("bookieId")
    if wanted not in ("hostname", "ip"):
        raise ConfigError("-bookieId: must be hostname or ip")
    if not source.is_apache(context.file):
        raise ConfigError(f"{context.file}: not a file of Apache's: ids do not follow from hosts")
    ids = _ids_by_host(context)
    if bool(source.read(context.file, os.environ).boolean(HOST_NAME_KEY)) != (wanted == "hostname"):
        said = str(wanted == "hostname").lower()
        raise ConfigError(f"{context.file}: {HOST_NAME_KEY}={said} is expected for -b {wanted}")
    old, new = ids["ip" if wanted == "hostname" else "hostname"], ids[wanted]
    if old == new:
        raise ConfigError(f"the id is {new} either way: nothing to change")
    return old, new


def _ids_by_host(context: Context) -> dict[str, BookieId]:
    """Return the bookie's id by its host's name and by its address. Raises ConfigError."""
    from fastbk.apache.configuration import key_translation, source

    ids = {}
    for kind, value in (("hostname", "true"), ("ip", "false")):
        variables = {**os.environ, f"{source.PREFIX}{HOST_NAME_KEY}": value}
        ids[kind] = key_translation.settle_address(source.read(context.file, variables)).bookie_id
    return ids


def _rename(context: Context, words: CommandLine, old: BookieId, new: BookieId) -> int:
    from fastbk.admin.bookie_identity import rename_bookie

    rate = words.integer("updatespersec", 5, least=1)
    words.integer("maxOutstandingReads", 1, least=1)
    is_verbose = words.text("verbose").lower() == "true"
    every_s = words.integer("printprogress", 10)
    said_s = time.monotonic()

    def tell(progress: Renaming) -> None:
        nonlocal said_s
        if is_verbose and every_s and time.monotonic() - said_s >= every_s:
            said_s = time.monotonic()
            print(f"Number of ledgers issued={progress.seen}, updated={progress.updated}")

    with context.store() as store:
        done = rename_bookie(
            store,
            old,
            new,
            updates_per_s=rate,
            updates_max=words.integer("limit", 1, least=1) if words.has("limit") else None,
            on_progress=tell,
        )
    print(f"Total number of ledgers issued={done.seen} updated={done.updated}")
    for ledger_id, reason in done.failed.items():
        fail(f"Failed to update ledger metadata {ledger_id}, replacing {old} with {new}: {reason}")
    return -1 if done.failed else 0


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
    return _list(context) if asked[0] == "list" else _update_cookies(context, words)


def _list(context: Context) -> int:
    from fastbk.storage.cookie_file import NAME

    config, bookie_id = context.bookie(), context.bookie_id()
    print(f"Listing local Cookie Files of Bookie: {bookie_id}")
    for directory in (*config.journal.all_directories, *config.ledgers.all_directories):
        if (path := Path(directory).absolute() / NAME).exists():
            print(path)
    if (location := context.zookeeper) is not None:
        from fastbk.meta.zookeeper.admin import Cookies

        with Cookies(location) as cookies:
            if cookies.read(bookie_id) is not None:
                print(f"{location.root}/cookies/{bookie_id}")
    return 0


def _update_cookies(context: Context, words: CommandLine) -> int:
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


_PACE = (
    Option(("s", "updatespersec"), "ledgers changed in a second (5)", "N"),
    Option(("r", "maxOutstandingReads"), "without effect: one at a time", "N"),
    Option(("l", "limit"), "end after so many changes (no limit)", "N"),
    Option(("v", "verbose"), "true: tell how far it is (false)", "BOOLEAN"),
    Option(("p", "printprogress"), "how often, in seconds (10)", "SECONDS"),
)


_COOKIE_VERBS = (
    Verb("cookie_create", "Create a cookie for a given bookie.", _put, (_FILE,), _ID),
    Verb("cookie_update", "Update a cookie for a given bookie.", _put, (_FILE,), _ID),
    Verb("cookie_delete", "Delete a cookie for a given bookie.", _delete, (), _ID),
    Verb("cookie_get", "Retrieve a cookie for a given bookie.", _get, (), _ID),
    Verb(
        "cookie_generate",
        "Write the cookie of an Apache bookie with given directories to a file.",
        _generate,
        (
            Option(("i", "instance-id"), "of the cluster (that of this one)", "ID"),
            Option(("j", "journal-dirs"), "its journal directories", "DIR,...", is_required=True),
            Option(("l", "ledger-dirs"), "its ledger directories", "DIR,...", is_required=True),
            Option(("ix", "index-dirs"), "its index directories, if others", "DIR,..."),
            Option(("o", "output-file"), "where to write it", "FILE", is_required=True),
        ),
        _ID,
    ),
    Verb(
        "updateBookieInLedger",
        "Write another bookie id over one in the metadata of all ledgers.",
        _update_bookie,
        (
            Option(("sb", "srcBookie"), "the id that is replaced", "ID", is_required=True),
            Option(("db", "destBookie"), "the id in its place", "ID", is_required=True),
            *_PACE,
        ),
    ),
    Verb(
        "updateledgers",
        "The same for the bookie of the file, from its address to its host's name or back.",
        _update_ledgers,
        (
            Option(("b", "bookieId"), "what it is called by now", "hostname|ip", is_required=True),
            *_PACE,
        ),
    ),
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


# Verbs about the directories of the bookie of the file: initbookie, bookieformat, lastmark,
# listfilesondisc.
#

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

_DIRECTORY_VERBS = (
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


VERBS = (*_COOKIE_VERBS, *_DIRECTORY_VERBS)
