"""Writes what is generated from schema/protocol.fbs: the Python in generated/ and native/src/wire/schema.h.

`python -m fastbk.wire.generate` rewrites both; the results are committed, so that installing needs no flatc, and
a test checks that generating again changes nothing. The Python is flatc's. The C header is written here from
the subset of the schema language that protocol.fbs uses: enums, tables, structs, unions, scalars, strings,
and vectors of scalars, strings and structs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

WIRE = Path(__file__).resolve().parent
SCHEMA = WIRE / "schema" / "protocol.fbs"
GENERATED = WIRE / "generated"
C_HEADER = WIRE.parent / "native" / "src" / "wire" / "schema.h"
FLATC_VERSION = "2.0.8"

SCALAR_SIZES = {
    "bool": 1,
    "byte": 1,
    "ubyte": 1,
    "short": 2,
    "ushort": 2,
    "int": 4,
    "uint": 4,
    "long": 8,
    "ulong": 8,
}


@dataclass(frozen=True)
class Field:
    """One field of a table: its name, type as written, and whether the verifier insists on it."""

    name: str
    type: str
    required: bool


@dataclass
class Schema:
    """A parsed schema; all in the order of the file."""

    enums: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    tables: dict[str, list[Field]] = field(default_factory=dict)
    structs: dict[str, list[Field]] = field(default_factory=dict)
    unions: dict[str, list[str]] = field(default_factory=dict)

    def scalar_size(self, name: str) -> int | None:
        """Return the size of a scalar or enum type in bytes, None for any other type."""
        if name in self.enums:
            name = self.enums[name][0]
        return SCALAR_SIZES.get(name)

    def struct_layout(self, name: str) -> tuple[int, int]:
        """Return size and alignment of a struct in bytes."""
        size = 0
        alignment = 1
        for item in self.structs[name]:
            array = re.fullmatch(r"\[(\w+):(\d+)\]", item.type)
            element = array[1] if array else item.type
            count = int(array[2]) if array else 1
            element_size = self.scalar_size(element)
            if element_size is None:
                raise ValueError(f"{name}.{item.name}: {item.type} in a struct")
            size = -(-size // element_size) * element_size + count * element_size
            alignment = max(alignment, element_size)
        return -(-size // alignment) * alignment, alignment


def parse_fields(text: str) -> list[Field]:
    """Return the fields between the braces of a table or struct."""
    fields = []
    for item in text.split(";"):
        if not item.strip():
            continue
        match = re.fullmatch(r"\s*(\w+)\s*:\s*(\w+|\[\w+(?::\d+)?\])\s*(\(required\))?\s*", item)
        if match is None:
            raise ValueError(f"not understood: {item.strip()}")
        fields.append(Field(match[1], match[2], match[3] is not None))
    return fields


def parse(text: str) -> Schema:
    """Return the schema in `text`. Raises ValueError for what lies outside the subset."""
    text = re.sub(r"//.*", "", text)
    schema = Schema()
    for kind, name, base, body in re.findall(
        r"\b(enum|table|struct|union)\s+(\w+)\s*(?::\s*(\w+))?\s*\{([^}]*)\}", text
    ):
        if kind == "enum":
            members = re.findall(r"(\w+)\s*=\s*(\d+)", body)
            schema.enums[name] = (base, {member: int(value) for member, value in members})
        elif kind == "union":
            schema.unions[name] = [member.strip() for member in body.split(",")]
        elif kind == "table":
            schema.tables[name] = parse_fields(body)
        else:
            schema.structs[name] = parse_fields(body)
    return schema


def upper(name: str) -> str:
    """Return `ReadBatchReply` as `READ_BATCH_REPLY`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


def slots(schema: Schema, table: str) -> list[tuple[str, Field, int]]:
    """Return (constant, field, vtable slot in bytes) of a table; a union takes two slots, type first."""
    listed = []
    slot = 4
    for item in schema.tables[table]:
        constant = f"FBK_{upper(table)}_{item.name.upper()}"
        if item.type in schema.unions:
            listed.append((f"{constant}_TYPE", Field(f"{item.name}_type", "ubyte", False), slot))
            slot += 2
        listed.append((constant, item, slot))
        slot += 2
    return listed


def rule(schema: Schema, item: Field, slot: int) -> str:
    """Return the verifier's rule for one field as a C initializer."""
    required = 1 if item.required else 0
    size = schema.scalar_size(item.type)
    if size is not None:
        return f"{{{slot}, FBK_FIELD_INLINE, {required}, {size}, {size}}}"
    if item.type in schema.structs:
        size, alignment = schema.struct_layout(item.type)
        return f"{{{slot}, FBK_FIELD_INLINE, {required}, {size}, {alignment}}}"
    if item.type in schema.unions:
        number = list(schema.unions).index(item.type)
        return f"{{{slot}, FBK_FIELD_UNION, {required}, {number}, 0}}"
    if item.type == "string":
        return f"{{{slot}, FBK_FIELD_STRING, {required}, 1, 0}}"
    vector = re.fullmatch(r"\[(\w+)\]", item.type)
    if vector is None:
        raise ValueError(f"{item.name}: type {item.type} is outside the subset")
    if vector[1] == "string":
        return f"{{{slot}, FBK_FIELD_STRINGS, {required}, 4, 0}}"
    element_size = schema.scalar_size(vector[1])
    if element_size is None:
        element_size = schema.struct_layout(vector[1])[0]
    return f"{{{slot}, FBK_FIELD_VECTOR, {required}, {element_size}, 0}}"


