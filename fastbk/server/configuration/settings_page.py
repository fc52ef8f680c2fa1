"""docs/settings.md: `python -m fastbk.server.configuration.settings_page` prints it from the settings' structs.

`tests/style/test_docs.py` compares, so the page and the code cannot differ.
"""

from __future__ import annotations

import sys
import textwrap

import msgspec
from msgspec import inspect

from fastbk.config import key_of
from fastbk.server.configuration.example import setting_texts, value_text
from fastbk.server.configuration.process_config import BookieConfig

_INTRODUCTION = """\
# Settings of a bookie

A bookie reads one file when it starts. Sizes and times have units:

```toml
[bookie]
listen = "127.0.0.1:3181"

[journal]
file_size = "128MiB"
```

`fastbk bookie --example` prints such a file with all defaults. `fastbk config show FILE` prints
what a file sets. An unknown key is an error. [configuration.md](configuration.md) shows how a bookie
reads Apache's files.

This page is printed by `python -m fastbk.server.configuration.settings_page`.
"""


def page() -> str:
    """Return the whole page in Markdown: each section, and each setting's default, range and text."""
    texts = setting_texts()
    lines = [_INTRODUCTION]
    for section in msgspec.structs.fields(BookieConfig):
        lines += [f"## [{section.name}]", ""]
        types = {one.name: one.type for one in _fields(section.type)}
        for field in msgspec.structs.fields(section.type):
            key, unit = key_of(field.name)
            facts = (
                f"**`{key}`** = {_default(field.default, unit)}{_range(types[field.name], unit)}"
            )
            text = texts[f"{section.name}.{field.name}"]
            lines.append(f"- {facts}\\" if text else f"- {facts}")
            if text:
                lines += textwrap.wrap(
                    text, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
                )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _fields(kind: type) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def _default(value: object, unit: str | None) -> str:
    if value is msgspec.NODEFAULT:
        return "(has to be given)"
    return f"`{value_text(value, unit)}`"


def _range(kind: inspect.Type, unit: str | None) -> str:
    """Return the allowed values, empty where any value of the type is allowed."""
    if isinstance(kind, inspect.LiteralType):
        return ", one of " + ", ".join(f"`{value_text(one, None)}`" for one in kind.values)
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return ""
    low = f"at least {value_text(kind.ge, unit)}" if kind.ge is not None else ""
    low = f"above {value_text(kind.gt, unit)}" if kind.gt is not None else low
    high = f"at most {value_text(kind.le, unit)}" if kind.le is not None else ""
    both = ", ".join(one.replace('"', "") for one in (low, high) if one)
    return f" ({both})" if both else ""


if __name__ == "__main__":
    sys.stdout.write(page())
