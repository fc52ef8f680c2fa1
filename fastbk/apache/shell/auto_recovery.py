"""Verbs about Apache's AutoRecovery: its switch, its queue, its auditor."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.apache.shell.arguments import CommandLine, Option, Verb, flag
from fastbk.apache.shell.context import fail
from fastbk.errors import ConfigError
from fastbk.meta.api import VersionedLedger

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context
    from fastbk.meta.replica_marks import UnderreplicatedLedger

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
    from fastbk.meta.coordination import Check

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
