"""Verbs about one bookie: its cookie in ZooKeeper, its name, its directories, and copies of what it held.

cookie_create, _delete, _update, _get and _generate work on one cookie. updateBookieInLedger and
updateledgers write a bookie's new id into ledgers' metadata, updatecookie has the cookies of the
stopped bookie of the file follow its id and its directories. initbookie, bookieformat, lastmark and
listfilesondisc are about the directories of the bookie of the file. recover and decommissionbookie
copy what a bookie held to others; the rest is about Apache's AutoRecovery: its switch, its queue,
its auditor.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.shell.context import CommandLine, Option, Verb, fail, flag
from fastbk.errors import ConfigError, Error, StorageError, os_errors_as
from fastbk.meta.api import VersionedLedger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.admin.bookie_identity import Renaming
    from fastbk.admin.healing import Progress, RecoveryPlan
    from fastbk.apache.shell.context import Context
    from fastbk.client import Client
    from fastbk.meta.replica_marks import UnderreplicatedLedger
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
        record = cookies.read(bookie_id)
    if record is None:
        raise ConfigError(f"Cookie not found for bookie '{bookie_id}'")
    print(f"Cookie for bookie '{bookie_id}' is:\n---")
    print(record.decode("utf-8", "backslashreplace"))
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
    from fastbk.server.offline import rename

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


# --- copies of other bookies ----------------------------------------------------------------------

LISTED_MAX = 20


def _recover(context: Context, words: CommandLine) -> int:
    from fastbk.model.ids import check_bookie_id

    if not words.arguments:
        raise ConfigError("'bookieSrc' argument required")
    if len(words.arguments) > 1:
        fail(f"The provided bookie dest {words.arguments[1]} will be ignored!")
    bookie_ids = [check_bookie_id(part) for part in words.arguments[0].split(",")]
    if not words.has("force"):
        print(f"Bookies : [{', '.join(bookie_ids)}]")
        if not context.confirmed("Are you sure to recover them : (Y/N)"):
            fail("Give up!")
            return -1
    if words.has("query"):
        return asyncio.run(_query(context, bookie_ids))
    code = asyncio.run(_recover_all(context, words, bookie_ids))
    if code == 0 and words.has("deleteCookie") and not words.has("dryrun"):
        for bookie_id in bookie_ids:
            if not forget(context, bookie_id):
                fail(f"No cookie to remove for {bookie_id}")
    return code


async def _query(context: Context, bookie_ids: Sequence[BookieId]) -> int:
    print("NOTE: Bookies in inspection list are marked with '*'.")
    async with context.client() as client:
        async for info in client.list_ledgers():
            counts = {
                one.first_entry_id: sum(each in bookie_ids for each in one.ensemble)
                for one in info.metadata.fragments
            }
            if not any(counts.values()):
                continue
            print(f"ledger {context.shown(info.ledger_id)} : {info.metadata.state.name}")
            for fragment in info.metadata.fragments:
                shown = (f"{each}*" if each in bookie_ids else each for each in fragment.ensemble)
                print(f"{fragment.first_entry_id}:\t{'  '.join(shown)}")
            summary = ", ".join(f"{first}={count}" for first, count in counts.items())
            print(f"summary: [{summary}]")
    print("Done")
    return 0


async def _recover_all(context: Context, words: CommandLine, bookie_ids: Sequence[BookieId]) -> int:
    from fastbk.admin.healing import BookieRecovery, RecoveryPlan

    only = words.text("ledger")
    plan = RecoveryPlan(
        bytes_per_s=float(max(0, words.integer("replicationRate", 0, least=-1))),
        open_ledgers="skip" if words.has("skipOpenLedgers") else "close",
        # Several at once that are alive would be given each other's data.
        even_if_alive=len(bookie_ids) == 1,
        ledger_ids=(context.ledger_id(only),) if only else None,
    )
    failed = 0
    async with context.client() as client:
        runs = [BookieRecovery(client, bookie_id, plan) for bookie_id in bookie_ids]
        for one, run in zip(bookie_ids, runs, strict=True):
            await run.check_gone()
            if words.has("dryrun"):
                for ledger_id, size_bytes in await run.find():
                    shown = context.shown(ledger_id)
                    print(f"ledger {shown}: about {size_bytes} bytes of {one} would be copied")
                continue
            failed += await _run(client, one, plan)
    return -1 if failed and not words.has("skipUnrecoverableLedgers") else 0


async def _run(client: Client, bookie_id: BookieId, plan: RecoveryPlan) -> int:
    """Recover one bookie; return how many ledgers still name it."""
    from fastbk.admin.healing import BookieRecovery

    run = BookieRecovery(client, bookie_id, plan)
    progress: Progress = await run.run()
    print(
        f"{bookie_id}: {progress.ledgers_done} of {progress.ledgers} ledgers recovered,"
        f" {progress.entries_copied} entries copied, {progress.entries_lost} lost"
    )
    for ledger_id, reason in list({**progress.failed, **progress.parked}.items())[:LISTED_MAX]:
        fail(f"ledger {ledger_id} still names {bookie_id}: {reason}")
    return progress.failed_count + progress.parked_count


def forget(context: Context, bookie_id: BookieId) -> bool:
    """Delete a bookie's cookie, and what fastbk knows of it; return False if there was none."""
    from fastbk.admin.bookie_identity import free_id

    return free_id(context.uri, bookie_id) is None


