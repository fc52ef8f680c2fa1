from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fastbk.server.supervision.spawn import PortGuard, command, environment

if TYPE_CHECKING:
    from pathlib import Path


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


# What a process of a bookie imports on the way to the first write after a start.
#
# An import costs processor time, and all processes of a bookie import at once. So a module that
# no write needs comes back only on purpose: not as a side effect of another import.


HEAVY = ("asyncio", "difflib", "kazoo", "logging", "sqlite3", "ssl", "tomllib", "uvloop")
"""Of others: 2 to 50 ms each."""
RARE = (
    "fastbk.admin",
    "fastbk.apache",
    "fastbk.client",
    "fastbk.doctor",
    "fastbk.inspect",
    "fastbk.server.admin",
    "fastbk.server.offline",
    "fastbk.storage.offline_store",
    "fastbk.stream",
    "fastbk.web",
)
"""Of ours: pages, tools and formats that a start does not need."""
NOT_IMPORTED = {
    # Until it has spawned the indexes.
    "fastbk.server.__main__": (*HEAVY, *RARE, "fastbk.meta", "fastbk.gc", "fastbk.native.index"),
    "fastbk.server.index.process": (*HEAVY, *RARE, "fastbk.meta", "fastbk.gc"),
    "fastbk.server.journal.process": ("hashlib", *HEAVY, *RARE, "fastbk.meta", "fastbk.gc"),
    "fastbk.server.network.process": (
        "difflib",
        "kazoo",
        "sqlite3",
        "tomllib",
        *RARE,
        "fastbk.meta",
        "fastbk.gc",
    ),
    "fastbk.gc.process": (
        "asyncio",
        "difflib",
        "kazoo",
        "sqlite3",
        "ssl",
        "tomllib",
        "uvloop",
        *RARE,
    ),
    # Until it opens its metadata store and its pages.
    "fastbk.server.supervisor": (
        "kazoo",
        "sqlite3",
        "fastbk.apache.configuration",
        "fastbk.server.admin.apache_metrics",
        "fastbk.web.page_server",
        "fastbk.server.admin.pages",
        "fastbk.storage.offline_store",
        "fastbk.native.index",
    ),
}


def imported_by(module: str) -> set[str]:
    """Return the names of all modules that `module` imports in a process of its own."""
    program = f"import sys, {module}; print(*sys.modules)"
    run = [*command("x")[:-2], "-c", program]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", NOT_IMPORTED)
def test_no_module_that_no_write_needs_is_imported(module: str) -> None:
    found = imported_by(module)
    assert module in found
    came = [
        name
        for name in sorted(found)
        if any(name == one or name.startswith(f"{one}.") for one in NOT_IMPORTED[module])
    ]
    assert not came, f"{module} imports them: import them where they are used, or beside the start"


def test_the_check_would_find_one() -> None:
    assert "asyncio" in imported_by("fastbk.server.supervisor")
    assert "sqlite3" in imported_by("fastbk.meta.sqlite.store")
    assert sys.executable == command("x")[0]
