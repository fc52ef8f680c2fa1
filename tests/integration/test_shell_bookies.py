"""`fastbk shell`: bookies that go or get another name, clusters that are made and removed, a bookie's directories."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import fastbk.sync
from fastbk.devcluster.processes import CONFIG_NAME, is_free
from fastbk.testing import LocalCluster
from tests.fixtures.conf_bookie import started
from tests.fixtures.shell import ENTRIES, Shell, written
from tests.fixtures.zookeeper import ZooKeeperPlace

CONF = """
bookiePort = {port}
listeningInterface = lo
allowLoopback = true
metadataServiceUri = {uri}
journalDirectories = {folder}/journal
ledgerDirectories = {folder}/ledgers
"""
NAMED = "useHostNameAsBookieID = true\n"


@pytest.fixture
def conf(zookeeper: ZooKeeperPlace, tmp_path: Path) -> Path:
    port = next(port for port in range(23_181, 24_181) if is_free(port))
    path = tmp_path / "bk_server.conf"
    path.write_text(CONF.format(port=port, uri=zookeeper.uri(), folder=tmp_path))
    return path


def test_a_bookie_that_is_gone(zookeeper: ZooKeeperPlace) -> None:
    with LocalCluster(4, metadata_uri=zookeeper.uri()) as four:
        ids = [written(four) for _ in range(4)]
        shell = Shell("--metadata", four.metadata_uri)

        def holding() -> list[int]:
            out = shell("listledgers", "-bookieid", "bookie-1")[1]
            return [int(line.split()[1]) for line in out.splitlines()]

        before = holding()
        assert before
        assert shell("decommissionbookie", "-bookieid", "bookie-1")[0] == 255  # it is up
        four.stop_bookie(0)
        code, out, _ = shell("recover", "-f", "-q", "bookie-1")
        assert (code, out.count("bookie-1*")) == (0, len(before))
        code, out, _ = shell("recover", "-f", "-dr", "bookie-1")
        assert (code, out.count("would be copied")) == (0, len(before))
        assert shell("recover", "-f", "-l", str(before[0]), "bookie-1")[0] == 0
        assert holding() == before[1:]
        assert shell("recover")[0] == 255
        code, out, _ = shell("decommissionbookie", "-bookieid", "bookie-1")
        assert (code, out.splitlines()[-1]) == (
            0,
            "Cookie of the decommissioned bookie: bookie-1 is deleted successfully",
        )
        assert holding() == []
        assert "bookie-1," not in shell("listbookies", "-a")[1]
        with fastbk.sync.connect(four.metadata_uri) as client:
            for ledger_id in ids:
                with client.open_ledger(ledger_id) as reader:
                    assert len(list(reader.read())) == ENTRIES


def test_a_cluster_is_made_and_removed(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    location = zookeeper.location()

    def shell(*words: str, typed: str = "") -> int:
        return Shell("--metadata", location.uri)(*words, typed=typed)[0]

    def instance_id() -> str:
        return str(peek.get(f"{location.root}/INSTANCEID")[0].decode())

    assert shell("initnewcluster") == 0
    assert shell("initnewcluster") == 1
    first = instance_id()
    assert shell("metaformat", "-n") == 1
    assert shell("metaformat", typed="no\n") == 1
    assert instance_id() == first
    assert shell("metaformat", typed="Y\n") == 0
    assert shell("metaformat", "-nonInteractive", "-force") == 0
    second = instance_id()
    assert second != first
    root = ("-p", location.root)
    assert shell("nukeexistingcluster", *root) == 1
    assert shell("nukeexistingcluster", *root, "-f", "-i", second) == 1
    assert shell("nukeexistingcluster", *root, "-i", first) == 1
    assert shell("nukeexistingcluster", "-p", "/elsewhere", "-f") == 1
    peek.create(f"{location.root}/stranger")
    assert shell("nukeexistingcluster", *root, "-i", second) == 1
    peek.delete(f"{location.root}/stranger")
    peek.create(f"{location.root}/available/host:3181")
    assert shell("nukeexistingcluster", *root, "-f") == 1
    peek.delete(f"{location.root}/available/host:3181")
    assert shell("nukeexistingcluster", *root, "-i", second) == 0
    assert not peek.exists(location.root)
    assert shell("nukeexistingcluster", *root, "-f") == 0
    assert shell("metaformat") == 0
    assert instance_id()
    code, _, err = Shell("--metadata", "sqlite:/nowhere/x")("metaformat")
    assert (code, "fastbk metadata" in err) == (255, True)


def test_directories_of_a_bookie(zookeeper: ZooKeeperPlace) -> None:
    with LocalCluster(1, metadata_uri=zookeeper.uri()) as one:
        with (
            fastbk.sync.connect(one.metadata_uri) as client,
            client.create_ledger(1, 1, 1) as writer,
        ):
            writer.append(b"x")
        shell = Shell("--conf", str(one.bookies[0].directory / CONFIG_NAME))

        code, _, err = shell("bookieformat", "-n", "-f", "-d")
        assert (code, "is in use" in err or "lock" in err) == (255, True), err
        one.stop_bookie(0)
        assert shell("initbookie")[0] == 1
        code, out, _ = shell("listfilesondisc", "-txn", "-log")
        assert (code, ".journal\n" in out, "Index Files" in out) == (0, True, False)
        assert re.search(r"^LastLogMark : Journal - /\S+, Batch - \d+$", shell("lastmark")[1], re.M)
        assert shell("localconsistencycheck")[0] == 0
        code, _, err = shell("readlog", "-l", "5", "0")
        assert (code, "fastbk inspect entrylog /" in err) == (255, True)
        code, _, err = shell("bookieformat", "-n")
        assert (code, err) == (1, "Bookie format aborted!!\n")
        assert shell("bookieformat", "-n", "-f", "-d")[0] == 0
        assert shell("listfilesondisc", "-txn", "-log", "-idx")[1].count("\n/") == 0
        assert shell("initbookie")[0] == 0
        assert shell("cookie_get", one.bookies[0].name)[0] == 255


async def test_a_bookie_gets_its_hosts_name_and_its_address_back(
    conf: Path, zookeeper: ZooKeeperPlace, peek: KazooClient, tmp_path: Path
) -> None:
    """`updatecookie`: a bookie that was known by its address goes on under its host's name, with its data."""
    shell = Shell("-conf", str(conf))

    def cookies() -> list[str]:
        return sorted(peek.get_children(zookeeper.path("cookies")))

    log, by_address = tmp_path / "log", conf.read_text()
    with started(conf, log):
        async with (
            fastbk.connect(zookeeper.uri()) as client,
            await client.create_ledger(1, 1, 1) as writer,
        ):
            await writer.append(b"kept")
        (address,) = cookies()
        assert shell("updatecookie", "-b", "hostname")[0] == 255  # the file says otherwise
        conf.write_text(by_address + NAMED)
        code, _, err = shell("updatecookie", "-b", "hostname")
        assert (code, "in use by a running bookie" in err) == (255, True)
    code, out, _ = shell("updatecookie", "-b", "hostname")
    assert (code, f"Updated cookies from {address} to " in out) == (0, True)
    (name,) = cookies()
    assert name != address
    assert name.rpartition(":")[2] == address.rpartition(":")[2]
    assert shell("updatecookie", "-b", "hostname")[:2] == (0, f"Cookies of {name} are up to date\n")
    code, out, _ = shell("updatecookie", "-l")
    assert (code, out.splitlines()) == (
        0,
        [
            f"Listing local Cookie Files of Bookie: {name}",
            f"{tmp_path}/journal/current/VERSION",
            f"{tmp_path}/ledgers/current/VERSION",
            zookeeper.path(f"cookies/{name}"),
        ],
    )
    code, out, _ = shell("updateledgers", "-b", "hostname")
    assert (code, out.split()[-1]) == (0, "updated=1")
    with started(conf, log):
        async with fastbk.connect(zookeeper.uri()) as client:
            reader = await client.open_ledger(writer.ledger_id)
            assert reader.metadata.fragments[0].ensemble == (name,)
            assert [bytes(one.data) async for one in reader.read()] == [b"kept"]
    conf.write_text(by_address)
    assert shell("updatecookie", "-b", "ip")[0] == 0
    assert cookies() == [address]


def test_what_updatecookie_does_not_do_is_said(conf: Path) -> None:
    for words, why in (
        ((), "Invalid command!"),
        (("-l", "-e"), "Invalid command!"),
        (("-d", "force"), "bookieformat -d"),
        (("-b", "other"), "must be hostname or ip"),
        (("-b", "ip"), "knows neither"),
    ):
        code, _, err = Shell("-conf", str(conf))("updatecookie", *words)
        assert (code, why in err) == (255, True)
    assert not (conf.parent / "journal").exists()
