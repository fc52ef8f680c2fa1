"""What a process of a bookie imports on the way to the first write after a start.

An import costs processor time, and all processes of a bookie import at once. So a module that no write needs comes
back only on purpose: not as a side effect of another import.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from fastbk.server.supervision.spawn import command, environment

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
