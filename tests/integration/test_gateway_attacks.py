"""Attacks on a gateway, a real one: heads with two meanings, connections of several clients, slow peers, and
transactions that ZooKeeper ends sessions for. INV-B1, INV-W1.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from fastbk.errors import ConfigError, MetadataUnavailable
from fastbk.gateway.process import LARGE_ANSWERS_MAX, LARGE_MAX, SMALL_MAX
from fastbk.gateway.service import SUBJECTS_OF_ONE_MAX
from fastbk.meta import open_store
from fastbk.meta.gateway import messages
from fastbk.meta.gateway.store import GatewayAccess
from fastbk.meta.records import VALUE_BYTES_MAX, Change
from fastbk.safe_files import write_text
from fastbk.security.authority import Authority, Issued
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions
from fastbk.security.tokens import TokenKey
from fastbk.web.server import REQUEST_BYTES_MAX
from tests.fixtures.certificates import shown
from tests.fixtures.gateways import GatewayProcess
from tests.fixtures.metadata import new_cluster
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace

KEY = TokenKey.generate("k1")
DRAW = messages.encode(messages.DrawId(1000))


class Port:
    """A gateway's port, as an attacker sees it."""

    def __init__(self, gateway: GatewayProcess, ca_file: Path, audience: str) -> None:
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self.gateway = gateway
        self._audience = audience

    def token(self, *operations: str, subject: str = "app") -> str:
        return KEY.sign(subject, operations, self._audience, lifetime_s=600)

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.gateway.port), 10)
        return self._context.wrap_socket(plain, server_hostname="127.0.0.1")

    @staticmethod
    def send(
        connection: ssl.SSLSocket, name: str, body: bytes, token: str = "", head: str = ""
    ) -> None:
        lines = [f"POST /v1/{name} HTTP/1.1", "Content-Type: application/msgpack"]
        lines += [head or f"Content-Length: {len(body)}"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        connection.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode() + body)

    @staticmethod
    def status(connection: ssl.SSLSocket) -> int:
        """Return the status of one answer, which is read; 0: the connection ended."""
        with connection.makefile("rb") as answer:
            first = answer.readline()
            if not first:
                return 0
            lengths = [
                int(line.split(b":")[1])
                for line in iter(answer.readline, b"\r\n")
                if b"ngth:" in line
            ]
            answer.read(lengths[0])
            return int(first.split()[1])


@pytest.fixture(scope="module")
def port(
    authority: Authority, issued: Issued, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Port]:
    folder = tmp_path_factory.mktemp("attacks")
    uri = new_cluster(folder / "metadata.sqlite")
    write_text(folder / "keys.json", KEY.public_text())
    write_text(folder / "revoked", "")
    with closing(open_store(uri)) as store:
        store.records.change([Change("other/large", os.urandom(VALUE_BYTES_MAX))])
        audience = store.instance_id()
    own = shown(TlsOptions(ca_file=str(authority.ca_file)), issued)
    gateway = GatewayProcess(
        folder / "gateway",
        uri,
        own,
        keys_file=str(folder / "keys.json"),
        revoked_file=str(folder / "revoked"),
    )
    gateway.start()
    yield Port(gateway, authority.ca_file, audience)
    assert gateway.stop() == 0


@pytest.mark.parametrize(
    "head",
    ["Content-Length : {}", "X: y\r\n Content-Length: {}", "X: y\nContent-Length: {}",
     "Content-Length: {0}\r\nContent-Length: {0}", "Transfer-Encoding: chunked\r\nContent-Length: {}"],
)  # fmt: skip
def test_a_head_with_two_meanings_has_none_and_ends_the_connection(port: Port, head: str) -> None:
    with port.connect() as connection:
        port.send(connection, "draw-id", DRAW, port.token("add"), head.format(len(DRAW)))
        assert port.status(connection) == 400
        assert port.status(connection) == 0


def test_a_head_that_is_too_large_is_answered(port: Port) -> None:
    with port.connect() as connection:
        port.send(connection, "draw-id", DRAW, "x" * REQUEST_BYTES_MAX)
        assert port.status(connection) == 431
        assert port.status(connection) == 0


def test_a_connection_that_showed_a_token_serves_no_request_without_one(port: Port) -> None:
    """A proxy may send the requests of several clients on one connection."""
    with port.connect() as connection:
        for token, status in ((port.token("add"), 200), (port.token("add"), 200), ("", 401)):
            port.send(connection, "draw-id", DRAW, token)
            assert port.status(connection) == status
        assert port.status(connection) == 0, "a stranger does not stay"


def test_clients_share_a_connection_behind_a_proxy_each_judged_by_its_own_token(port: Port) -> None:
    with port.connect() as connection:
        for subject, operation, status in (
            ("one", "add", 200),
            ("two", "read", 403),
            ("one", "add", 200),
        ):
            port.send(connection, "draw-id", DRAW, port.token(operation, subject=subject))
            assert port.status(connection) == status


def test_a_client_beyond_its_budget_is_slowed_down_to_it(tmp_path: Path) -> None:
    gateway = GatewayProcess(
        tmp_path / "gateway", new_cluster(tmp_path / "metadata.sqlite"), None, writes_rate=5
    )
    gateway.start()
    with ExitStack() as stack:
        stack.callback(gateway.stop)
        with closing(open_store(gateway.uri, 20)) as store:
            began_s = time.monotonic()
            drawn = {store.next_ledger_id() for _ in range(60)}
            assert len(drawn) == 60 and time.monotonic() - began_s > 1.0, (
                "fifty at once, and five a second"
            )
        assert any(line["limit"] == "writes" for line in gateway.logged("gateway.limit_reached"))


