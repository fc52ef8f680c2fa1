"""Sizes, durations and counts as people write them (`64MiB`, `200us`, `1 bookie`) and as the code has them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from fastbk.errors import ConfigError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

SIZE_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40, "KB": 10**3, "MB": 10**6,
              "GB": 10**9}  # fmt: skip
"""Bytes in each unit. The decimal ones are as exact as the binary ones."""

DURATION_UNITS = {"us": 1, "ms": 10**3, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6,
                  "d": 86_400 * 10**6}  # fmt: skip
"""Microseconds in each unit."""


def parse_size(text: str) -> int:
    """Return the bytes that `text` names (`64MiB`). Raises ConfigError with a sentence."""
    return _parse(text, SIZE_UNITS, "a size", "64MiB")


def parse_duration_us(text: str) -> int:
    """Return the microseconds that `text` names (`200us`, `10min`). Raises ConfigError."""
    return _parse(text, DURATION_UNITS, "a duration", "200us")


def format_size(size_bytes: int) -> str:
    """Return `size_bytes` with the largest binary unit that keeps it readable (`1.5 GiB`)."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            return f"{size_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def format_apache_size(size_bytes: int) -> str:
    """Return bytes as Apache shows them, in thousands too, cut after three decimals: `1500000(1.5MB)`."""
    step, thousandths = 0, size_bytes * 1000
    while thousandths >= 1_000_000 and step < 4:
        step, thousandths = step + 1, thousandths // 1000
    text = f"{thousandths // 1000}.{thousandths % 1000:03}".rstrip("0").rstrip(".")
    return f"{size_bytes}({text}{' KMGT'[step]}B)" if step else str(size_bytes)


def format_amount(amount: float) -> str:
    """Return `amount` with three digits and the decimal prefix that keeps it short (`950`, `1.5 k`, `20 M`)."""
    for factor, prefix in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        # What rounds up to the next prefix has it: 999,950 is 1 M and not 1e+03 k.
        if abs(amount) >= 0.9995 * factor:
            return f"{float(f'{amount / factor:.3g}'):g} {prefix}"
    return f"{amount:.3g}"


def format_duration_us(duration_us: float) -> str:
    """Return `duration_us` with the unit that keeps it readable (`130 us`, `2.4 ms`, `1.5 s`)."""
    if duration_us < 1000:
        return f"{duration_us:.0f} us"
    if duration_us < 1e6:
        return f"{duration_us / 1e3:.1f} ms"
    return f"{duration_us / 1e6:.1f} s"


def format_span_s(span_s: float) -> str:
    """Return whole days, hours or minutes where it is as much (`7 d`, `2 h`, `90 min`), else seconds (`1.5 s`)."""
    for unit, each_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if span_s >= each_s and span_s % each_s == 0:
            return f"{span_s / each_s:,.0f} {unit}"
    return f"{span_s:g} s"


def format_age_s(age_s: float) -> str:
    """Return a time as people say it (`0.3 s`, `12 s`, `5 min`, `3.2 h`, `4.5 d`)."""
    if age_s < 10:
        return f"{max(0.0, age_s):.1f} s"
    for unit, each_s, digits in (("s", 1, 0), ("min", 60, 0), ("h", 3600, 1)):
        if age_s < 100 * each_s:
            return f"{age_s / each_s:.{digits}f} {unit}"
    return f"{age_s / 86_400:.1f} d"


_YEAR_10000_MS = 253_402_300_800_000


def format_utc_ms(time_ms: int) -> str:
    """Return a moment, in ms since 1970, as in `2026-11-27 19:05:00 UTC`; what no calendar has as a number."""
    if not 0 <= time_ms < _YEAR_10000_MS:
        return f"{time_ms} ms since 1970"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ms / 1000))


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Return `count` with its noun (`1 bookie`, `2,000 entries`); `plural` where it is more than an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


NAMES_SHOWN_MAX = 20


def format_names(names: Iterable[str]) -> str:
    """Return `names` in their order (`a, b`), the first 20 of many (`…, and 3 more`); `none` for none."""
    found = sorted(names)
    more = len(found) - NAMES_SHOWN_MAX
    if more > 0:
        found[NAMES_SHOWN_MAX:] = [f"and {more} more"]
    return ", ".join(found) or "none"


def format_entries(count: int) -> str:
    """Return `count` as a number of entries (`1 entry`, `2,000 entries`)."""
    return format_count(count, "entry", "entries")


def _parse(text: str, units: dict[str, int], what: str, example: str) -> int:
    stripped = text.strip()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = stripped[len(number) :]
    factor = units.get(unit)
    try:
        amount = float(number)
    except ValueError:
        raise ConfigError(f'"{text}" is not {what}: write it like "{example}"') from None
    if factor is None:
        known = ", ".join(units)
        raise ConfigError(f'"{text}" has no known unit: {what} ends in one of {known}')
    value = amount * factor
    if not math.isfinite(value) or value != int(value) or value < 0:
        raise ConfigError(f'"{text}" is not a whole number of {next(iter(units))}, zero or more')
    return int(value)
