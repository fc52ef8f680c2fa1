"""AutoRecovery's nodes, byte by byte, on a real server."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from fastbk.errors import ConfigError, StorageError
from fastbk.meta.api import Check
from fastbk.meta.replica_marks import UnderreplicatedLedger
from fastbk.meta.zookeeper.store import ZooKeeperStore
from fastbk.meta.zookeeper.underreplication import (
    UnderreplicationPaths,
    ZooKeeperCoordination,
    ledger_id_of,
    parse_ledger,
)
from tests.fixtures.zookeeper import ZooKeeperPlace

BASE = "underreplication"


@pytest.fixture
def nodes(near: ZooKeeperStore) -> ZooKeeperCoordination:
    return near.coordination


def test_looking_changes_nothing(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    assert nodes.is_enabled()
    assert nodes.lost_bookie_delay_s() is None
    assert nodes.auditor() is None
    assert list(nodes.ledgers()) == []
    assert nodes.worker_of(7) is None
    assert nodes.check_time_ms(Check.REPLICAS) == -1
    assert not nodes.enable()
    assert not peek.exists(zookeeper.path(BASE))


def test_the_switch_and_the_first_nodes_are_apaches(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    assert nodes.disable()
    assert not nodes.disable()
    assert not nodes.is_enabled()
    assert peek.get(zookeeper.path(f"{BASE}/disable"))[0] == b""
    assert peek.get(zookeeper.path(f"{BASE}/LAYOUT"))[0] == b'type: "BASIC"\nversion: 1\n'
    assert set(peek.get_children(zookeeper.path(BASE))) == {"LAYOUT", "ledgers", "locks", "disable"}
    assert nodes.enable()
    assert nodes.is_enabled()


def test_the_delay_is_written_also_when_it_stays(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    nodes.set_lost_bookie_delay(30)
    nodes.set_lost_bookie_delay(30)
    data, stat = peek.get(zookeeper.path(f"{BASE}/lostBookieRecoveryDelay"))
    # The auditor waits for a change of this node, of whatever kind.
    assert (data, stat.version) == (b"30", 1)
    assert nodes.lost_bookie_delay_s() == 30


def test_the_times_of_checks_are_binary(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    nodes.set_check_time(Check.ALL_LEDGERS, 1_700_000_000_000)
    data, _ = peek.get(zookeeper.path(f"{BASE}/checkallledgersctime"))
    assert data == bytes.fromhex("0880d095ffbc31")
    assert nodes.check_time_ms(Check.ALL_LEDGERS) == 1_700_000_000_000
    assert nodes.check_time_ms(Check.PLACEMENT) == -1


def test_a_mark_is_apaches_and_marks_are_joined(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    nodes.mark(UnderreplicatedLedger(7, ("bookie-1:3181",)))
    path = zookeeper.path(f"{BASE}/ledgers/0000/0000/0000/0007/urL0000000007")
    assert peek.get(path)[0] == b'replica: "bookie-1:3181"\n'
    nodes.mark(UnderreplicatedLedger(7, ("bookie-1:3181", "bookie-2:3181"), 12))
    assert peek.get(path)[0] == b'replica: "bookie-1:3181"\nreplica: "bookie-2:3181"\nctime: 12\n'
    version = peek.get(path)[1].version
    nodes.mark(UnderreplicatedLedger(7, ("bookie-2:3181",)))
    assert peek.get(path)[1].version == version
    nodes.mark(UnderreplicatedLedger(2**40 + 5, ("c",)))
    assert peek.exists(zookeeper.path(f"{BASE}/ledgers/0000/0100/0000/0005/urL1099511627781"))
    assert [one.ledger_id for one in nodes.ledgers()] == [7, 2**40 + 5]


def test_what_java_wrote_is_read(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    peek.create(
        zookeeper.path(f"{BASE}/ledgers/0000/0000/0001/0002/urL0000065538"),
        b'replica: "127.0.0.1:3181"\nreplica: "127.0.0.1:3181"\nctime: 1700000000000\n',
        makepath=True,
    )
    peek.create(
        zookeeper.path(f"{BASE}/locks/urL0000065538"), b'bookieId: "host-4"\n', makepath=True
    )
    for number, name in ((12, "late"), (9, "early"), (10, "middle")):
        path = zookeeper.path(f"{BASE}/auditorelection/V_{number:010d}")
        peek.create(path, f'bookieId: "{name}:3181"\n'.encode(), makepath=True)
    (found,) = nodes.ledgers()
    assert found == UnderreplicatedLedger(
        65538, ("127.0.0.1:3181", "127.0.0.1:3181"), 1_700_000_000_000
    )
    assert nodes.worker_of(65538) == "host-4"
    assert nodes.auditor() == "early:3181"
    peek.delete(zookeeper.path(f"{BASE}/auditorelection/V_0000000009"))
    assert nodes.auditor() == "middle:3181"


def test_votes_and_locks_are_apaches(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    vote, lock = nodes.vote("bookie-1:3181"), nodes.lock(7, "host-4")
    assert lock is not None
    elected = zookeeper.path(f"{BASE}/auditorelection")
    assert peek.get(elected)[0] == b""
    assert vote.is_elected()
    assert peek.get(elected)[0] == b'bookieId: "bookie-1:3181"\n'
    assert peek.get_children(elected) == ["V_0000000000"]
    data, stat = peek.get(f"{elected}/V_0000000000")
    assert (data, stat.ephemeralOwner != 0) == (b'bookieId: "bookie-1:3181"\n', True)
    data, stat = peek.get(zookeeper.path(f"{BASE}/locks/urL0000000007"))
    assert (data, stat.ephemeralOwner != 0) == (b'bookieId: "host-4"\n', True)
    assert peek.get(zookeeper.path(f"{BASE}/LAYOUT"))[0] == b'type: "BASIC"\nversion: 1\n'
    lock.release()
    vote.close()
    assert peek.get_children(zookeeper.path(f"{BASE}/locks")) == []
    assert peek.get_children(zookeeper.path("ID-fastbk/lock_holders")) == []
    assert peek.get_children(elected) == []


def test_apaches_worker_and_ours_exclude_one_another(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    """INV-H2: a lock that somebody removed by hand is not ours any more, also when Apache's worker has taken it."""
    path = zookeeper.path(f"{BASE}/locks/urL0000000007")
    peek.create(path, b'bookieId: "java"\n', ephemeral=True, makepath=True)
    assert nodes.lock(7, "host-4") is None
    peek.delete(path)
    lock = nodes.lock(7, "host-4")
    assert lock is not None
    peek.delete(path)
    assert not lock.is_held()
    peek.create(path, b'bookieId: "java"\n', ephemeral=True)
    lock.release()
    assert peek.get(path)[0] == b'bookieId: "java"\n'
    assert peek.get_children(zookeeper.path("ID-fastbk/lock_holders")) == []