def c_constants(schema: Schema) -> list[str]:
    """Return the lines that name union members, enum values and vtable slots."""
    lines = []
    for union, members in schema.unions.items():
        for number, member in enumerate(members, start=1):
            lines.append(f"#define FBK_{upper(union)}_{upper(member)} {number}")
        lines.append("")
    for enum, (_, values) in schema.enums.items():
        lines.extend(
            f"#define FBK_{upper(enum)}_{member} {value}" for member, value in values.items()
        )
        lines.append("")
    for table in schema.tables:
        lines.extend(f"#define {constant} {slot}" for constant, _, slot in slots(schema, table))
    lines.append("")
    return lines


def c_tables(schema: Schema) -> list[str]:
    """Return the lines of the verifier's tables."""
    lines = []
    for table in schema.tables:
        rules = [rule(schema, item, slot) for _, item, slot in slots(schema, table)]
        if rules:
            lines.append(f"static const struct fbk_schema_field fbk_fields_of_{table}[] = {{")
            lines.extend(f"    {text}," for text in rules)
            lines.append("};")
    lines.append("static const struct fbk_schema_table fbk_schema_tables[] = {")
    for table in schema.tables:
        count = len(slots(schema, table))
        lines.append(
            f"    {{{f'fbk_fields_of_{table}' if count else 'NULL'}, {count}}}, /* {table} */"
        )
    lines.append("};")
    names = list(schema.tables)
    width = max(len(members) for members in schema.unions.values()) + 1
    lines.append(f"#define FBK_UNION_MEMBERS_MAX {width}")
    lines.append("/* The table of each union member; -1 = none. */")
    lines.append("static const int16_t fbk_schema_unions[][FBK_UNION_MEMBERS_MAX] = {")
    for union, members in schema.unions.items():
        numbers = [-1, *(names.index(member) for member in members)]
        numbers += [-1] * (width - len(numbers))
        lines.append(f"    {{{', '.join(map(str, numbers))}}}, /* {union} */")
    lines.append("};")
    roots = ("Request", "Response")
    lines.extend(f"#define FBK_TABLE_{upper(root)} {names.index(root)}" for root in roots)
    return lines


def c_header(text: str) -> str:
    """Return wire/schema.h for the schema in `text`."""
    schema = parse(text)
    return "\n".join(
        [
            "/* Generated by fastbk/wire/generate.py from fastbk/wire/schema/protocol.fbs; do not edit. */",
            "#pragma once",
            "",
            "/* Union members and enum values; then each field's place in its vtable, in bytes. */",
            *c_constants(schema),
            "/* What wire/verify.c goes by. */",
            "#ifdef FBK_SCHEMA_TABLES",
            "enum fbk_field_kind {",
            "    FBK_FIELD_INLINE,  /* scalar or struct: size, alignment */",
            "    FBK_FIELD_VECTOR,  /* size: of an element */",
            "    FBK_FIELD_STRING,",
            "    FBK_FIELD_STRINGS, /* a vector of strings */",
            "    FBK_FIELD_UNION,   /* size: the union's number; its type lies one slot before */",
            "};",
            "struct fbk_schema_field {",
            "    uint16_t slot;",
            "    uint8_t kind;",
            "    uint8_t is_required;",
            "    uint16_t size;",
            "    uint16_t alignment;",
            "};",
            "struct fbk_schema_table {",
            "    const struct fbk_schema_field *fields;",
            "    uint32_t field_count;",
            "};",
            *c_tables(schema),
            "#endif",
            "",
        ]
    )


def flatc_version() -> str:
    """Return what flatc says of itself. Raises FileNotFoundError where it is missing."""
    said = subprocess.run(["flatc", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.strip().removeprefix("flatc version ")


def run_flatc(into: Path) -> None:
    """Write the Python modules of whichever flatc there is into `into`."""
    with tempfile.TemporaryDirectory() as folder:
        # In a folder of its own: flatc writes an empty __init__.py into every package on the way.
        subprocess.run(["flatc", "--python", "-o", folder, str(SCHEMA)], check=True)
        made = Path(folder) / "fastbk" / "wire" / "generated"
        into.mkdir(parents=True, exist_ok=True)
        for file in sorted(made.glob("*.py")):
            shutil.copyfile(file, into / file.name)


def generate_python(into: Path) -> None:
    """Write the modules that are committed into `into`. Raises SystemExit with any other flatc than the one pinned."""
    version = flatc_version()
    if version != FLATC_VERSION:
        raise SystemExit(f"flatc {FLATC_VERSION} is needed, this is {version}")
    run_flatc(into)


def main() -> int:
    """Rewrite everything generated."""
    for old in GENERATED.glob("*.py"):
        old.unlink()
    generate_python(GENERATED)
    C_HEADER.write_text(c_header(SCHEMA.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
