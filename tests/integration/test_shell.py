"""`fastbk shell`: Apache's verbs on real bookies and a real ZooKeeper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import fastbk.sync
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.devcluster.processes import CONFIG_NAME
from fastbk.meta import open_store
from fastbk.model.missing_replica import MissingReplica
from fastbk.testing import LocalCluster
from tests.fixtures.shell import ENTRIES, Shell, written
from tests.fixtures.zookeeper import ZooKeeperPlace


@pytest.fixture(scope="module")
def zookeeper(zookeeper_server: ZooKeeperServer) -> ZooKeeperPlace:
    return ZooKeeperPlace(zookeeper_server)


@pytest.fixture(scope="module")
def cluster(
    zookeeper: ZooKeeperPlace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Three bookies for all tests here: none of them may take one away."""
    data = tmp_path_factory.mktemp("shell")
    with LocalCluster(3, data=data, metadata_uri=zookeeper.uri()) as one:
        yield one


@pytest.fixture
def shell(cluster: LocalCluster) -> Shell:
    return Shell("--metadata", cluster.metadata_uri)


# --- cluster and AutoRecovery ------------------------------------------------------------------------------------


def test_lists_of_bookies(shell: Shell) -> None:
    code, out, _ = shell("listbookies", "-rw")
    assert code == 0
    title, *lines = out.splitlines()
    assert title == "ReadWrite Bookies :"
    assert [line.split(",")[0] for line in lines] == [f"BookieID:bookie-{n}" for n in (1, 2, 3)]
    assert all(
        re.fullmatch(r"BookieID:\S+, IP:127\.0\.0\.1, Port:\d+, Hostname:\S+", line)
        for line in lines
    )
    assert shell("listbookies", "-readonly") == (0, "", "No bookie exists!\n")
    assert shell("listbookies", "--all")[1].startswith("All Bookies :\nBookieID:bookie-1,")
    assert shell("listbookies")[0] == 1
    assert shell("listbookies", "-rw", "-ro")[0] == 1


