"""The shapes of answers to `--json`, as docs/json.md has them: reading them, and comparing an answer with one.

    {"ledger_id": "integer", "ended?": "text | null", "bookies": {"*": ["text"]}}

A value is `text`, `integer`, `number`, `boolean`, `null` or `any`, or several with ` | ` between. A name that ends with
`?` may be missing. `*` stands for names that are data, as ids of bookies. A list has one shape for all its elements.
`{"one of": [...]}` has several shapes.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tools import ROOT

PAGE = ROOT / "docs" / "json.md"
ONE_OF = "one of"

Shape = Any
"""What JSON makes of a shape's text."""

_IS = {
    "text": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "any": lambda value: True,
}


def documented(text: str) -> dict[str, Shape]:
    """Return the shapes of a page by their commands: a heading, and the first block of JSON below it."""
    found: dict[str, Shape] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        block = re.search(r"^```json\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        if heading.startswith("fastbk ") and block is not None:
            for command in heading.split(", "):
                found[command.removeprefix("fastbk ")] = json.loads(block[1])
    return found


def differences(shape: Shape, value: object, where: str = "the answer") -> list[str]:
    """Return what in `value` is not as `shape` says; nothing if all is."""
    if isinstance(shape, str):
        kinds = shape.split(" | ")
        return (
            []
            if any(_IS[kind](value) for kind in kinds)
            else [f"{where} is {value!r}, not {shape}"]
        )
    if isinstance(shape, dict) and ONE_OF in shape:
        found = [differences(each, value, where) for each in shape[ONE_OF]]
        return [] if any(not each for each in found) else min(found, key=len)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where} is {value!r}, not a list"]
        return [
            one
            for number, each in enumerate(value)
            for one in differences(shape[0], each, f"{where}[{number}]")
        ]
    if not isinstance(value, dict):
        return [f"{where} is {value!r}, not an object"]
    names = {name.removesuffix("?"): each for name, each in shape.items() if name != "*"}
    wanted = {name for name in shape if name != "*" and not name.endswith("?")}
    faults = [f"{where} lacks {name!r}" for name in sorted(wanted - value.keys())]
    for name, each in value.items():
        if name in names:
            faults += differences(names[name], each, f"{where}.{name}")
        elif "*" in shape:
            faults += differences(shape["*"], each, f"{where}.{name}")
        else:
            faults.append(f"{where} has {name!r} = {each!r}, which is not documented")
    return faults
