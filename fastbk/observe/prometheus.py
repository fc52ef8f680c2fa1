"""Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def family(metric: str, kind: str, text: str, series: Iterable[tuple[str, object]]) -> list[str]:
    """Return the lines of a metric with its series, of which each is labels, empty for none, and a value."""
    lines = heading(metric, kind, text)
    lines += [
        f"{metric}{{{labels}}} {value}" if labels else f"{metric} {value}"
        for labels, value in series
    ]
    return lines


def single(metric: str, kind: str, text: str, value: object) -> list[str]:
    """Return the lines of a metric of one series without labels."""
    return family(metric, kind, text, [("", value)])


def heading(metric: str, kind: str, text: str) -> list[str]:
    """Return the lines that say what a metric is."""
    return [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]


def quoted(text: str) -> str:
    """Return a label's value as it stands between its quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float, digits: int = 15) -> str:
    """Return a value with so many digits that count."""
    return "NaN" if math.isnan(value) else f"{value:.{digits}g}"