def test_idle_strangers_lock_nobody_out_of_a_gateway_with_few_descriptors(tmp_path: Path) -> None:
    gateway = GatewayProcess(
        tmp_path / "gateway", new_cluster(tmp_path / "metadata.sqlite"), None, descriptors_max=256
    )
    gateway.start()
    with ExitStack() as stack:
        stack.callback(gateway.stop)
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 10))
        with closing(open_store(gateway.uri, 20)) as store:
            assert store.list_ledgers() == []
        assert gateway.logged("gateway.connections_limited")


def test_subjects_that_may_not_be_seen_count_while_a_request_waits_for_them(port: Port) -> None:
    """Each takes memory of the gateway's, though it watches none of them."""
    token = port.token("add", subject="blind")  # it may not read records
    paths = tuple(f"=other/{'x' * 200}{number}" for number in range(messages.KEYS_MAX))
    body = messages.encode(
        messages.ReadStates(1000, paths, (messages.FORBIDDEN,) * len(paths), 3000)
    )
    with ExitStack() as stack:
        all_of_one = [
            stack.enter_context(port.connect())
            for _ in range(SUBJECTS_OF_ONE_MAX // len(paths) + 1)
        ]
        for one in all_of_one:
            port.send(one, "read-states", body, token)
        # On a busy machine some wait for a turn of their client's for too long.
        assert {200} <= {port.status(one) for one in all_of_one} <= {200, 503}
    wait_until(
        lambda: any(
            line["limit"] == "watched" for line in port.gateway.logged("gateway.limit_reached")
        ),
        "one that has no place is answered at once",
    )


def is_open(connection: ssl.SSLSocket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False


def open_count(connections: list[ssl.SSLSocket]) -> int:
    return sum(map(is_open, connections))


@pytest.mark.parametrize(
    ("size_bytes", "most", "limit"),
    [(60_000, SMALL_MAX, "bodies"), (2_000_000, LARGE_MAX, "large_bodies")],
)
def test_strangers_who_send_slowly_have_few_places(
    port: Port, size_bytes: int, most: int, limit: str
) -> None:
    with ExitStack() as stack:
        slow = []
        for _ in range(most + 10):
            connection = stack.enter_context(port.connect())
            port.send(connection, "draw-id", b"x", head=f"Content-Length: {size_bytes}")
            slow.append(connection)
        wait_until(lambda: open_count(slow) <= most, "the oldest are cut off")
        assert limit in [line["limit"] for line in port.gateway.logged("gateway.limit_reached")]
        with port.connect() as another:
            port.send(another, "draw-id", DRAW, port.token("add"))
            assert port.status(another) == 200


def test_who_does_not_read_its_large_answers_has_few_places(port: Port) -> None:
    body = messages.encode(messages.ReadRecords(10_000, ("other/large",) * 8))
    with ExitStack() as stack:
        slow = []
        for _ in range(LARGE_ANSWERS_MAX + 1):
            connection = stack.enter_context(port.connect())
            port.send(connection, "read-records", body, port.token("read", subject="slow"))
            assert connection.recv(12) == b"HTTP/1.1 200"  # the answer has begun
            slow.append(connection)
        assert "large_answers" in [
            line["limit"] for line in port.gateway.logged("gateway.limit_reached")
        ]
        found = 0
        with suppress(OSError):  # the connection was cut off
            while more := slow[0].recv(1 << 20):
                found += len(more)
        assert found < 8 * VALUE_BYTES_MAX
        with slow[-1].makefile("rb") as whole:
            assert len(whole.read(8 * VALUE_BYTES_MAX)) == 8 * VALUE_BYTES_MAX


def test_a_transaction_that_zookeeper_takes_for_an_attack_is_not_sent(
    zookeeper: ZooKeeperPlace,
) -> None:
    """The server would cut off the session, with all requests of others on it, again and again."""
    with closing(open_store(zookeeper.uri())) as store:
        large = [Change(f"other/{number}", os.urandom(600_000)) for number in range(3)]
        with pytest.raises(ConfigError, match="change less at once"):
            store.records.change(large)
        assert store.records.read([one.path for one in large]) == [None] * 3
        store.records.change(large[:1])
        many = [Change(f"other/{'x' * 200}{number}", b"1") for number in range(4096)]
        with pytest.raises(ConfigError, match="change less at once"):
            store.records.change(many)


def test_a_client_sends_no_token_in_the_clear(tmp_path: Path) -> None:
    """Who has a trial gateway's port on this machine would have the token."""
    write_text(tmp_path / "token", "secret.token.text")
    heads: list[bytes] = []

    def steal() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as request:
            heads.append(b"".join(iter(request.readline, b"\r\n")))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=steal)
        thread.start()
        uri = f"gateway://127.0.0.1:{listener.getsockname()[1]}"
        access = GatewayAccess(None, Credentials(token_file=str(tmp_path / "token")))
        with (
            closing(open_store(uri, 0.5, access=access)) as store,
            pytest.raises(MetadataUnavailable),
        ):
            store.instance_id()
        thread.join(10)
    assert heads[0].startswith(b"POST /v1/instance-id")
    assert b"secret" not in heads[0]
