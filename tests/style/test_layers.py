"""Who may import whom: layers, siblings, one home a library, and protocols without I/O.

Everything is read from the syntax tree, imports inside functions included: a late import is still a dependency.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.style.tree import ROOT, asked_once, statements, walk

# Upwards only. A package may import those of lower layers; within its own layer only where `SIBLINGS` says so.
# `package.folder` puts one folder of a package into a layer of its own.
LAYERS = [
    {
        "errors",
        "version",
        "exit_codes",
        "option_checks",
        "units",
        "config",
        "safe_files",
    }
    | {"formats", "limits", "printable_text", "retry"},
    {"model"},
    {"placement"},
    {"observe"},
    {"security", "web.client"},
    {"native"},
    {"wire", "meta", "storage"},
    {"replication", "inspect"},
    {"web"},
    {"client", "server", "gc"},
    {"stream"},
    {"producers", "pipelines", "coordination", "objects"},
    {"sync", "admin", "doctor", "autorecovery", "gateway", "apache.importer"},
    {"arrow", "upgrade", "overview", "objects.filesystem"},
    {"spark", "top"},
    {"cli", "console", "testing", "devcluster", "apache.shell"},
]
# Layers whose members may import each other: the plain values at the bottom and the tools at the top.
SIBLINGS = [LAYERS[0], LAYERS[-1]]

# Parts of the server that lie with what else is Apache's: for the layers they are the server.
PARTS = {"apache.configuration": "server", "apache.http": "server"}
# Services of their own: what they share with a bookie lies in web and security.
WITHOUT_A_BOOKIE = ("gateway", "console")

# What every child process does first, gc's included, lies in the server's folder; so do the messages to the index.
CHILD_FACES = ("fastbk.server.child", "fastbk.server.configuration")
GC_MESSAGES = "fastbk.server.gc_messages"

# Library -> the files (or folders) that may import it.
HOMES = {
    "cffi": ["fastbk/native/build_native.py", "fastbk/native/build_native.py"],
    "setuptools": ["fastbk/native/build_native.py", "setup.py"],
    "fastbk.native._client": ["fastbk/native/"],
    "fastbk.native._bookie": ["fastbk/native/"],
    "fastbk.native._bench": ["fastbk/native/"],
    "flatbuffers": ["fastbk/wire/"],
    "fastbk.wire.generated": ["fastbk/wire/"],
    "uvloop": ["fastbk/producers/process.py", "fastbk/server/network/"],
    "sqlite3": ["fastbk/meta/"],
    "opentelemetry": ["fastbk/observe/meter.py", "fastbk/observe/tracing.py"],
    "rocksdict": ["fastbk/apache/importer/index.py"],
    "kazoo": [
        "fastbk/meta/zookeeper/session.py",
    ],
    "lz4": ["fastbk/stream/records.py"],
    "zstandard": ["fastbk/stream/records.py"],
    "fsspec": ["fastbk/objects/filesystem.py"],
    "pyarrow": ["fastbk/arrow/", "fastbk/spark/"],
    "matplotlib": ["fastbk/spark/charts.py"],
    "textual": ["fastbk/top.py"],
    "rich": ["fastbk/top.py"],
    # cli: annotations
    "pyspark": [
        "fastbk/spark/",
        "fastbk/cli/spark",
        "demo/pipeline/",
        "demo/spark_stage.py",
    ],
    "fastbk.spark": [
        "fastbk/spark/",
        "fastbk/cli/",
        "demo/pipeline/",
        "demo/spark_stage.py",
        "pyspark_fastbk/",
    ],
    # The library logs by `library_log`; an application's stderr is its own.
    "fastbk.observe.logs": [
        "fastbk/observe/",
        "fastbk/security/",
        "fastbk/server/",
        "fastbk/apache/http/",
        "fastbk/gc/",
        "fastbk/gateway/",
        "fastbk/producers/",
        "fastbk/cli/",
        "fastbk/console/",
        "fastbk/web/",
    ],
    "starlette": ["fastbk/console/"],
    "uvicorn": ["fastbk/console/http_engine.py"],
    "jinja2": ["fastbk/console/rendering.py"],
    "markupsafe": ["fastbk/console/rendering.py"],
    "logging": [
        "fastbk/observe/library_log.py",
        "fastbk/meta/zookeeper/session.py",
        "demo/pipeline/",
        "loadtest/",
    ],
    "gevent": ["loadtest/"],
    "locust": ["loadtest/"],
}

PURE = [
    "fastbk/gateway/rules.py",
    "fastbk/gateway/ledger_rules.py",
    "fastbk/gateway/record_names.py",
    "fastbk/model/",
    "fastbk/gc/compaction_choice.py",
    "fastbk/overview/tables.py",
    "fastbk/overview/bookie_history.py",
    "fastbk/overview/values.py",
    "fastbk/autorecovery/lost_bookies.py",
    "fastbk/autorecovery/rate_leases.py",
    "fastbk/autorecovery/repair_order.py",
    "fastbk/upgrade/roll_plan.py",
    "fastbk/replication/",
    "fastbk/placement/",
    "fastbk/producers/table.py",
    "fastbk/objects/manifest.py",
    "fastbk/stream/positions.py",
    "fastbk/stream/policy.py",
    "fastbk/stream/paths.py",
    "fastbk/stream/chain.py",
    "fastbk/stream/segment_contents.py",
    "fastbk/stream/reader/read_plan.py",
    "fastbk/stream/cursor/state.py",
    "fastbk/stream/namespace/tree.py",
    "fastbk/stream/retention.py",
]
IMPURE_MODULES = {
    "asyncio",
    "multiprocessing",
    "os",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "time",
}


Import = tuple[int, str]


def imports_of(tree: ast.Module) -> list[Import]:
    """Return (line, dotted name) of everything that a module imports; `from a import b` gives `a.b`."""
    found: list[Import] = []
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


imports_in = asked_once(imports_of)


def package_of(words: Sequence[str]) -> str:
    """Return the package that the words after `fastbk` lie in, as `LAYERS` names it."""
    folder = ".".join(words[:2])
    split = {*PARTS, *(name for layer in LAYERS for name in layer)}
    if folder in split:
        return PARTS.get(folder, folder)
    return PARTS.get(words[0], words[0])


def layer_of(name: str) -> int | None:
    """Return the layer of the package `name` of fastbk, None if it is in none."""
    return next((number for number, layer in enumerate(LAYERS) if name in layer), None)


def faces_for(relative: str) -> tuple[str, ...]:
    """Return what a file of fastbk/gc may import of its sibling."""
    return (*CHILD_FACES, GC_MESSAGES) if relative == "fastbk/gc/process.py" else (GC_MESSAGES,)


def layer_faults(relative: str, imports: list[Import]) -> list[str]:
    """Return what in this file of fastbk/ breaks the layers."""
    parts = Path(relative).with_suffix("").parts
    if parts[1:] in (("__init__",), ("apache", "__init__")):  # `fastbk.connect`; a docstring only
        return []
    package = package_of(parts[1:])
    mine = layer_of(package)
    if mine is None:
        return [f"{relative}: fastbk.{package} is in no layer"]
    faults = []
    for line, name in imports:
        if name.startswith("."):
            faults.append(f"{relative}:{line}: a relative import")
            continue
        words = name.split(".")
        if words[0] != "fastbk" or len(words) < 2 or words[1] == "__version__":
            continue
        other = package_of(words[1:])
        theirs = layer_of(other)
        if theirs is None:
            faults.append(f"{relative}:{line}: fastbk.{other} is in no layer")
        elif package in WITHOUT_A_BOOKIE and other in ("server", "gc"):
            faults.append(f"{relative}:{line}: fastbk.{package} does without a bookie")
        elif theirs > mine:
            faults.append(f"{relative}:{line}: fastbk.{other} is above fastbk.{package}")
        elif relative.startswith("fastbk/gc/") and name.startswith(faces_for(relative)):
            continue
        elif theirs == mine and other != package and LAYERS[mine] not in SIBLINGS:
            faults.append(f"{relative}:{line}: fastbk.{other} and fastbk.{package} are siblings")
    return faults


def home_faults(relative: str, imports: list[Import]) -> list[str]:
    """Return which libraries this file imports although they live elsewhere."""
    return [
        f"{relative}:{line}: {library} is imported only in {', '.join(homes)}"
        for line, name in imports
        for library, homes in HOMES.items()
        if f"{name}.".startswith(f"{library}.") and not relative.startswith(tuple(homes))
    ]


def purity_faults(relative: str, imports: list[Import]) -> list[str]:
    """Return which imports of a file that has to be free of I/O, clocks and chance are not."""
    path = Path(relative)
    if not any(relative.startswith(p) or path.match(p) for p in PURE):
        return []
    return [
        f"{relative}:{line}: {name} in a file that takes time, chance and I/O as arguments"
        for line, name in imports
        if name.split(".")[0] in IMPURE_MODULES
    ]


def test_layers_hold() -> None:
    faults = [
        fault
        for relative, path in walk((".py",), "fastbk")
        for fault in layer_faults(relative, imports_in(path))
    ]
    assert not faults, "\n".join(faults)


def test_libraries_are_imported_at_home_only() -> None:
    faults = [
        fault
        for folder in ("fastbk", "demo", "loadtest", "pyspark_fastbk")
        for relative, path in walk((".py",), folder)
        for fault in home_faults(relative, imports_in(path))
    ]
    assert not faults, "\n".join(faults)


def test_protocol_machines_do_no_io() -> None:
    faults = [
        fault
        for relative, path in walk((".py",), "fastbk")
        for fault in purity_faults(relative, imports_in(path))
    ]
    assert not faults, "\n".join(faults)


def test_loadtest_uses_public_names_only() -> None:
    allowed = ("fastbk.client", "fastbk.connect", "fastbk.sync", "fastbk.errors", "fastbk.testing")
    faults = [
        f"{relative}:{line}: {name}"
        for relative, path in walk((".py",), "loadtest")
        for line, name in imports_in(path)
        if name.startswith("fastbk.") and not f"{name}.".startswith(tuple(f"{a}." for a in allowed))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("check", "relative", "text"),
    [
        (layer_faults, "fastbk/model/ids.py", "def f():\n    from fastbk.client import x\n"),
        (layer_faults, "fastbk/gc/dead_ledgers.py", "import fastbk.server.child\n"),
        (layer_faults, "fastbk/gc/dead_ledgers.py", "from ..server import child\n"),
        (layer_faults, "fastbk/novel/x.py", "import os\n"),
        (layer_faults, "fastbk/gateway/x.py", "from fastbk.server import child\n"),
        (layer_faults, "fastbk/apache/novel.py", "import os\n"),
        (layer_faults, "fastbk/apache/http/pages.py", "from fastbk.apache.shell import context\n"),
        (layer_faults, "fastbk/stream/paths.py", "from fastbk.apache.importer import index\n"),
        (home_faults, "fastbk/client/reader.py", "from fastbk.native import _client\n"),
        (home_faults, "fastbk/client/reader.py", "import uvloop\n"),
        (home_faults, "fastbk/client/reader.py", "from fastbk.observe import logs\n"),
        (home_faults, "fastbk/client/reader.py", "import logging\n"),
        (purity_faults, "fastbk/replication/add_machine.py", "from time import monotonic\n"),
    ],
)
def test_each_rule_finds_its_fault(check: object, relative: str, text: str) -> None:
    assert callable(check)
    assert check(relative, imports_of(ast.parse(text)))


def test_every_place_in_the_tables_is_there() -> None:
    """A row whose file was moved would forbid or allow nothing any more."""
    files = [relative for relative, _ in walk((".py",))]
    homes = [home for homes in HOMES.values() for home in homes]
    stale = [home for home in homes if not any(one.startswith(home) for one in files)]
    stale += [
        place
        for place in PURE
        if not any(one.startswith(place) or Path(one).match(place) for one in files)
    ]
    faces = [face.replace(".", "/") for face in (*CHILD_FACES, GC_MESSAGES)]
    stale += [face for face in faces if not any(one.startswith(face) for one in files)]
    assert stale == []


def test_make_has_each_target_of_dev() -> None:
    cases = (ROOT / "dev").read_text().split("\ncase $command in\n")[1]
    targets = set(re.findall(r"^    ([a-z][a-z-]*)(?:\)| \|)", cases, re.MULTILINE))
    makes = re.search(r"^TARGETS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makes is not None
    assert targets == set(makes[1].split())


def test_packages_of_the_layers_are_real() -> None:
    names = {entry.stem for entry in (ROOT / "fastbk").iterdir() if entry.suffix in ("", ".py")}
    assert {name.partition(".")[0] for layer in LAYERS for name in layer} - names == set()


def test_the_picture_shows_these_layers() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    picture = text.partition("Each row of the picture is a layer.")[2].split("```")[1]
    bare = re.sub(r"\(.*?\)", "", picture).replace("/", ".").strip()
    rows = [{name.strip() for name in re.split("[·│]", row)} for row in bare.splitlines()]
    assert rows == LAYERS[::-1]
