"""Pages from templates: Jinja2 with escaping always on, small charts, and the words in which figures are shown."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from fastbk.units import (
    format_age_s,
    format_amount,
    format_count,
    format_size,
    format_span_s,
    format_utc_ms,
)

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

NOT_KNOWN = "–"
STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
VENDORED = {
    "uplot/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uplot/uPlot.min.css": "text/css; charset=utf-8",
}
"""uPlot, which the set-up fetches (docs/console.md). Without it, charts are SVG images."""
FOREVER = "public, max-age=31536000, immutable"


class StaticFiles:
    """Styles, scripts and the icon: read once, and named by their content.

    Attributes:
        has_uplot: whether charts can be enlarged and measured.
    """

    def __init__(self) -> None:
        """Read them."""
        folder = resources.files("fastbk.console") / "static"
        self._files: dict[str, tuple[bytes, str]] = {}
        for name, kind in (STATIC | VENDORED).items():
            if (content := _content(folder, name)) is not None:
                self._files[name] = content, kind
        self.has_uplot = all(name in self._files for name in VENDORED)
        self._versions = {
            name: hashlib.sha256(content).hexdigest()[:12]
            for name, (content, _) in self._files.items()
        }

    def url(self, name: str) -> str:
        """Return where a file is. Raises KeyError."""
        return f"/static/{name}?v={self._versions[name]}"

    def answer(self, name: str) -> Response:
        """Return a file."""
        found = self._files.get(name)
        if found is None:
            return Response("there is no such file\n", 404)
        content, kind = found
        return Response(content, headers={"content-type": kind, "cache-control": FOREVER})


def _content(folder: Traversable, name: str) -> bytes | None:
    try:
        return folder.joinpath(*name.split("/")).read_bytes()
    except FileNotFoundError:
        return None


class Renderer:
    """Makes pages of templates."""

    def __init__(self, static: StaticFiles) -> None:
        self.static = static
        self._environment = Environment(
            loader=PackageLoader("fastbk.console"), autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._environment.filters.update(FILTERS)
        self._environment.globals.update(
            static=static.url,
            has_uplot=static.has_uplot,
            sparkline=sparkline,
            link=link,
            now_s=time.time,
        )

    def page(self, template: str, values: dict[str, Any], status: int = 200) -> HTMLResponse:
        """Return a page."""
        return HTMLResponse(self._environment.get_template(template).render(values), status)


def link(*words: object, **query: object) -> str:
    """Return the path of these words, each of which may have slashes; what is None or "" of the query is left out."""
    path = "/" + "/".join(quote(str(word), safe="/@:+=~-_.") for word in words)
    given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


# --- small charts -----------------------------------------------------------------------------------------------------

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
    """Return a line of these points as an SVG image, with `label` for people who do not see it.

    It needs no script. Its colours are those of the style sheet's classes, so that it follows dark and light.
    """
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
    lines = [stroke for stroke in strokes if len(stroke) > 1]
    path = "".join(_path(line) for line in lines)
    area = "".join(
        f"{_path(line)}L{line[-1][0]:.1f} {height}L{line[0][0]:.1f} {height}Z" for line in lines
    )
    return head + Markup(
        '<path class="spark-area" d="{}"/><path class="spark-line" d="{}"/></svg>'
    ).format(area, path)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


# --- figures as words -------------------------------------------------------------------------------------------------


def _or_not_known(value: float | None, text: str) -> str:
    return NOT_KNOWN if value is None else text


def _size(value: float | None) -> str:
    return NOT_KNOWN if value is None else format_size(int(value))


def _amount(value: float | None) -> str:
    return (
        NOT_KNOWN
        if value is None
        else format_amount(round(value) if value >= 100 else round(value, 1))
    )


def _milliseconds(value_s: float | None) -> str:
    if value_s is None:
        return NOT_KNOWN
    value_ms = 1000 * value_s
    return f"{value_ms:.2f} ms" if value_ms < 10 else f"{value_ms:,.0f} ms"


def _age(value_s: float | None) -> str:
    return NOT_KNOWN if value_s is None else format_age_s(value_s)


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else f"{100 * share:.0f} %"


def _utc(at_s: float | None) -> str:
    if at_s is None or at_s <= 0:
        return NOT_KNOWN
    return format_utc_ms(int(at_s * 1000)).removesuffix(" UTC")


def _since(at_s: float | None) -> str:
    return NOT_KNOWN if at_s is None or at_s <= 0 else f"{format_age_s(time.time() - at_s)} ago"


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:,.0f}"


FILTERS: dict[str, Any] = {
    "size": _size,
    "amount": _amount,
    "ms": _milliseconds,
    "age": _age,
    "span": format_span_s,
    "percent": _percent,
    "utc": _utc,
    "since": _since,
    "number": _number,
    "counted": format_count,
    "json": lambda value: json.dumps(value, ensure_ascii=False),
}
