"""The table of formats agrees with the code, lists everything that has a version, and gates what is written."""

from __future__ import annotations

import importlib
import re

import pytest

from fastbk import formats
from fastbk.cli.version import format_lines
from fastbk.formats import (
    FORMATS,
    LEVEL_FIRST,
    LEVEL_MAX,
    LEVELS,
    PATTERN_CURSOR,
    Format,
    level_of,
    version_at,
)
from tests.style.tree import ROOT

SOURCES = ROOT / "fastbk" / "native" / "src"
NOT_LISTED = {
    "wire.messages:VERSION_MIN": "its home is VERSION_MAX",
    "base/layout.h:FBK_LAYOUT_VERSION": "shared memory: all of a bookie's processes are of one version",
    "inspect.journal:VERSION": "the second reading of a format that is listed",
    "inspect.index_files:VERSION": "the second reading of a format that is listed",
}
READ_MIN = {
    "manifest": lambda: min(importlib.import_module("fastbk.storage.manifest").READABLE),
    "cookie": lambda: min(importlib.import_module("fastbk.model.cookie")._READABLE_VERSIONS),
    "fastbk's protocol": lambda: importlib.import_module("fastbk.wire.messages").VERSION_MIN,
}


def number_of(home: str) -> int:
    """Return the number that stands in the code."""
    place, name = home.split(":")
    if not place.endswith(".h"):
        return int(getattr(importlib.import_module(f"fastbk.{place}"), name))
    found = re.search(rf"^#define {name} (\d+)u?\b", (SOURCES / place).read_text(), re.MULTILINE)
    assert found, home
    return int(found[1])


@pytest.mark.parametrize("one", FORMATS, ids=lambda one: one.name)
def test_the_table_has_the_numbers_of_the_code(one: Format) -> None:
    assert number_of(one.home) == one.newest == one.version_at(LEVEL_MAX)
    assert one.since >= LEVEL_FIRST and max(one.written) <= LEVEL_MAX
    assert 1 <= one.read_min <= one.written[one.since] <= one.newest
    if (of_code := READ_MIN.get(one.name)) is not None:
        assert of_code() == one.read_min


def test_whatever_has_a_version_is_in_the_table() -> None:
    homes = {one.home for one in FORMATS} | NOT_LISTED.keys()
    found = set()
    for path in (ROOT / "fastbk").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "fastbk").with_suffix("").parts)
        for name in re.findall(
            r"^(_?(?:FORMAT|VERSION)(?:_VERSION|_MAX|_MIN)?) = \d+$", path.read_text(), re.MULTILINE
        ):
            found.add(f"{module}:{name}")
    for path in SOURCES.rglob("*.h"):
        for name in re.findall(r"^#define (FBK_\w+_VERSION) \d", path.read_text(), re.MULTILINE):
            found.add(f"{path.relative_to(SOURCES)}:{name}")
    # Places of fields and counters, not versions.
    found = {one for one in found if not one.startswith(("wire/schema.h", "base/slots.h"))}
    assert found - homes == set(), "add it to fastbk/formats.py"
    assert homes - found == set(), "it is not there any more"


def test_each_level_says_what_it_adds() -> None:
    assert list(LEVELS) == list(range(LEVEL_FIRST, LEVEL_MAX + 1))


def test_a_newer_version_is_written_from_its_level_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-U1, with a planted level: the journal's next version."""
    planted = Format("journal file", {1: 2, 3: 5, 4: 6}, 1, "", "")
    monkeypatch.setitem(formats._BY_NAME, "journal file", planted)
    versions = [version_at("journal file", level) for level in range(1, 6)]
    assert versions == [2, 2, 5, 6, 6]
    assert planted.newest == 6
    with pytest.raises(KeyError):
        version_at("no such format", 1)


def test_what_is_new_at_a_level_is_not_written_below_it() -> None:
    """INV-U1."""
    since = level_of(PATTERN_CURSOR)
    assert since == 3 and version_at(PATTERN_CURSOR, since) == 1
    with pytest.raises(ValueError, match="empty"):
        version_at(PATTERN_CURSOR, since - 1)
    writes = next(line for line in format_lines() if line.startswith(PATTERN_CURSOR))
    assert f"1 from level {since}" in writes
