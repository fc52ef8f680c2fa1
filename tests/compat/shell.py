"""Verbs of Apache's `bookkeeper shell` on a cluster of ours: those that need the wire or the metadata only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import fastbk.sync
from tests.compat.autorecovery import daemon
from tests.compat.python_side import PASSWORD, payload
from tests.compat.results import Result, is_wanted, run_cell
from tests.compat.rig import Cluster, Rig

COLUMN = "shell > ours"


@dataclass(frozen=True, slots=True)
class Verb:
    """One call and what it has to print, as regular expressions."""

    name: str
    arguments: str
    expected: tuple[str, ...] = ()


VERBS = (
    Verb(
        "simpletest",
        "simpletest -ensemble 3 -writeQuorum 3 -ackQuorum 2 -numEntries 100",
        ("100 entries",),
    ),
    Verb(
        "bookiesanity",
        "bookiesanity -timeout 10",
        (r"Ensemble: \[{b1}\]", "Read 10 entries", "Bookie sanity test succeeded"),
    ),
    Verb("listbookies -rw", "listbookies -rw", ("{b1}", "{b2}")),
    Verb("listbookies -ro", "listbookies -ro", ("No bookie exists",)),
    Verb("listbookies -a", "listbookies -a", ("{b1}", "{b2}")),
    Verb("endpointinfo", "endpointinfo -b {b2}", ("bookie-rpc", "127.0.0.1")),
    Verb("bookieinfo", "bookieinfo", ("{b1}", "Free:", "Total:")),
    Verb("clusterinfo", "clusterinfo"),
    Verb("whatisinstanceid", "whatisinstanceid", ("InstanceId: [0-9a-f-]{{36}}",)),
    Verb("listledgers", "listledgers", (r"ledgerID: {ledger}\b",)),
    Verb("listledgers of a bookie", "listledgers -bookieid {holder}", (r"ledgerID: {ledger}\b",)),
    Verb("listledgers -meta", "listledgers -meta", ("CLOSED|state=CLOSED",)),
    Verb("ledgermetadata", "ledgermetadata -ledgerid {ledger}", ("CLOSED|state=CLOSED",)),
    Verb(
        "ledgermetadata to a file", "ledgermetadata -ledgerid {ledger} -dumptofile {folder}/dumped"
    ),
    Verb(
        "ledgermetadata from a file",
        "ledgermetadata -ledgerid {ledger} -restorefromfile {folder}/dumped -update",
    ),
    Verb(
        "readledger",
        "readledger -ledgerid {ledger} -fe 0 -le 9",
        ("Lid={ledger}, Eid=0,", "Lid={ledger}, Eid=9,"),
    ),
    Verb(
        "readledger of a bookie",
        "readledger -ledgerid {ledger} -fe 0 -le 10 -b {holder}",
        (r"Lid={ledger}, Eid=9\b",),
    ),
    Verb(
        "readledger with recovery",
        "readledger -ledgerid {open} -r -fe 0 -le 5",
        ("Lid={open}, Eid=5,",),
    ),
    Verb("cookie_get", "cookie_get {b1}", ("bookieHost",)),
    Verb("listunderreplicated", "listunderreplicated"),
    Verb("lostbookierecoverydelay", "lostbookierecoverydelay -set 3"),
    Verb("lostbookierecoverydelay read", "lostbookierecoverydelay -get", ("3",)),
    Verb("autorecovery disable", "autorecovery -disable"),
    Verb("queryautorecoverystatus", "queryautorecoverystatus", ("disabled|false",)),
    Verb("autorecovery enable", "autorecovery -enable"),
    Verb("whoisauditor", "whoisauditor", ("127.0.0.1",)),
    Verb("triggeraudit", "triggeraudit"),
    Verb("forceauditchecks", "forceauditchecks -calc", ("Resetting CheckAllLedgersCTime",)),
    Verb("deleteledger", "deleteledger -ledgerid {other} -force"),
)
"""In this order; {ledger} and {other} are closed, {open} is not; {b1} is called as Apache's are, {b2} has a name, and
{holder} has {ledger}; {folder} is for files. With a bookie, readledger leaves out the last entry that is asked for."""


def shell_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Run each verb in a process of its own, as an operator does."""
    verbs = [verb for verb in VERBS if is_wanted(f"shell {verb.name}", only)]
    last = [name for name in LAST if is_wanted(name, only)]
    if not verbs and not last:
        return
    with rig.cluster(ours=4) as cluster, daemon(cluster):
        names = _write(cluster) | {"folder": str(cluster.folder)}
        names |= {
            f"b{number}": member.bookie_id for number, member in enumerate(cluster.members, 1)
        }
        for verb in verbs:
            arguments = verb.arguments.format(**names).split()
            expected = [each.format(**names) for each in verb.expected]
            act = partial(_verb, cluster, arguments, expected)
            yield run_cell(COLUMN, f"shell {verb.name}", act)
        for name in last:
            yield run_cell(COLUMN, f"shell {name}", partial(LAST[name], cluster))


def _write(cluster: Cluster) -> dict[str, str]:
    ids = {}
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        for name in ("ledger", "other", "open"):
            writer = client.create_ledger(
                ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD
            )
            writer.append_many([payload(writer.ledger_id, entry_id) for entry_id in range(20)])
            ids[name] = str(writer.ledger_id)
            ids.setdefault("holder", writer.metadata.fragments[0].ensemble[0])
            if name != "open":
                writer.close()
    return ids


def _verb(cluster: Cluster, arguments: Sequence[str], expected: Sequence[str]) -> None:
    output = cluster.shell(*arguments)
    missing = [each for each in expected if not re.search(each, output)]
    assert not missing, f"did not print {missing}"


def _recover(cluster: Cluster) -> None:
    """Copy away what a killed bookie held."""
    victim = cluster.members[0].bookie_id
    cluster.member(victim).kill()
    cluster.shell("recover", "-force", "-sku", victim)
    _check_without(cluster, victim)


def _decommission(cluster: Cluster) -> None:
    """Have the auditor empty a stopped bookie, and forget it."""
    victim = cluster.members[1].bookie_id
    cluster.restore(cluster.members[0].bookie_id)
    cluster.member(victim).stop()
    expected = ["are properly replicated", "is deleted successfully"]
    _verb(cluster, ["decommissionbookie", "-bookieid", victim], expected)
    _check_without(cluster, victim)
    assert not cluster.kazoo.exists(f"{cluster.location.root}/cookies/{victim}"), "its cookie"


def _check_without(cluster: Cluster, victim: str) -> None:
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        left = [
            info.ledger_id
            for info in client.list_ledgers()
            if any(victim in fragment.ensemble for fragment in info.metadata.fragments)
        ]
    assert not left, f"ledgers {left} still name {victim}"


LAST = {"recover": _recover, "decommissionbookie": _decommission}
"""What ends a bookie comes last."""
