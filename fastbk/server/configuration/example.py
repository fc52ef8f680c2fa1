"""A whole configuration file with every key, its default and its text, made from the structs themselves."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap

import msgspec

from fastbk.config import key_of
from fastbk.server.configuration.bookie_config import BookieConfig

_UNITS: dict[str, list[tuple[str, int]]] = {
    "bytes": [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)],
    "us": [("s", 10**6), ("ms", 10**3), ("us", 1)],
    "ms": [("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)],
    "s": [("h", 3600), ("min", 60), ("s", 1)],
}


def example() -> str:
    """Return the text of a file that says what holds without it; keys that must be given are empty."""
    texts = _all_texts()
    lines: list[str] = []
    for section in msgspec.structs.fields(BookieConfig):
        kind = section.type
        lines += [f"# {texts[kind.__name__, '']}", f"[{section.name}]"]
        for field in msgspec.structs.fields(kind):
            text = texts.get((kind.__name__, field.name))
            if text:
                lines += textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")
            key, unit = key_of(field.name)
            lines.append(f"{key} = {value_text(field.default, unit)}")
        lines.append("")
    return "\n".join(lines)


def setting_texts() -> dict[str, str]:
    """Return the text of each setting, by `section.field`; empty where it has none."""
    texts = _all_texts()
    return {
        f"{section.name}.{field.name}": texts.get((section.type.__name__, field.name), "")
        for section in msgspec.structs.fields(BookieConfig)
        for field in msgspec.structs.fields(section.type)
    }


def value_text(value: object, unit: str | None) -> str:
    """Return a value as the file has it, with the largest unit that keeps it whole."""
    if unit is not None and isinstance(value, int):
        if value == 0:
            return "0"
        name, factor = next((n, f) for n, f in _UNITS[unit] if value % f == 0)
        return f'"{value // factor}{name}"'
    return msgspec.json.encode(value).decode()


def _all_texts() -> dict[tuple[str, str], str]:
    modules = {section.type.__module__ for section in msgspec.structs.fields(BookieConfig)}
    texts: dict[tuple[str, str], str] = {}
    for name in sorted(modules):
        texts |= _texts(inspect.getsource(sys.modules[name]))
    return texts


def _texts(source: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of classes (under an empty name) and of their fields."""
    texts: dict[tuple[str, str], str] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        texts[node.name, ""] = " ".join((ast.get_docstring(node) or "").split())
        for before, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                texts[node.name, before.target.id] = " ".join(str(after.value.value).split())
    return texts
