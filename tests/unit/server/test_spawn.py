import socket
import subprocess
from pathlib import Path

import pytest

from fastbk.server.supervision.spawn import PortGuard, command, environment


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def test_listeners_join_the_guarded_port_and_share_its_connections() -> None:
    guard = PortGuard("127.0.0.1", 0)
    listeners = [guard.listener() for _ in range(2)]
    for listener in listeners:
        listener.listen()
    clients = [connected(guard.port) for _ in range(8)]
    for sock in (*clients, *listeners):
        sock.close()
    guard.close()


def test_a_guarded_port_refuses_while_nobody_listens() -> None:
    """Between two boots a client is told at once, and does not wait in a queue."""
    guard = PortGuard("127.0.0.1", 0)
    guard.listener().close()
    with pytest.raises(ConnectionRefusedError):
        connected(guard.port)
    guard.close()


def test_nobody_else_gets_a_guarded_port() -> None:
    guard = PortGuard("127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        PortGuard("127.0.0.1", guard.port)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", guard.port))
    guard.close()


@pytest.mark.parametrize("listens", [False, True])
def test_a_strangers_port_is_refused_whatever_its_options(listens: bool) -> None:
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        if listens:
            stranger.listen()
        with pytest.raises(OSError, match="in use"):
            PortGuard("127.0.0.1", stranger.getsockname()[1])


def test_a_port_is_free_again_at_once_after_connections_were_cut() -> None:
    guard = PortGuard("127.0.0.1", 0)
    listener = guard.listener()
    listener.listen()
    client = connected(guard.port)
    accepted, _ = listener.accept()
    # The server closes first: its side stays in TIME_WAIT.
    accepted.close()
    assert client.recv(1) == b""
    client.close()
    listener.close()
    guard.close()
    again = PortGuard("127.0.0.1", guard.port)
    again.listener().close()
    again.close()


def test_a_child_sees_a_minimal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET", "x")
    monkeypatch.setenv("FASTBK_LOG_LEVEL", "debug")
    kept = environment()
    assert "AWS_SECRET" not in kept
    assert kept["FASTBK_LOG_LEVEL"] == "debug"


def test_the_current_folder_cannot_shadow_a_module(tmp_path: Path) -> None:
    (tmp_path / "fastbk").mkdir()
    (tmp_path / "fastbk" / "__init__.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "socket.py").write_text("raise SystemExit('shadowed')")
    done = subprocess.run(
        command("fastbk.cli", "--version"), cwd=tmp_path, env=environment(),
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
