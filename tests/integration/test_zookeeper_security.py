"""A ZooKeeper with TLS, digest users, SASL and access control lists, from end to end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.protocol.states import KeeperState

import fastbk
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.devcluster.processes import free_port
from fastbk.errors import ConfigError, MetadataUnavailable
from fastbk.meta import open_store
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.meta.zookeeper import security as zookeeper_security
from fastbk.meta.zookeeper.security import VARIABLE
from fastbk.meta.zookeeper.session import Call, Session, server_zxid
from fastbk.safe_files import write_text
from fastbk.security.authority import Authority
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.logs import text_of

LOGIN = """
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_saslbookie="sasl-secret"; };
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zookeeper-security")


@pytest.fixture(scope="module")
def secure_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(folder: Path, authority: Authority, secure_port: int) -> Iterator[ZooKeeperServer]:
    issued = authority.issue(folder / "server", ["127.0.0.1"])
    both = folder / "server.pem"
    write_text(both, issued.key_file.read_text() + issued.certificate_file.read_text())
    write_text(folder / "jaas.conf", LOGIN)
    made = ZooKeeperServer(
        folder / "zookeeper",
        tick_ms=200,
        is_durable=False,
        settings={
            "secureClientPort": secure_port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": both,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": authority.ca_file,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "want",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        },
        java_options=[f"-Djava.security.auth.login.config={folder / 'jaas.conf'}"],
    )
    made.start()
    yield made
    made.stop()


class Users:
    """Digest users with a file each, all with the same [acl]."""

    def __init__(self, folder: Path, ca_file: Path) -> None:
        self._folder = folder
        self._ca_file = ca_file
        self._cli = Cli("sqlite:/nowhere")
        self.ids = {
            name: self._id(name) for name in ("bookie", "client", "healer", "admin", "stranger")
        }

    def _id(self, name: str) -> str:
        write_text(self._folder / f"{name}.password", f"secret of {name}\n")
        password_file = str(self._folder / f"{name}.password")
        return self._cli(
            "metadata", "acl-id", "--user", name, "--password-file", password_file
        ).strip()

    def file(self, name: str, more: str = "") -> str:
        path = self._folder / f"{name}.toml"
        roles = {"bookies": "bookie", "clients": "client", "healers": "healer", "admins": "admin"}
        acl = "".join(f'{role} = ["{self.ids[user]}"]\n' for role, user in roles.items())
        write_text(
            path,
            f'mechanism = "digest"\nuser = "{name}"\n'
            f'password_file = "{self._folder}/{name}.password"\n{more}[acl]\n{acl}',
        )
        return str(path)

    def encrypted(self, name: str) -> str:
        return self.file(name, f'tls = true\nca_file = "{self._ca_file}"\n')


@pytest.fixture
def users(tmp_path: Path, authority: Authority) -> Iterator[Users]:
    yield Users(tmp_path, authority.ca_file)
    zookeeper_security.load.cache_clear()