def _decommission(context: Context, words: CommandLine) -> int:
    from fastbk.model.ids import check_bookie_id

    bookie_id = check_bookie_id(words.text("bookieid").strip() or context.bookie_id())
    left = asyncio.run(_empty(context, bookie_id))
    if left:
        fail(f"{left} ledgers still name {bookie_id}: run this again")
        return -1
    print(
        f"The ledgers stored in the given decommissioning bookie: {bookie_id} are properly replicated"
    )
    if not forget(context, bookie_id):
        fail(
            f"No cookie to remove for the decommissioning bookie: {bookie_id}, it could be deleted already"
        )
    print(f"Cookie of the decommissioned bookie: {bookie_id} is deleted successfully")
    return 0


async def _empty(context: Context, bookie_id: BookieId) -> int:
    """Copy all that the bookie held; return how many ledgers name it then. Raises ConfigError if it is up."""
    from fastbk.admin.healing import BookieRecovery, RecoveryPlan

    plan = RecoveryPlan()
    async with context.client() as client:
        failed = await _run(client, bookie_id, plan)
        return failed or len(await BookieRecovery(client, bookie_id, plan).find())


LONG_AGO_MS = 21 * 24 * 3600 * 1000
"""Longer than any period of a check, so that the next auditor finds it overdue."""


def _toggle(context: Context, words: CommandLine) -> int:
    enable, disable = words.has("enable"), words.has("disable")
    with context.store() as store:
        if not enable and not disable:
            print(
                f"Autorecovery is {'enabled.' if store.coordination.is_enabled() else 'disabled.'}"
            )
        elif enable:
            done = store.coordination.enable()
            print(
                "Enabling autorecovery" if done else "Autorecovery already enabled. Doing nothing"
            )
        else:
            done = store.coordination.disable()
            print(
                "Disabling autorecovery" if done else "Autorecovery already disabled. Doing nothing"
            )
    return 0


def _status(context: Context, words: CommandLine) -> int:
    with context.store() as store:
        print("CurrentRecoverLedgerInfo:")
        count = 0
        for ledger_id, worker in store.coordination.locks():
            count += 1
            line = f"\tLedgerId:{ledger_id}\tBookieId:{worker}"
            if words.has("verbose"):
                (found,) = store.read_ledgers([ledger_id])
                size = found.metadata.length if isinstance(found, VersionedLedger) else "unreadable"
                line += f"\tLedgerSize:{'gone' if found is None else size}"
            print(line)
        if not count:
            print("\t No Ledger is being recovered.")
    return 0


def _list_marked(context: Context, words: CommandLine) -> int:
    including = words.text("missingreplica").strip()
    excluding = words.text("excludingmissingreplica").strip()

    def wanted(ledger: UnderreplicatedLedger) -> bool:
        has_wanted = not including or including in ledger.missing
        return has_wanted and (not excluding or excluding not in ledger.missing)

    count = 0
    with context.store() as store:
        for ledger in filter(wanted, store.marks.under_replicated()):
            count += 1
            if words.has("onlydisplayledgercount"):
                continue
            print(context.shown(ledger.ledger_id))
            if ledger.marked_ms is not None:
                print(f"\tCtime : {ledger.marked_ms}")
            if words.has("printmissingreplica"):
                for one in ledger.missing:
                    print(f"\tMissingReplica : {one}")
            if words.has("printreplicationworkerid"):
                worker = store.coordination.worker_of(ledger.ledger_id)
                if worker is not None:
                    print(f"\tReplicationWorkerId : {worker}")
    print(f"Under replicated ledger count: {count}")
    return 0