def test_apaches_auditor_and_ours_exclude_one_another(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    """INV-H1."""
    prefix = zookeeper.path(f"{BASE}/auditorelection/V_")
    java = peek.create(prefix, b'bookieId: "java"\n', ephemeral=True, sequence=True, makepath=True)
    vote = nodes.vote("b1")
    assert not vote.is_elected()
    assert nodes.auditor() == "java"
    peek.delete(java)
    assert vote.is_elected()
    peek.create(prefix, b'bookieId: "java"\n', ephemeral=True, sequence=True)
    assert vote.is_elected()
    assert nodes.auditor() == "b1"


def test_a_layout_that_is_not_known_is_refused(
    zookeeper: ZooKeeperPlace, peek: KazooClient, nodes: ZooKeeperCoordination
) -> None:
    peek.create(zookeeper.path(f"{BASE}/LAYOUT"), b'type: "BASIC"\nversion: 2\n', makepath=True)
    with pytest.raises(ConfigError, match="not known"):
        nodes.is_enabled()


def test_names_and_damage() -> None:
    assert ledger_id_of("urL0000000007") == 7
    assert ledger_id_of("0007") is None
    assert UnderreplicationPaths("/l").lock(7) == "/l/underreplication/locks/urL0000000007"
    with pytest.raises(StorageError, match="mark of ledger 7"):
        parse_ledger(7, b"\xff\x00")
