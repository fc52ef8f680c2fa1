"""Charts as SVG, drawn on the server: for browsers without uPlot, and small lines in tables. Pure.

Colours are those of the style sheet's classes, so that charts follow dark and light.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

GAP_FACTOR = 3.0
"""A pause of so many usual steps is drawn as a gap."""
POINTS_DRAWN_MAX = 240


def sparkline(
    times_s: Sequence[float],
    values: Sequence[float | None],
    label: str,
    *,
    width: int = 120,
    height: int = 28,
) -> Markup:
    """Return a line of these points as an SVG image, with `label` for people who do not see it."""
    step = max(1, len(times_s) // POINTS_DRAWN_MAX)
    points = [
        (at, value) for at, value in zip(times_s[::-step][::-1], values[::-step][::-1], strict=True)
    ]
    known = [value for _, value in points if value is not None]
    head = Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">'
    ).format(width, height, label)
    if len(known) < 2:
        return head + Markup('<path class="spark-none" d="M0 {y}H{w}"/></svg>').format(
            y=height - 1, w=width
        )
    first, span = points[0][0], max(points[-1][0] - points[0][0], 1e-9)
    top = max(*known, 1e-12)
    usual = span / max(1, len(points) - 1)
    strokes: list[list[tuple[float, float]]] = [[]]
    before: float | None = None
    for at, value in points:
        if value is None or (before is not None and at - before > GAP_FACTOR * usual):
            strokes.append([])
        if value is not None:
            x = (at - first) / span * width
            strokes[-1].append((x, height - 1 - value / top * (height - 3)))
        before = at
    lines = [one for one in strokes if len(one) > 1]
    path = "".join(_path(one) for one in lines)
    area = "".join(
        f"{_path(one)}L{one[-1][0]:.1f} {height}L{one[0][0]:.1f} {height}Z" for one in lines
    )
    return head + Markup(
        '<path class="spark-area" d="{}"/><path class="spark-line" d="{}"/></svg>'
    ).format(area, path)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
