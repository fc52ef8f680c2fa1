from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fastbk.server import process_table
from fastbk.server.supervision.spawn import (
    PortGuard,
    child_command,
    child_environment,
    command,
    environment,
)

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


def test_a_child_searches_the_places_of_its_supervisor_in_their_order() -> None:
    """It runs no `site`, so nobody else tells it where packages are; and ours comes from where we have it."""
    places = child_environment()["PYTHONPATH"].split(os.pathsep)
    assert places[0] == environment()["PYTHONPATH"]
    known = [os.path.abspath(place) for place in sys.path if place]
    assert [place for place in places[1:]] == [
        place for place in dict.fromkeys(known) if place != places[0]
    ]
    assert all(os.path.isabs(place) for place in places)


def test_a_child_knows_the_environment_that_it_is_in() -> None:
    """`program_paths` lets it read there once it is confined."""
    (prefix,) = said_by_child(
        "from fastbk.server import child_start; child_start.find_prefix(); print(sys.prefix)"
    )
    assert prefix == sys.prefix


def test_a_child_can_be_told_by_its_command_line() -> None:
    """Operators and `fastbk doctor` search for it by the module of its role."""
    for module in process_table.MODULES.values():
        line = child_command(module, 7)
        assert line[-3:] == ["-m", module, "7"]


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
TYPES = ("dataclasses", "inspect")
"""A dataclass writes and compiles its methods when it is imported: ten times the time of a struct of msgspec."""
SMALL = ("ipaddress", "pathlib", "subprocess", "traceback", "urllib")
"""Of others: 1 to 5 ms each, for what a journal or an index does rarely or never."""
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
NO_CHILD = ("_distutils_hack", "runpy", "site", "sitecustomize", "typing_extensions")
NOT_IMPORTED = {
    # Until it has spawned the indexes.
    "fastbk.server.__main__": (
        *HEAVY,
        *TYPES,
        *RARE,
        "fastbk.meta",
        "fastbk.gc",
        "fastbk.native.index",
        "fastbk.placement",
        "typing_extensions",
    ),
    "fastbk.server.index.process": (*HEAVY, *TYPES, *SMALL, *RARE, "fastbk.meta", "fastbk.gc"),
    "fastbk.server.journal.process": (
        "hashlib",
        *HEAVY,
        *TYPES,
        *SMALL,
        *RARE,
        "fastbk.meta",
        "fastbk.gc",
    ),
    "fastbk.server.network.process": (
        "difflib",
        "ipaddress",
        "kazoo",
        "pathlib",
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
        "subprocess",
        "tomllib",
        "uvloop",
        *RARE,
    ),
    # Until it opens its metadata store and its pages.
    "fastbk.server.supervisor": (
        "difflib",
        "kazoo",
        "sqlite3",
        "typing_extensions",
        "fastbk.apache.configuration",
        "fastbk.placement",
        "fastbk.server.admin.apache_metrics",
        "fastbk.web.page_server",
        "fastbk.server.admin.pages",
        "fastbk.storage.offline_store",
        "fastbk.native.index",
    ),
}
COUNT_MAX = {
    "fastbk.server.__main__": 155,
    "fastbk.server.index.process": 195,
    "fastbk.server.journal.process": 155,
    "fastbk.server.network.process": 270,
    "fastbk.gc.process": 210,
}
"""Modules of all kinds that a process has when it can begin. A new one costs about half a millisecond of each start:
raise a number when something is worth that.
"""


def said_by_child(program: str) -> list[str]:
    """Return the words that `program` prints in an interpreter as children have it."""
    *interpreter, _, _, _, _ = child_command("unused", 0)
    run = [*interpreter, f"import sys; {program}"]
    done = subprocess.run(run, env=child_environment(), capture_output=True, text=True, check=True)
    return done.stdout.split()


def imported_by(module: str) -> set[str]:
    """Return the names of all modules that `module` imports in a process of its own."""
    return set(said_by_child(f"import fastbk.server.child_start, {module}; print(*sys.modules)"))


@pytest.mark.parametrize("module", NOT_IMPORTED)
def test_no_module_that_no_write_needs_is_imported(module: str) -> None:
    found = imported_by(module)
    assert module in found
    unwanted = NOT_IMPORTED[module]
    if module in process_table.MODULES.values():
        unwanted = (*unwanted, *NO_CHILD)
    came = [
        name
        for name in sorted(found)
        if any(name == one or name.startswith(f"{one}.") for one in unwanted)
    ]
    assert not came, f"{module} imports them: import them where they are used, or beside the start"
    assert len(found) <= COUNT_MAX.get(module, len(found)), "another module at every start?"


def test_the_check_would_find_one() -> None:
    assert "asyncio" in imported_by("fastbk.server.supervisor")
    assert "sqlite3" in imported_by("fastbk.meta.sqlite.store")
    assert sys.executable == command("x")[0]


def test_other_programs_find_typing_extensions_as_before() -> None:
    pytest.importorskip("typing_extensions")
    program = "import fastbk.server.child_start, msgspec, typing_extensions; print(typing_extensions.__name__)"
    assert said_by_child(program) == ["typing_extensions"]
