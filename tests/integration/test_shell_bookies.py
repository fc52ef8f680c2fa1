"""`fastbk shell`: verbs about bookies that go, clusters that are made and removed, and a bookie's directories."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import fastbk.sync
from fastbk.cli.__main__ import main
from fastbk.devcluster.bookie import CONFIG_NAME
from fastbk.testing import LocalCluster
from tests.fixtures.shell import ENTRIES, written
from tests.fixtures.zookeeper import ZooKeeperPlace


@pytest.fixture
def peek(zookeeper: ZooKeeperPlace) -> Iterator[KazooClient]:
    client = zookeeper.client()
    yield client
    client.stop()
    client.close()


def test_a_bookie_that_is_gone(
    zookeeper: ZooKeeperPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster(4, data=tmp_path / "data", metadata_uri=zookeeper.uri()) as four:
        ids = [written(four) for _ in range(4)]

        def shell(*words: str) -> tuple[int, str, str]:
            capsys.readouterr()
            code = main(["shell", "--metadata", four.metadata_uri, *words])
            said = capsys.readouterr()
            return code, said.out, said.err

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


def test_a_cluster_is_made_and_removed(
    zookeeper: ZooKeeperPlace,
    peek: KazooClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    location = zookeeper.location()

    def shell(*words: str, typed: str = "") -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        return main(["shell", "--metadata", location.uri, *words])

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
    assert main(["shell", "--metadata", "sqlite:/nowhere/x", "metaformat"]) == 255
    assert "fastbk metadata" in capsys.readouterr().err


def test_directories_of_a_bookie(
    zookeeper: ZooKeeperPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster(1, data=tmp_path / "data", metadata_uri=zookeeper.uri()) as one:
        with (
            fastbk.sync.connect(one.metadata_uri) as client,
            client.create_ledger(1, 1, 1) as writer,
        ):
            writer.append(b"x")
        conf = one.bookies[0].directory / CONFIG_NAME

        def shell(*words: str) -> tuple[int, str, str]:
            capsys.readouterr()
            code = main(["shell", "--conf", str(conf), *words])
            said = capsys.readouterr()
            return code, said.out, said.err

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
