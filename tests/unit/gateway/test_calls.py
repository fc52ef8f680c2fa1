"""A client's connections to gateways: the end of waiting ones, and what is no token."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar
from unittest import mock

import pytest

from fastbk.errors import ConfigError, MetadataUnavailable
from fastbk.meta.gateway.store import GatewayCalls, GatewayStore, _Connection, messages
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from fastbk.web.client import HttpConnection
from tests.fixtures.fork import exit_code_of_fork

T = TypeVar("T")


@pytest.fixture
def calls() -> GatewayCalls:
    return GatewayCalls(["127.0.0.1:1"], 1.0, None, None)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def waiting(calls: GatewayCalls, sock: socket.socket | None) -> None:
    connection = HttpConnection("127.0.0.1", 1, tls=None, bytes_max=1)
    connection._socket = sock
    calls._waiting.add(_Connection(connection, "127.0.0.1:1", 0.0))


def is_open(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True


def test_closing_ends_what_waits_beside_a_request_that_has_just_ended(
    calls: GatewayCalls, pair: tuple[socket.socket, socket.socket]
) -> None:
    waiting(calls, None)
    waiting(calls, pair[0])
    calls.close()
    assert not is_open(pair[1])


def test_a_forked_child_that_closes_leaves_the_parents_requests_alone(
    calls: GatewayCalls, pair: tuple[socket.socket, socket.socket]
) -> None:
    waiting(calls, pair[0])

    def child() -> int:
        calls.close()
        return 0

    assert exit_code_of_fork(child) == 0
    assert is_open(pair[1])


@pytest.mark.parametrize("text", ["one\ntwo", "t\u00f6ken", "one two"])
def test_a_file_with_something_else_than_a_token_is_the_clients_mistake(
    tmp_path: Path, text: str
) -> None:
    """It may be there for a moment only: the threads of watches go on after it."""
    write_text(tmp_path / "token", text)
    calls = GatewayCalls(
        ["127.0.0.1:1"], 1.0, None, Credentials(token_file=str(tmp_path / "token"))
    )
    calls._context = mock.Mock()
    with pytest.raises(ConfigError, match="is no token"):
        calls.call(messages.InstanceId(1000), str)


def test_an_answer_with_another_number_of_states_is_an_error() -> None:
    class Other:
        def call(self, request: messages.Request, kind: type[T]) -> T:
            del request
            return kind()

        def close(self) -> None:
            pass

    with pytest.raises(MetadataUnavailable, match="another version"):
        GatewayStore("gateway://test", Other()).watch_bookies(lambda: None)
