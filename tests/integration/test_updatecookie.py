"""`fastbk shell updatecookie`: a bookie that was known by its address goes on under its host's name, with its data."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.client import KazooClient

import fastbk
from fastbk.cli.__main__ import main
from fastbk.devcluster.processes import is_free
from tests.fixtures.conf_bookie import started
from tests.fixtures.zookeeper import ZooKeeperPlace

ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
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


async def test_a_bookie_gets_its_hosts_name_and_its_address_back(
    conf: Path, zookeeper: ZooKeeperPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shell(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["shell", "-conf", str(conf), *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    def cookies() -> list[str]:
        return sorted(peek.get_children(zookeeper.path("cookies")))

    log, by_address = tmp_path / "log", conf.read_text()
    peek: KazooClient = zookeeper.client()
    with started(conf, log):
        async with (
            fastbk.connect(zookeeper.uri()) as client,
            await client.create_ledger(**ONE) as writer,
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
    assert shell("updatecookie", "-b", "hostname")[:2] == (
        0,
        f"Cookies of {name} are up to date\n",
    )
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
    peek.stop()
    peek.close()


def test_what_it_does_not_do_is_said(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, why in (
        ((), "Invalid command!"),
        (("-l", "-e"), "Invalid command!"),
        (("-d", "force"), "bookieformat -d"),
        (("-b", "other"), "must be hostname or ip"),
        (("-b", "ip"), "knows neither"),
    ):
        assert main(["shell", "-conf", str(conf), "updatecookie", *words]) == 255
        assert why in capsys.readouterr().err
    assert not (conf.parent / "journal").exists()