def _delay(context: Context, words: CommandLine) -> int:
    seconds = words.integer("set", 0)
    # As there, a delay of 0 cannot be set by the shell: it takes it for "nothing to set".
    if words.has("get") == bool(seconds):
        fail("One and only one of -get and -set must be specified")
        return 1
    with context.store() as store:
        if seconds:
            store.coordination.set_lost_bookie_delay(seconds)
            print(f"Successfully set LostBookieRecoveryDelay value in ZK: {seconds}")
            return 0
        lost_bookie_delay_s = store.coordination.lost_bookie_delay_s()
    if lost_bookie_delay_s is None:
        raise ConfigError("no auditor was ever started here, nor a delay set: there is no value")
    print(f"LostBookieRecoveryDelay value in ZK: {lost_bookie_delay_s}")
    return 0


def _trigger(context: Context, _: CommandLine) -> int:
    with context.store() as store:
        store.coordination.trigger_audit()
    return 0


def _force_checks(context: Context, words: CommandLine) -> int:
    from fastbk.meta.api import Check

    names = {
        "checkallledgerscheck": (Check.ALL_LEDGERS, "CheckAllLedgersCTime"),
        "placementpolicycheck": (Check.PLACEMENT, "PlacementPolicyCheckCTime"),
        "replicascheck": (Check.REPLICAS, "ReplicasCheckCTime"),
    }
    checks = [check for key, check in names.items() if words.has(key)]
    if not checks:
        fail("Command line args must contain atleast one type of check. This was a no-op.")
        return -1
    time_ms = int(time.time() * 1000) - LONG_AGO_MS
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms / 1000))
    with context.store() as store:
        for check, name in checks:
            print(f"Resetting {name} to : {moment}.{time_ms % 1000:03d}")
            store.coordination.set_check_time(check, time_ms)
    return 0


def _who(context: Context, _: CommandLine) -> int:
    with context.store() as store:
        auditor = store.coordination.auditor()
    if auditor is None:
        print("No auditor elected")
        return -1
    print(f"Auditor: {auditor}")
    return 0


_COPY_VERBS = (
    Verb(
        "recover",
        "Copy what a lost bookie held to others, and name them in its place.",
        _recover,
        (
            flag("q", "query", text="only list the ledgers that name the bookies"),
            flag("dr", "dryrun", text="only tell what would be copied"),
            flag("f", "force", text="do not ask"),
            Option(("l", "ledger"), "only this ledger", "ID"),
            flag("sk", "skipOpenLedgers", text="leave ledgers alone that are not closed"),
            flag("d", "deleteCookie", text="delete the bookies' cookies at the end"),
            flag("sku", "skipUnrecoverableLedgers", text="ledgers that fail are no failure"),
            Option(("rate", "replicationRate"), "bytes a second at most", "BYTES"),
        ),
        "<bookie-id>[,<bookie-id>...]",
    ),
    Verb(
        "decommissionbookie",
        "Copy what a stopped bookie holds to others, then delete its cookie.",
        _decommission,
        (Option(("bookieid",), "its id; without: the bookie of the file", "ID"),),
    ),
    Verb(
        "autorecovery",
        "Allow or forbid AutoRecovery to work, or tell which it is.",
        _toggle,
        (
            flag("e", "enable", text="allow it"),
            flag("d", "disable", text="forbid it"),
        ),
    ),
    Verb(
        "queryautorecoverystatus",
        "The ledgers that AutoRecovery copies just now, and who does it.",
        _status,
        (flag("v", "verbose", text="with the ledgers' sizes"),),
    ),
    Verb(
        "listunderreplicated",
        "The ledgers that AutoRecovery has marked.",
        _list_marked,
        (
            Option(("mr", "missingreplica"), "only those that lack copies on it", "ID"),
            Option(("emr", "excludingmissingreplica"), "only those that do not", "ID"),
            flag("pmr", "printmissingreplica", text="with the bookies that lack copies"),
            flag("prw", "printreplicationworkerid", text="with who copies it just now"),
            flag("c", "onlydisplayledgercount", text="only how many there are"),
        ),
    ),
    Verb(
        "lostbookierecoverydelay",
        "How long a bookie may be away before its ledgers are marked.",
        _delay,
        (
            flag("g", "get", text="print it, in seconds"),
            Option(("s", "set"), "set it, in seconds", "SECONDS"),
        ),
    ),
    Verb("triggeraudit", "Have the auditor look for lost bookies now.", _trigger),
    Verb(
        "forceauditchecks",
        "Let checks of the auditor begin with its next start, whenever they ended last.",
        _force_checks,
        (
            flag("calc", "checkallledgerscheck", text="of all ledgers"),
            flag("ppc", "placementpolicycheck", text="of the placement"),
            flag("rc", "replicascheck", text="of what bookies hold"),
        ),
    ),
    Verb("whoisauditor", "Print the elected auditor.", _who),
)

VERBS = (*_COPY_VERBS, *_COOKIE_VERBS, *_DIRECTORY_VERBS)