async def test_a_cluster_whose_nodes_belong_to_its_roles(
    server: ZooKeeperServer,
    secure_port: int,
    users: Users,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"zk+hierarchical://127.0.0.1:{secure_port}/acl/ledgers"
    monkeypatch.setenv(VARIABLE, users.encrypted("admin"))
    zookeeper_admin.init(parse_zookeeper(uri))
    settings: dict[str, dict[str, object]] = {
        "metadata": {"zookeeper_file": users.encrypted("bookie")}
    }
    async with LocalCluster(
        3, data=tmp_path / "data", metadata_uri=uri, settings=settings
    ) as cluster:
        monkeypatch.setenv(VARIABLE, users.encrypted("client"))
        async with fastbk.connect(uri) as client:
            async with await client.create_ledger(2, 2, 2, password=b"p") as writer:
                await writer.append(b"x")
            await client.namespace("n").create()
            async with client.namespace("n").stream("s").writer(create=True) as stream:
                await stream.append(b"record")
            await client.delete_ledger(writer.ledger_id)
        for user, path, right in (
            ("stranger", "available", None),
            ("stranger", "", None),
            ("client", "available", "read"),
            ("client", "cookies", "read"),
            ("bookie", "available", "change"),
            ("client", "ID-fastbk/records", "change"),
        ):
            kazoo = KazooClient(hosts=server.address)
            kazoo.start(5)
            with closing(kazoo):
                try:
                    kazoo.add_auth("digest", f"{user}:secret of {user}")
                    node = f"/acl/ledgers/{path}".rstrip("/")
                    if right is None:
                        with pytest.raises(NoAuthError):
                            kazoo.get_children(node)
                    else:
                        kazoo.get_children(node)
                    if right == "change":
                        kazoo.create(f"{node}/planted")
                        kazoo.delete(f"{node}/planted")
                    else:
                        with pytest.raises(NoAuthError):
                            kazoo.create(f"{node}/planted")
                finally:
                    kazoo.stop()
        monkeypatch.setenv(VARIABLE, users.encrypted("stranger"))
        with pytest.raises(ConfigError, match="does not allow it"):
            open_store(uri, 5.0)
        assert "secret of" not in text_of(cluster.bookies)


def test_what_an_encrypted_port_has_seen_can_be_asked(
    server: ZooKeeperServer, secure_port: int, users: Users
) -> None:
    context = zookeeper_security.load(users.encrypted("client")).context()
    found = server_zxid(f"127.0.0.1:{secure_port}", context=context)
    assert found is not None
    assert found <= (server_zxid(server.address) or 0)


def nodes_below(server: ZooKeeperServer, path: str) -> int:
    """Count a node that everybody may read, and all below it."""
    kazoo = KazooClient(hosts=server.address)
    kazoo.start(5)
    try:
        found = [path]
        for node in found:
            found += [f"{node}/{name}" for name in kazoo.get_children(node)]
        return len(found)
    finally:
        kazoo.stop()
        kazoo.close()


def test_an_existing_cluster_is_secured(
    server: ZooKeeperServer, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"zk+hierarchical://{server.address}/open/ledgers"
    zookeeper_admin.init(parse_zookeeper(uri))
    with closing(open_store(uri)) as store:
        assert store.instance_id()
    cli = Cli(uri)
    code, _ = cli.run("metadata", "secure", "--yes")
    assert (code, "names nobody" in cli.err) == (2, True)
    monkeypatch.setenv(VARIABLE, users.file("admin"))
    cli = Cli(uri)
    count = nodes_below(server, "/open/ledgers")
    assert f"set the rights of {count} nodes" in cli("metadata", "secure", "--dry-run")
    monkeypatch.delenv(VARIABLE)
    with closing(open_store(uri)) as store:
        assert store.instance_id()
    monkeypatch.setenv(VARIABLE, users.file("admin"))
    assert f"{count} nodes have the rights" in Cli(uri)("metadata", "secure", "--yes")
    with closing(open_store(uri)) as store:
        assert store.instance_id()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ConfigError, match="does not allow it"):
        open_store(uri, 5.0)


def test_commands_on_a_bookies_file_use_its_zookeeper_file(
    server: ZooKeeperServer,
    secure_port: int,
    users: Users,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"zk+hierarchical://127.0.0.1:{secure_port}/named/ledgers"
    monkeypatch.setenv(VARIABLE, users.encrypted("admin"))
    zookeeper_admin.init(parse_zookeeper(uri))
    path = tmp_path / "whole.toml"
    write_text(
        path,
        f'[bookie]\nid = "b"\n[metadata]\nuri = "{uri}"\nzookeeper_file = "{users.encrypted("bookie")}"\n'
        f'[journal]\ndirectory = "{tmp_path}/journal"\n[ledgers]\ndirectory = "{tmp_path}/ledgers"\n',
    )
    monkeypatch.setenv(VARIABLE, "")
    _, out = Cli("sqlite:/nowhere").run("doctor", "--config", str(path))
    assert b"OK    metadata: cluster" in out


def test_sasl_is_spoken_and_a_wrong_password_is_refused(
    server: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"zk+hierarchical://{server.address}/sasl/ledgers"
    write_text(tmp_path / "password", "sasl-secret")
    text = f'mechanism = "sasl"\nuser = "saslbookie"\npassword_file = "{tmp_path}/password"\n'
    write_text(tmp_path / "good.toml", text + '[acl]\nbookies = ["sasl:saslbookie"]\n')
    monkeypatch.setenv(VARIABLE, str(tmp_path / "good.toml"))
    zookeeper_admin.init(parse_zookeeper(uri))
    with closing(open_store(uri)) as store:
        assert store.instance_id()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ConfigError, match="does not allow it"):
        open_store(uri, 5.0)
    write_text(tmp_path / "wrong", "wrong")
    write_text(tmp_path / "bad.toml", text.replace("/password", "/wrong"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "bad.toml"))
    with pytest.raises(ConfigError, match="does not accept this process's user"):
        open_store(uri, 30.0)  # it says so as soon as the server does


def test_a_login_that_is_refused_while_no_call_is_under_way_is_told_by_the_next_one(
    server: ZooKeeperServer,
) -> None:
    """kazoo tells it only to requests that wait, and never connects again: calls waited for their deadline."""
    with closing(Session((server.address,), 30.0)) as session:
        session.client._session_callback(KeeperState.AUTH_FAILED)
        began_s = time.monotonic()
        with pytest.raises(ConfigError, match="does not accept this process's user"):
            Call(session, "look", 30.0).get("/")
        assert time.monotonic() - began_s < 15


def test_a_cluster_is_not_made_with_rights_that_leave_its_maker_out(
    server: ZooKeeperServer, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(f"zk+hierarchical://{server.address}/left-out/ledgers")
    monkeypatch.setenv(VARIABLE, users.file("stranger"))
    code, _ = cli.run("metadata", "init")
    assert (code, "does not allow it" in cli.err) == (2, True)
    users.ids["admin"] = "ip:nowhere"
    monkeypatch.setenv(VARIABLE, users.file("bookie"))
    code, _ = cli.run("metadata", "init")
    assert (code, "does not accept an id of [acl]" in cli.err) == (2, True)


def test_ids_of_certificates(
    server: ZooKeeperServer,
    secure_port: int,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"zk+hierarchical://127.0.0.1:{secure_port}/x509/ledgers"
    tls = f'tls = true\nca_file = "{authority.ca_file}"\n'
    acl = "[acl]\n"
    for role in ("bookie", "client", "admin"):
        issued = authority.issue(tmp_path / role, common_name=role, roles="0:writer")
        found = Cli(uri)(
            "metadata", "acl-id", "--certificate-file", str(issued.certificate_file)
        ).strip()
        acl += f'{role}s = ["{found}"]\n'
    for role in ("bookie", "client", "admin"):
        files = f'certificate_file = "{tmp_path}/{role}/tls.crt"\nkey_file = "{tmp_path}/{role}/tls.key"\n'
        write_text(tmp_path / f"{role}.toml", tls + files + acl)
    write_text(tmp_path / "nobody.toml", tls + acl)
    zookeeper_admin.init(parse_zookeeper(f"zk+hierarchical://{server.address}/open-x509/ledgers"))
    # as many as those that strangers cannot count
    count = nodes_below(server, "/open-x509/ledgers")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "admin.toml"))
    zookeeper_admin.init(parse_zookeeper(uri))
    assert f"{count} nodes have the rights" in Cli(uri)("metadata", "secure", "--yes")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "client.toml"))
    with closing(open_store(uri)) as store:
        assert store.instance_id()
    code, _ = (cli := Cli(uri)).run("metadata", "secure", "--yes")
    assert (code, "does not allow it" in cli.err) == (2, True)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nobody.toml"))
    with pytest.raises(ConfigError, match="does not allow it"):
        open_store(uri, 5.0)


