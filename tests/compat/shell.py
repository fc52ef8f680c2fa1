"""Verbs of Apache's `bookkeeper shell` on a cluster of ours: those that need the wire or the metadata only."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fastbk.sync
from tests.compat.autorecovery import daemon
from tests.compat.python_side import PASSWORD, payload
from tests.compat.results import Result
from tests.compat.rig import SHELL_MAIN, Cluster, Rig

COLUMN = "shell > ours"
VERB_S_MAX = 120


@dataclass(frozen=True, slots=True)
class Verb:
    """One call and what it has to print, as regular expressions."""

    name: str
    arguments: str
    expected: tuple[str, ...] = ()
    code: int = 0


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
    Verb("listledgers of a bookie", "listledgers -bookieid {b2}", (r"ledgerID: {ledger}\b",)),
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
    verbs = [
        verb for verb in VERBS if not only or any(word in f"shell {verb.name}" for word in only)
    ]
    last = [
        name
        for name in ("recover", "decommissionbookie")
        if not only or any(word in name for word in only)
    ]
    if not verbs and not last:
        return
    with rig.cluster(ours=4) as cluster, daemon(cluster):
        conf = configuration(cluster)
        names = _write(cluster) | {"folder": str(cluster.folder)}
        names |= {
            f"b{number}": member.bookie_id for number, member in enumerate(cluster.members, 1)
        }
        for verb in verbs:
            arguments = verb.arguments.format(**names).split()
            expected = [each.format(**names) for each in verb.expected]
            yield _run(cluster, conf, verb.name, arguments, expected, verb.code)
        if "recover" in last:
            yield _recover(cluster, conf)
        if "decommissionbookie" in last:
            yield _decommission(cluster, conf)


def configuration(cluster: Cluster) -> Path:
    """Return a file by which the shell takes the first bookie for its own (`bookiesanity`)."""
    settings = {
        "bookiePort": cluster.members[0].bookie_id.rpartition(":")[2],
        "metadataServiceUri": cluster.metadata_uri,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "zkTimeout": 4000,
    }
    conf = cluster.folder / "shell.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return conf


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


def _run(
    cluster: Cluster,
    conf: Path,
    name: str,
    arguments: list[str],
    expected: list[str],
    code: int = 0,
) -> Result:
    started_s = time.monotonic()
    command = cluster.programs.command(SHELL_MAIN, "-conf", str(conf), *arguments)
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=VERB_S_MAX,
        )
    except subprocess.TimeoutExpired:
        return Result(COLUMN, f"shell {name}", "fail", VERB_S_MAX, "did not end")
    seconds = time.monotonic() - started_s
    output = done.stdout + done.stderr
    log = cluster.folder / f"shell-{re.sub(r'[^a-z]+', '-', name)}.log"
    log.write_text(output)
    missing = [each for each in expected if not re.search(each, output)]
    if done.returncode != code:
        return Result(
            COLUMN, f"shell {name}", "fail", seconds, f"exit code {done.returncode}; see {log}"
        )
    if missing:
        return Result(
            COLUMN, f"shell {name}", "fail", seconds, f"did not print {missing}; see {log}"
        )
    return Result(COLUMN, f"shell {name}", "pass", seconds)


def _recover(cluster: Cluster, conf: Path) -> Result:
    """Copy away what a killed bookie held."""
    victim = cluster.members[0].bookie_id
    cluster.member(victim).kill()
    result = _run(cluster, conf, "recover", ["recover", "-force", "-sku", victim], [])
    return _without(cluster, result, victim)


def _decommission(cluster: Cluster, conf: Path) -> Result:
    """Have the auditor empty a stopped bookie, and forget it."""
    victim = cluster.members[1].bookie_id
    cluster.restore(cluster.members[0].bookie_id)
    cluster.member(victim).stop()
    result = _run(
        cluster,
        conf,
        "decommissionbookie",
        ["decommissionbookie", "-bookieid", victim],
        ["are properly replicated", "is deleted successfully"],
    )
    result = _without(cluster, result, victim)
    if result.verdict == "pass" and cluster.kazoo.exists(
        f"{cluster.location.root}/cookies/{victim}"
    ):
        return Result(COLUMN, result.name, "fail", result.seconds, "its cookie is still there")
    return result


def _without(cluster: Cluster, result: Result, victim: str) -> Result:
    """Return `result`, or a failure if a ledger still names the bookie."""
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        left = [
            info.ledger_id
            for info in client.list_ledgers()
            if any(victim in fragment.ensemble for fragment in info.metadata.fragments)
        ]
    if result.verdict == "pass" and left:
        return Result(
            COLUMN, result.name, "fail", result.seconds, f"ledgers {left} still name {victim}"
        )
    return result
