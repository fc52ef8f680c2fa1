"""`fastbk bookie recover` and `decommission` of lost bookies of either kind, without AutoRecovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import fastbk.sync
from fastbk.errors import Error
from tests.compat.python_side import PASSWORD, PythonSide, payload
from tests.compat.results import Result, is_wanted, run_cell
from tests.compat.rig import Cluster, Rig

COLUMN = "fastbk > mixed"
ENTRIES = 60
QUORUMS = ((3, 2, 2), (3, 3, 2), (2, 2, 1), (2, 2, 2), (3, 3, 3))


def recover_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Five bookies, three of ours; one of each kind is lost, one after the other."""
    with rig.cluster(ours=3, apache=2, is_made_by_apache=True) as cluster:
        for name, cell in CELLS.items():
            if is_wanted(name, only):
                yield run_cell(COLUMN, name, lambda cell=cell: cell(cluster))  # type: ignore[misc]


def recover_apache(cluster: Cluster) -> None:
    """One of Apache's is killed, what it held is copied, and it comes back."""
    victim = cluster.members[-1].bookie_id
    _lose(cluster, victim, "recover")
    assert cluster.kazoo.exists(f"{cluster.location.root}/cookies/{victim}"), "its cookie stays"
    cluster.restore(victim)


def recover_ours(cluster: Cluster) -> None:
    """One of ours is killed, what it held is copied, and it comes back."""
    victim = cluster.members[1].bookie_id
    _lose(cluster, victim, "recover")
    cluster.restore(victim)


def decommission_apache(cluster: Cluster) -> None:
    """One of Apache's is stopped, copied and forgotten."""
    victim = cluster.members[-1].bookie_id
    _lose(cluster, victim, "decommission")
    assert not cluster.kazoo.exists(f"{cluster.location.root}/cookies/{victim}"), "its cookie"


CELLS: dict[str, Callable[[Cluster], None]] = {
    "fastbk-recover-apache": recover_apache,
    "fastbk-recover-ours": recover_ours,
    "fastbk-decommission-apache": decommission_apache,
}


def _lose(cluster: Cluster, victim: str, verb: str) -> None:
    """Write ledgers, one of them left open, lose a bookie, run the verb, and look at every ledger."""
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        written = []
        for sizes in QUORUMS * 3:
            writer = client.create_ledger(*sizes, password=PASSWORD)
            writer.append_many([payload(writer.ledger_id, n) for n in range(ENTRIES)])
            writer.close()
            written.append(writer.ledger_id)
        # On all but one: the victim, most likely, among them.
        left_open = client.create_ledger(4, 3, 2, password=PASSWORD)
        while not _names(client, left_open.ledger_id, victim):
            left_open = client.create_ledger(4, 3, 2, password=PASSWORD)
        left_open.append_many([payload(left_open.ledger_id, n) for n in range(ENTRIES)])
        written.append(left_open.ledger_id)
        assert any(_names(client, ledger_id, victim) for ledger_id in written[:-1])
        cluster.member(victim).kill()
        cluster.wait_unregistered(victim)
        consent = ("--yes",) if verb == "decommission" else ()
        words = (*consent, "--grace", "1", "--metadata", cluster.metadata_uri)
        cluster.fastbk("bookie", verb, victim, *words)
        for ledger_id in written:
            assert not _names(client, ledger_id, victim), f"{ledger_id} still names {victim}"
        # A writer that has replaced the bookie by itself in time goes on; where the verb had to do it, it is fenced.
        is_closed = client.ledger_info(left_open.ledger_id).metadata.is_closed
        last = {ledger_id: ENTRIES - 1 for ledger_id in written}
        if is_closed:
            with pytest.raises(Error):
                left_open.append(payload(left_open.ledger_id, ENTRIES))
        else:
            last[left_open.ledger_id] = left_open.append(payload(left_open.ledger_id, ENTRIES))
            left_open.close()
    with PythonSide(cluster.metadata_uri) as reader:
        for ledger_id in written:
            assert reader.read(str(ledger_id)) == str(last[ledger_id]), f"ledger {ledger_id}"


def _names(client: fastbk.sync.Client, ledger_id: int, bookie_id: str) -> bool:
    """Return whether a ledger counts on a bookie."""
    fragments = client.ledger_info(ledger_id).metadata.fragments
    return any(bookie_id in fragment.ensemble for fragment in fragments)
