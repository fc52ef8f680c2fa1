"""Checks options by their names and types: a wrong one is a ConfigError that names the option and what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, overload

from fastbk.errors import ConfigError

_NAMES: dict[object, str] = {
    float: "a number",
    int: "an integer",
    bool: "True or False",
    str: "text",
    bytes: "bytes",
    NoneType: "None",
}
_TIMEOUT_MAX_S = 1e9


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def check_options(given: Mapping[str, object], kind: type) -> None:
    """Check that `given` has only options of `kind`, a TypedDict, and of their types. Raises ConfigError."""
    hints = _hints(kind)
    for name, value in given.items():
        if name not in hints:
            near = get_close_matches(name, hints, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose of {', '.join(sorted(hints))}"
            raise ConfigError(f"unknown option {name!r}; {hint}")
        check_type(name, value, hints[name])


def check_fields(options: object) -> None:
    """Check the types of all fields of a dataclass. Raises ConfigError."""
    assert is_dataclass(options) and not isinstance(options, type)
    hints = _hints(type(options))
    for one in fields(options):
        check_type(one.name, getattr(options, one.name), hints[one.name])


def check_type(name: str, value: object, hint: object) -> None:
    """Check that an option's value is of the type that its annotation says. Raises ConfigError."""
    if not _is_of(value, hint):
        actual = "" if get_origin(hint) is Literal else f", not {type(value).__name__}"
        raise ConfigError(f"{name}={value!r}: must be {_named(hint)}{actual}")


@overload
def checked_timeout(timeout: float | None, default: float) -> float: ...


@overload
def checked_timeout(timeout: float | None) -> float | None: ...


def checked_timeout(timeout: float | None, default: float | None = None) -> float | None:
    """Return the `timeout=` of a call, or `default` for None. Raises ConfigError unless it is a number of seconds."""
    if timeout is None:
        return default
    if not _is_of(timeout, float) or not 0 <= timeout <= _TIMEOUT_MAX_S:
        raise ConfigError(
            f"timeout={timeout!r}: must be a number of seconds from 0 to 1e9, or None for the default"
        )
    return timeout


def _is_of(value: object, hint: Any) -> bool:  # noqa: ANN401 -- whatever an annotation may be
    origin = get_origin(hint)
    if hint is float or hint is int:
        # True is 1 to Python, and a mistake here.
        return isinstance(value, Real if hint is float else Integral) and not isinstance(
            value, bool
        )
    if origin is Union or origin is UnionType:
        return any(_is_of(value, one) for one in get_args(hint))
    if origin is Literal:
        return any(
            value is one or (type(value) is type(one) and value == one) for one in get_args(hint)
        )
    return isinstance(value, origin or hint)


def _named(hint: Any) -> str:  # noqa: ANN401 -- as above
    origin = get_origin(hint)
    if origin is Union or origin is UnionType:
        return " or ".join(_named(one) for one in get_args(hint))
    if origin is Literal:
        return " or ".join(repr(one) for one in get_args(hint))
    return _NAMES.get(hint, f"a {(origin or hint).__name__}")
