"""What is committed as generated is what the schema gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fastbk.wire.generate import (
    C_HEADER,
    FLATC_VERSION,
    GENERATED,
    SCHEMA,
    c_header,
    flatc_version,
    generate_python,
    parse,
    run_flatc,
)
from fastbk.wire.generated.DigestType import DigestType
from fastbk.wire.generated.RequestBody import RequestBody
from fastbk.wire.generated.Status import Status

# What the schema decides, however a version of flatc words it: builder calls with their slots, types and
# defaults; the vtable offsets that are read; the constants of enums.
DECIDED = re.compile(r"builder\.\w+\(.*\)|_tab\.Offset\((?!0\))\d+\)|^ {4}\w+ = \d+$", re.MULTILINE)


def decided(files: dict[str, str]) -> dict[str, list[str]]:
    return {name: sorted(set(DECIDED.findall(text))) for name, text in files.items()}


def test_generating_the_python_again_changes_nothing(tmp_path: Path) -> None:
    """To the byte with the flatc that wrote it; Debian 13's words the same things in another way."""
    run_flatc(tmp_path)
    fresh = {file.name: file.read_text() for file in tmp_path.glob("*.py")}
    committed = {file.name: file.read_text() for file in GENERATED.glob("*.py")}
    assert decided(fresh) == decided(committed)
    if flatc_version() == FLATC_VERSION:
        assert fresh == committed
    else:
        with pytest.raises(SystemExit, match=f"flatc {FLATC_VERSION} is needed"):
            generate_python(tmp_path)


def test_what_the_schema_decides_is_seen() -> None:
    name = "Add.py"
    text = (GENERATED / name).read_text()
    seen = decided({name: text})
    assert len(seen[name]) > 12
    for before, after in (("Slot(1, ", "Slot(7, "), ("Offset(6)", "Offset(16)"), (", 0)", ", 1)")):
        assert before in text
        assert decided({name: text.replace(before, after)}) != seen


def test_generating_the_c_tables_again_changes_nothing() -> None:
    assert c_header(SCHEMA.read_text()) == C_HEADER.read_text()


def test_the_parser_reads_the_schema_as_flatc_does() -> None:
    schema = parse(SCHEMA.read_text())
    for enum, generated in (("Status", Status), ("DigestType", DigestType)):
        values = {name: value for name, value in vars(generated).items() if name.isupper()}
        assert schema.enums[enum][1] == values
    members = ["NONE", *schema.unions["RequestBody"]]
    assert members == [name for name in vars(RequestBody) if not name.startswith("_")]
    assert schema.struct_layout("MasterKey") == (20, 1)
    assert schema.struct_layout("EntryRange") == (16, 8)


def test_what_lies_outside_the_subset_is_refused() -> None:
    with pytest.raises(ValueError, match="not understood"):
        c_header(
            'table Request { a:[ubyte] (nested_flatbuffer: "X"); } table Response {} union U { Request }'
        )