def test_one_bookie_and_the_cluster(
    shell: Shell, zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    code, out, _ = shell("endpointinfo", "-b", "bookie-2")
    assert code == 0
    assert "Protocol: bookie-rpc" in out
    assert "Extensions: []" in out
    code, _, err = shell("endpointinfo", "-bookieid", "bookie-9")
    assert (code, err) == (
        255,
        "Bookie bookie-9 does not exist, only [bookie-1, bookie-2, bookie-3]\n",
    )
    code, out, _ = shell("bookieinfo")
    assert code == 0
    assert out.count("Free: ") == 3
    assert re.search(r"Total disk capacity in the cluster:\t\d+\([0-9.]+[KMGT]B\)\n$", out)
    code, out, _ = shell("whatisinstanceid")
    instance_id = peek.get(zookeeper.path("INSTANCEID"))[0].decode()
    assert (code, out.split()[-1]) == (0, instance_id)
    code, out, _ = shell("clusterinfo")
    assert code == 0
    assert json.loads(out.partition("\n")[2]) == {
        "auditorElected": False,
        "auditorId": "",
        "clusterUnderReplicated": False,
        "ledgerReplicationEnabled": True,
        "totalBookiesCount": 3,
        "writableBookiesCount": 3,
        "readonlyBookiesCount": 0,
        "unavailableBookiesCount": 0,
    }


def test_auto_recovery(shell: Shell, zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    base = zookeeper.path("underreplication")
    assert shell("autorecovery")[:2] == (0, "Autorecovery is enabled.\n")
    assert shell("autorecovery", "-disable")[:2] == (0, "Disabling autorecovery\n")
    assert peek.exists(f"{base}/disable")
    assert shell("autorecovery", "-d")[1] == "Autorecovery already disabled. Doing nothing\n"
    assert shell("triggeraudit")[0] == 255
    assert shell("autorecovery", "-e")[:2] == (0, "Enabling autorecovery\n")
    assert shell("whoisauditor")[:2] == (255, "No auditor elected\n")
    assert shell("lostbookierecoverydelay", "-g")[0] == 255
    assert shell("lostbookierecoverydelay", "-set", "20")[0] == 0
    assert shell("lostbookierecoverydelay", "-get")[1].endswith(" in ZK: 20\n")
    assert shell("lostbookierecoverydelay", "-s", "x")[0] == 255
    vote = peek.create(
        f"{base}/auditorelection/V_",
        b'bookieId: "bookie-3"\n',
        ephemeral=True,
        sequence=True,
        makepath=True,
    )
    assert shell("whoisauditor")[:2] == (0, "Auditor: bookie-3\n")
    version = peek.get(f"{base}/lostBookieRecoveryDelay")[1].version
    assert shell("triggeraudit")[0] == 0
    data, stat = peek.get(f"{base}/lostBookieRecoveryDelay")
    assert (data, stat.version) == (b"20", version + 1)
    peek.delete(vote)
    assert shell("forceauditchecks")[0] == 255
    code, printed, _ = shell("forceauditchecks", "-calc", "-rc")
    assert code == 0
    assert re.fullmatch(
        r"Resetting CheckAllLedgersCTime to : (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3})\n"
        r"Resetting ReplicasCheckCTime to : \1\n",
        printed,
    )
    assert peek.exists(f"{base}/replicascheckctime")
    assert not peek.exists(f"{base}/placementpolicycheckctime")


def test_the_queue_of_auto_recovery(
    shell: Shell, zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    base = zookeeper.path("underreplication")
    marks = {5000: b'replica: "bookie-1"\nctime: 99\n', 70_000: b'replica: "bookie-2"\n'}
    for ledger_id, mark in marks.items():
        folder = f"{ledger_id >> 16:04x}/{ledger_id & 0xFFFF:04x}"
        peek.create(f"{base}/ledgers/0000/0000/{folder}/urL{ledger_id:010d}", mark, makepath=True)
    peek.ensure_path(f"{base}/locks")
    peek.create(f"{base}/locks/urL0000005000", b'bookieId: "worker"\n', ephemeral=True)
    code, out, _ = shell("listunderreplicated", "-pmr", "-prw")
    assert code == 0
    assert out == (
        "5000\n\tCtime : 99\n\tMissingReplica : bookie-1\n\tReplicationWorkerId : worker\n"
        "70000\n\tMissingReplica : bookie-2\nUnder replicated ledger count: 2\n"
    )
    count = "Under replicated ledger count: 1\n"
    assert shell("listunderreplicated", "-mr", "bookie-2")[1] == f"70000\n{count}"
    assert shell("listunderreplicated", "-emr", "bookie-2", "-c")[1] == count
    hexadecimal = ("-ledgeridformat", "hex")
    assert shell("listunderreplicated", "-mr", "bookie-2", before=hexadecimal)[1].startswith(
        "11170\n"
    )
    code, out, _ = shell("queryautorecoverystatus", "-v")
    assert out.endswith("\tLedgerId:5000\tBookieId:worker\tLedgerSize:gone\n")
    peek.delete(f"{base}/ledgers", recursive=True)


def test_calls_that_are_wrong(shell: Shell) -> None:
    code, _, err = shell("listbokies")
    assert (code, "did you mean listbookies?" in err) == (255, True)
    code, _, err = shell("listbookies", "-readwrit")
    assert (code, "did you mean -readwrite?" in err) == (255, True)
    assert shell("endpointinfo")[0] == 255
    assert shell("whatisinstanceid", "x")[0] == 255
    code, out, _ = shell("listunderreplicated", "-help")
    assert (code, out.splitlines()[1]) == (0, "usage: listunderreplicated [options]")
    assert shell("help", "whoisauditor")[0] == 0
    assert Shell()("listbookies", "-rw")[0] == 255, "which cluster is not said"


def test_metadata_elsewhere_and_a_file_of_apaches(cluster: LocalCluster, tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/x.sqlite"
    with closing(open_store(uri)) as store:
        elsewhere = Shell("--metadata", uri)
        assert elsewhere("whoisauditor")[:2] == (255, "No auditor elected\n")
        store.coordination.vote("b1")
        assert elsewhere("whoisauditor")[:2] == (0, "Auditor: b1\n")
        assert '"auditorElected": true' in elsewhere("clusterinfo")[1]
        store.coordination.lock(7, "host-1")
        out = elsewhere("queryautorecoverystatus")[1]
        assert out == "CurrentRecoverLedgerInfo:\n\tLedgerId:7\tBookieId:host-1\n"
        store.marks.update(7, add=[MissingReplica("b2", 0, 9, "", 5)])
        out = elsewhere("listunderreplicated", "-pmr", "-prw")[1]
        assert out.startswith(
            "7\n\tCtime : 5\n\tMissingReplica : b2\n\tReplicationWorkerId : host-1\n"
        )
    code, _, err = elsewhere("initnewcluster")
    assert (code, "in ZooKeeper only" in err) == (255, True)
    conf = tmp_path / "bk_server.conf"
    conf.write_text(f"metadataServiceUri={cluster.metadata_uri}\n")
    code, out, _ = Shell("-conf", str(conf))("listbookies", "-a")
    assert (code, "bookie-3" in out) == (0, True)


# --- ledgers and entries -----------------------------------------------------------------------------------------


def test_ledgers_and_their_metadata(shell: Shell, cluster: LocalCluster, tmp_path: Path) -> None:
    ledger_id = written(cluster, password=b"secret")
    assert f"ledgerID: {ledger_id}\n" in shell("listledgers")[1]
    code, out, _ = shell("ledgermetadata", "-l", str(ledger_id))
    title, line = out.splitlines()
    assert (code, title) == (0, f"ledgerID: {ledger_id}")
    assert re.fullmatch(
        r"LedgerMetadata\{ensembleSize=3, writeQuorumSize=2, ackQuorumSize=2, state=CLOSED, length=86,"
        r" lastEntryId=11, digestType=CRC32, password=OMITTED,"
        r" ensembles=\{0=\[bookie-\d, bookie-\d, bookie-\d\]\}, customMetadata=\{\}\}",
        line,
    )
    assert f"{title}\n{line}\n" in shell("listledgers", "-m")[1]
    assert f"{title}\n" in shell("listledgers", "-bookieid", "bookie-3")[1]
    assert shell("listledgers", "-bookieid", "bookie-9")[:2] == (0, "")
    assert shell("listledgers", "-bookieid", "not an id")[0] == 255
    dump = tmp_path / "dump"
    assert shell("ledgermetadata", "-l", str(ledger_id), "-dumptofile", str(dump))[0] == 0
    other = str(10**6 + ledger_id)
    assert shell("ledgermetadata", "-l", other, "-restorefromfile", str(dump))[0] == 0
    assert shell("ledgermetadata", "-l", other)[1].splitlines()[1] == line
    assert shell("ledgermetadata", "-l", other, "-restorefromfile", str(dump))[0] == 255
    code, out, _ = shell("ledgermetadata", "-l", other, "-restorefromfile", str(dump), "-update")
    assert (code, out) == (0, f"successfully updated ledger metadata {other}\n")
    assert shell("readledger", "-l", other, "-le", "0")[0] == 255  # its entries carry another id
    both = ("-dumptofile", "x", "-restorefromfile", "y")
    assert shell("ledgermetadata", "-l", other, *both)[0] == 254
    assert shell("deleteledger", "-l", other, typed="what\nn\n")[0] == 0
    assert shell("ledgermetadata", "-l", other)[0] == 0
    assert shell("deleteledger", "-l", other, typed="yes\n")[0] == 0
    assert shell("ledgermetadata", "-l", other)[0] == 255
    code, _, said = shell("deleteledger", "-l", other, "-f")
    assert (code, said) == (0, f"there is no ledger {other}\n")


def test_entries_are_read(shell: Shell, cluster: LocalCluster) -> None:
    ledger_id = written(cluster, password=b"secret")
    code, out, _ = shell("readledger", "-l", str(ledger_id))
    lines = out.splitlines()
    assert (code, len(lines)) == (0, ENTRIES)
    assert lines[11] == f"--------- Lid={ledger_id}, Eid=11, EntrySize=8 ---------"
    code, out, _ = shell("readledger", "-l", str(ledger_id), "-fe", "3", "-le", "4", "-m")
    assert out.splitlines()[1::2] == ["entry 3", "entry 4"]
    form = ("-entryformat", "hex")
    code, out, _ = shell("readledger", "-l", str(ledger_id), "-le", "0", "-msg", before=form)
    assert out.splitlines()[1] == f"00000000 {'65 6E 74 72 79 20 30':<47} entry 0"
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        (fragment,) = client.ledger_info(ledger_id).metadata.fragments
    code, out, err = shell("readledger", "-l", str(ledger_id), "-b", fragment.ensemble[0], "-m")
    held = [number for number in range(ENTRIES) if number % 3 != 1]
    assert re.findall(r"Eid=(\d+)", out) == [str(number) for number in held]
    assert out.splitlines()[1::2] == [f"entry {number}" for number in held]
    assert err.count("Failed to read entry") == ENTRIES - len(held)
    assert shell("readledger", "-l", str(ledger_id), "-b", "bookie-9")[0] == 255
    assert shell("readledger", "-l", "99999999")[0] == 255


def test_an_open_ledger_is_closed_only_when_asked(shell: Shell, cluster: LocalCluster) -> None:
    ledger_id = written(cluster, is_open=True)
    assert shell("readledger", "-l", str(ledger_id))[0] == 0
    assert "state=OPEN" in shell("ledgermetadata", "-l", str(ledger_id))[1]
    code, out, _ = shell("readledger", "-l", str(ledger_id), "-r", "-le", "50")
    assert (code, out.count("Eid=")) == (0, ENTRIES)
    assert "state=CLOSED" in shell("ledgermetadata", "-l", str(ledger_id))[1]


def test_trials(shell: Shell, cluster: LocalCluster) -> None:
    before = shell("listledgers")[1]
    code, out, _ = shell("simpletest", "-e", "3", "-w", "3", "-a", "2", "-n", "300")
    assert code == 0
    assert re.search(r"300 entries written to ledger \d+\. Last entry Id 299\n$", out)
    assert shell("simpletest", "-ensemble", "9")[0] == 255
    bookie = cluster.bookies[1]
    code, out, err = shell(
        "bookiesanity", "-t", "5", before=("-conf", str(bookie.directory / CONFIG_NAME))
    )
    assert (code, err) == (0, "")
    assert out.endswith("Bookie sanity test succeeded\n")
    assert shell("listledgers")[1] == before


# --- cookies and names -------------------------------------------------------------------------------------------


def test_cookies(
    shell: Shell, zookeeper: ZooKeeperPlace, peek: KazooClient, tmp_path: Path
) -> None:
    code, out, _ = shell("cookie_get", "bookie-2")
    data = peek.get(zookeeper.path("cookies/bookie-2"))[0].decode()
    assert (code, out) == (0, f"Cookie for bookie 'bookie-2' is:\n---\n{data}\n---\n")
    instance_id = peek.get(zookeeper.path("INSTANCEID"))[0].decode()
    file = tmp_path / "VERSION"
    where = ("-j", "/j1,/j2", "-l", "/l1,/l2", "-o", str(file))
    assert shell("cookie_generate", *where, "host:3181")[0] == 0
    expected = (
        f'5\nbookieHost: "host:3181"\njournalDir: "/j1,/j2"\nledgerDirs: "2\\t/l1\\t/l2"\n'
        f'instanceId: "{instance_id}"\n'
    )
    assert file.read_text() == expected
    assert shell("cookie_generate", *where, "-ix", "/i", "-i", "me", "host:3181")[0] == 0
    other = f'{expected.replace(instance_id, "me")}indexDirs: "1\\t/i"\n'
    assert file.read_text() == other
    assert shell("cookie_update", "-cf", str(file), "host:3181")[0] == 255
    assert shell("cookie_create", "-cf", str(file), "host:3181")[0] == 0
    assert peek.get(zookeeper.path("cookies/host:3181"))[0].decode() == other
    assert shell("cookie_create", "-cf", str(file), "host:3181")[0] == 255
    assert "BookieID:host:3181, IP:UNKNOWN" in shell("listbookies", "-a")[1]
    file.write_text(expected)
    assert shell("cookie_update", "--cookie-file", str(file), "host:3181")[0] == 0
    assert peek.get(zookeeper.path("cookies/host:3181"))[0].decode() == expected
    assert shell("cookie_delete", "host:3181")[0] == 0
    assert not peek.exists(zookeeper.path("cookies/host:3181"))
    assert shell("cookie_delete", "host:3181")[0] == 255
    assert shell("cookie_get", "host:3181")[0] == 255
    assert shell("cookie_get")[0] == 255


def test_names_in_ledgers(shell: Shell, cluster: LocalCluster, tmp_path: Path) -> None:
    ledger_id = str(written(cluster))
    dump, other = tmp_path / "dump", str(2 * 10**6 + int(ledger_id))
    shell("ledgermetadata", "-l", ledger_id, "-dumptofile", str(dump))
    dump.write_bytes(dump.read_bytes().replace(b"bookie-3", b"bookie-7"))
    assert shell("ledgermetadata", "-l", other, "-restorefromfile", str(dump))[0] == 0
    assert shell("updateBookieInLedger", "-sb", "bookie-3", "-db", "bookie-8")[0] == 255  # it is up
    assert shell("updateBookieInLedger", "-sb", "bookie-7", "-db", "bookie-7")[0] == 255
    assert shell("updateBookieInLedger", "-sb", "bookie-7")[0] == 255
    code, out, _ = shell("updateBookieInLedger", "-sb", "bookie-7", "-db", "bookie-8", "-s", "100")
    assert (code, out.split()[-1]) == (0, "updated=1")
    assert "bookie-8" in shell("ledgermetadata", "-l", other)[1]
    conf = tmp_path / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri={cluster.metadata_uri}\nallowLoopback=true\nuseHostNameAsBookieID=true\n"
        "listeningInterface=lo\n"
    )
    code, _, err = shell("updateledgers", "-b", "ip", before=("-conf", str(conf)))
    assert (code, "useHostNameAsBookieID=false is expected" in err) == (255, True)
    code, out, _ = shell("updateledgers", "-b", "hostname", before=("-conf", str(conf)))
    assert (code, out.split()[-1]) == (0, "updated=0")
    shell("deleteledger", "-f", "-l", other)


def test_recovery_is_asked_for(shell: Shell) -> None:
    code, out, err = shell("recover", "bookie-1", typed="N\n")
    assert (code, err) == (255, "Give up!\n")
    assert out.startswith("Bookies : [bookie-1]\nAre you sure to recover them")
