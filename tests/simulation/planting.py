"""Plants a fault into the product while some worlds run: a piece of a function's source is replaced by another.

The product itself has no flags for this. When its source changes so that a piece is no longer there, planting fails and
says so: then the list in `mutations.py` has to follow.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any


class NotPlantable(AssertionError):
    """The product's source is not what the fault was written for."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In `module:Class.function` (or `module:function`) `old` becomes `new`."""

    where: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """One protocol fault. `seed`: of the world of streams that finds it."""

    name: str
    why: str
    edits: tuple[Edit, ...]
    seed: int = 0


def fault(name: str, why: str, *edits: tuple[str, str, str], seed: int = 0) -> Mutation:
    """Return a fault; an edit is (where, old, new)."""
    return Mutation(name, why, tuple(Edit(*one) for one in edits), seed)


def _target(where: str) -> tuple[Any, str]:
    module_name, _, path = where.partition(":")
    owner: Any = importlib.import_module(module_name)
    *outer, name = path.split(".")
    for one in outer:
        owner = getattr(owner, one)
    return owner, name


def _edited(where: str, edits: list[Edit]) -> tuple[Any, str, Any, Any]:
    owner, name = _target(where)
    before = inspect.getattr_static(owner, name)
    function = before.fget if isinstance(before, property) else before
    if not isinstance(function, FunctionType):
        raise NotPlantable(f"{where} is no plain function")
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if edit.old not in source:
            raise NotPlantable(f"{where} no longer contains {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    if isinstance(before, property):
        source = source.replace("@property\n", "", 1)
    # Inside a function with that parameter `super()` finds its class.
    source = (
        f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}"
    )
    made: dict[str, Any] = {}
    code = compile(source, f"<planted in {where}>", "exec", flags=_future_flags())
    exec(code, function.__globals__, made)
    after: Any = made["make"](owner)
    after.__qualname__ = function.__qualname__
    return owner, name, before, property(after) if isinstance(before, property) else after


# Modules that may have imported a function by its name.
_OURS = ("fastbk.", "tests.simulation.")


def _owners(owner: Any, name: str, before: Any) -> list[Any]:
    """Return where a function has to be replaced: its class, or every module that has it by that name."""
    if not isinstance(owner, ModuleType):
        return [owner]
    modules = [module for key, module in sorted(sys.modules.items()) if key.startswith(_OURS)]
    return [module for module in modules if vars(module).get(name) is before]


def _future_flags() -> int:
    import __future__

    return __future__.annotations.compiler_flag


@contextmanager
def planted(mutation: Mutation | None) -> Iterator[None]:
    changed: list[tuple[Any, str, Any]] = []
    by_place: dict[str, list[Edit]] = {}
    for edit in () if mutation is None else mutation.edits:
        by_place.setdefault(edit.where, []).append(edit)
    try:
        for where, edits in by_place.items():
            owner, name, before, after = _edited(where, edits)
            for one in _owners(owner, name, before):
                changed.append((one, name, before))
                setattr(one, name, after)
        yield
    finally:
        for owner, name, before in reversed(changed):
            setattr(owner, name, before)