def test_a_server_of_another_authority_is_not_spoken_to(
    server: ZooKeeperServer, secure_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority.make(tmp_path / "ca")
    write_text(tmp_path / "file.toml", f'tls = true\nca_file = "{other.ca_file}"\n')
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file.toml"))
    with pytest.raises(MetadataUnavailable, match="its certificate is not good"):
        open_store(f"zk://127.0.0.1:{secure_port}/acl/ledgers", 2.0)
    with pytest.raises(
        MetadataUnavailable, match=r"no TLS handshake .* is it the secureClientPort"
    ):
        open_store(f"zk://{server.address}/acl/ledgers", 2.0)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(MetadataUnavailable, match="A port with TLS needs tls = true"):
        open_store(f"zk://127.0.0.1:{secure_port}/acl/ledgers", 2.0)


@pytest.mark.no_service
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mechanism = 'kerberos'", "mechanism"),
        ("mechanism = 'digest'", "needs user and password_file"),
        ("password = 'hidden'", "unknown field"),
        ("[acl]\nbookies = ['bookie']", "SCHEME:ID"),
        ("[acl]\nbookies = ['digest:bookie:Jq7w...']", "metadata acl-id"),
        ("tls = true\nca_file = '/none'", "/none is missing"),
        ("= hidden", "Invalid"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "zookeeper.toml"
    write_text(path, text)
    with pytest.raises(ConfigError, match=reason) as raised:
        zookeeper_security.load(str(path))
    assert "hidden" not in str(raised.value)
    path.chmod(0o644)
    zookeeper_security.load.cache_clear()
    with pytest.raises(ConfigError, match="others can read"):
        zookeeper_security.load(str(path))
