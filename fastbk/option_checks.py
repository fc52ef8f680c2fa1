"""Checks what callers give: options by their names and types, and the values that calls take.

A wrong one is a ConfigError that names the option or argument and what it must be. Bytes, whole numbers and seconds of
every call, with and without `await`, are taken here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, overload

from fastbk.errors import ConfigError, WrongType

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
            from difflib import get_close_matches  # a wrong name is rare

            near = get_close_matches(name, hints, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose of {', '.join(sorted(hints))}"
            raise ConfigError(f"unknown option {name!r}; {hint}")
        check_type(name, value, hints[name])


def check_fields(options: object) -> None:
    """Check the types of all fields of a dataclass. Raises ConfigError."""
    from dataclasses import fields, is_dataclass  # here: a bookie's children import this module

    assert is_dataclass(options) and not isinstance(options, type)
    hints = _hints(type(options))
    for one in fields(options):
        check_type(one.name, getattr(options, one.name), hints[one.name])


def check_type(name: str, value: object, hint: object) -> None:
    """Check that an option's value is of the type that its annotation says. Raises ConfigError."""
    if not _is_of(value, hint):
        # and so is NaN, which is a float
        is_of_type = get_origin(hint) is Literal or value != value
        actual = "" if is_of_type else f", not {type(value).__name__}"
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


def owned_bytes(data: object, name: str = "data") -> bytes:
    """Return the bytes of a buffer as a copy that nobody changes. Raises WrongType for what is no buffer.

    A number, a list and a text have no bytes: `bytes(5)` would be five zeros.
    """
    if type(data) is bytes:
        return data
    try:
        return memoryview(data).tobytes()  # type: ignore[arg-type]
    except (TypeError, BufferError):
        advice = "; write text.encode()" if isinstance(data, str) else ""
        kind = type(data).__name__
        raise WrongType(
            f"{name} must be bytes or another buffer (bytearray, memoryview, array), not {kind}{advice}"
        ) from None


def owned_list(datas: object, name: str) -> list[bytes]:
    """Return the bytes of several buffers. Raises WrongType for what is none, and for one buffer in their place."""
    if isinstance(datas, bytes | bytearray | memoryview | str):
        raise WrongType(f"{name} must be a list of buffers, not {type(datas).__name__}")
    if not isinstance(datas, Iterable):
        raise WrongType(f"{name} must be a list of buffers, not {type(datas).__name__}")
    return [
        one if type(one) is bytes else owned_bytes(one, f"{name}[{at}]")
        for at, one in enumerate(datas)
    ]


def integer(name: str, value: object) -> int:
    """Return a whole number, of any type that is one. Raises WrongType."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise WrongType(f"{name}={value!r}: must be an integer, not {type(value).__name__}")
    return int(value)


def checked_integer(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number. Raises WrongType for what is none, ConfigError for one out of its range."""
    number = integer(name, value)
    if not low <= number <= high:
        raise ConfigError(f"{name}={number}: must be from {low} to {high}")
    return number


def _is_of(value: object, hint: Any) -> bool:  # noqa: ANN401 -- whatever an annotation may be
    origin = get_origin(hint)
    if isinstance(value, float) and value != value:
        return False  # nan is less than no bound, and above none
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
