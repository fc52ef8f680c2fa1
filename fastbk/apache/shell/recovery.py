"""Verbs that bring copies back: recover and decommissionbookie copy what a bookie held to others;
the rest is about Apache's AutoRecovery: its switch, its queue, its auditor.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fastbk.apache.shell.context import CommandLine, Option, Verb, fail, flag
from fastbk.errors import ConfigError
from fastbk.meta.api import VersionedLedger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.admin.healing import Progress, RecoveryPlan
    from fastbk.apache.shell.context import Context
    from fastbk.client import Client
    from fastbk.meta.replica_marks import UnderreplicatedLedger
    from fastbk.model.ids import BookieId

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


def _list(context: Context, words: CommandLine) -> int:
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
        found = store.coordination.lost_bookie_delay_s()
    if found is None:
        raise ConfigError("no auditor was ever started here, nor a delay set: there is no value")
    print(f"LostBookieRecoveryDelay value in ZK: {found}")
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


VERBS = (
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
        _list,
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
