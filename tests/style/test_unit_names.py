"""A file of unit tests is named by its unit: a module, a package, a class or a part of C, never by an incident."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.style.tree import ROOT, asked_once

UNIT = ROOT / "tests" / "unit"
# Files whose unit has no module of its own: path below tests/unit -> what the unit is. The list may only shrink.
CONCEPTS: dict[str, str] = {
    "admin/test_listing_memory": "INV-M18: the memory of all that lists records",
    "arrow/test_import": "the package without pyarrow",
    "cli/test_main": "`__main__`",
    "cli/test_runbook_commands": "the commands that runbooks name",
    "client/test_client_faults": "the client beside random faults and cancels",
    "client/test_fake_bookie": "the fake itself",
    "client/test_sync_interrupts": "INV-C3: all calls of `fastbk.sync`",
    "console/test_guards": "what the console refuses before any page",
    "gateway/test_record_rules": "what the records of a gateway's clients may say",
    "inspect/test_readers": "the readers of all kinds of files",
    "native/test_fake_disk": "the fake disk of tests/native",
    "native/test_index_answers": "the reader of index replies that tests have",
    "native/test_kill_points": "base/fault.h",
    "network/test_apache": "a worker's answers in Apache's protocols",
    "network/test_apache_digests": "digests of entries of Apache's clients",
    "network/test_apache_flow": "Apache's clients at a worker's bounds",
    "network/test_authentication": "logins, in all three protocols",
    "network/test_containment": "INV-N5",
    "network/test_flow": "INV-B1: all bounds of a worker",
    "network/test_pairs": "a worker between several pairs",
    "network/test_protocol": "a worker's answers in our protocol",
    "network/test_rights": "the table of rights",
    "overview/test_hot_ledgers": "the hottest ledgers of all bookies",
    "replication/test_closing": "the end of a writer",
    "replication/test_members": "INV-E4: members that are away",
    "replication/test_reading_ahead": "the window of a range that is read",
    "replication/test_recovered_copies": "the check of copies behind a recovery",
    "replication/test_recovery_bookies": "what a recovery makes of bookies",
    "replication/test_span_reading": "the reading half of copying",
    "replication/test_writer_adds": "the writer's adds",
    "replication/test_writer_changes": "the writer's ensemble changes",
    "replication/test_writer_policy": "when a writer changes its ensemble",
    "spark/test_bench_tools": "two benchmarks of Spark",
    "stream/test_byte_quota": "quotas of bytes, from janitor to writer",
    "stream/test_cursor_opening": "positions of one cursor in many streams",
    "stream/test_record_bounds": "INV-S14: bounds of all records",
    "stream/test_record_times": "INV-S22: times of records",
    "stream/test_sync_writer": "the writer without `await`",
    "stream/test_writer_fencing": "fencing, as appends meet it",
    "test_deep_json": "JSON that nests deeply, in all readers",
    "test_monitoring": "the folder monitoring",
    "test_public_names": "the names of `fastbk`",
    "tools/test_load_parts": "the folder loadtest",
    "tools/test_runner": "`tests/__main__.py`",
    "wire/test_golden_frames": "the golden frames",
}

ELSEWHERE = {
    "compat": ROOT / "tests" / "compat",
    "live": ROOT / "tests" / "live",
    "network": ROOT / "fastbk" / "server" / "network",
    "rigs": ROOT / "tests" / "rigs",
    "simulation": ROOT / "tests" / "simulation",
    "tools": ROOT / "tools",
    ".": ROOT / "fastbk",
}
"""Folders of unit tests whose units are not in the package of that name."""


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower().strip("_")


def _classes(tree: ast.Module) -> list[str]:
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


classes_of = asked_once(_classes)


def names_of_units(package: Path) -> Iterator[str]:
    """Yield the names of modules, packages and classes, and those with their package's name before them."""
    for path in package.rglob("*"):
        parts = path.relative_to(package).with_suffix("").parts
        if "generated" in parts or path.suffix not in ("", ".py", ".c", ".fbs"):
            continue
        if path.is_dir() or path.name != "__init__.py":
            yield from {parts[-1], "_".join(parts[-2:]), f"{package.name}_{parts[-1]}"}
        if path.suffix == ".py":
            yield from map(_snake, classes_of(path))


@cache
def unnamed() -> list[str]:
    units: dict[str, set[str]] = {}
    found = []
    for path in sorted(UNIT.rglob("test_*.py")):
        folder = path.relative_to(UNIT).parts[0] if path.parent != UNIT else "."
        package = ELSEWHERE.get(folder, ROOT / "fastbk" / folder)
        if folder not in units:
            units[folder] = {package.name, *names_of_units(package)}
        if path.stem.removeprefix("test_") not in units[folder]:
            found.append(str(path.relative_to(UNIT).with_suffix("")))
    return found


def test_each_file_is_named_by_its_unit() -> None:
    listing = "\n".join(one for one in unnamed() if one not in CONCEPTS)
    assert not listing, (
        f"name it by the module or class that it tests, or merge it into its file:\n{listing}"
    )


def test_each_concept_is_still_one() -> None:
    assert not CONCEPTS.keys() - set(unnamed()), "remove these from CONCEPTS"
