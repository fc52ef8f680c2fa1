"""What a janitor counts, as a page for Prometheus: `fastbk janitor --http HOST:PORT`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastbk.observe.prometheus import family, quoted, single
from fastbk.web.page_server import METRICS, TEXT, PageServer, Request, Response, refused_lines

if TYPE_CHECKING:
    from fastbk.security.tls import RefreshedContext
    from fastbk.stream.cursor.backlog import CursorGauge, CursorGauges
    from fastbk.stream.janitor import Janitor
    from fastbk.web.page_admission import PageAdmission

TEXTS = {
    "passes": "passes over all streams, those that were ended early too",
    "streams": "streams that were looked at",
    "rolled": "idle segments that were ended",
    "left_closed": "segments that were closed since a dead writer had left entries that readers could not see",
    "segments_deleted": "segments that were deleted",
    "ledgers_deleted": "ledgers that were deleted, orphans too",
    "orphans_deleted": "ledgers that were deleted and were no segment: reserved or made, and never needed",
    "reclaimed_bytes": "bytes of entries of deleted segments; bookies give them back when their gc looks",
    "cursors_expired": "cursors that were deleted as nobody used them",
    "streams_deleted": "streams whose deletion was finished",
    "errors": "streams that could not be worked on in a pass",
}


def text_of(janitor: Janitor, clock: Callable[[], float] = time.monotonic) -> str:
    """Return the page, in the text format 0.0.4."""
    ended_s = janitor.last_pass_ended_s
    rows = [
        (f"{name}_total", "counter", TEXTS[name], str(count))
        for name, count in janitor.counts.as_dict().items()
    ]
    text = "passes that something ended early"
    rows.append(("early_ends_total", "counter", text, str(janitor.early_ends)))
    text = "how long the last whole pass took"
    rows.append(("last_pass_seconds", "gauge", text, _seconds(janitor.last_pass_s)))
    text = "since the last whole pass ended; NaN before the first"
    age_s = None if ended_s is None else clock() - ended_s
    rows.append(("last_pass_age_seconds", "gauge", text, _seconds(age_s)))
    text = "streams whose last record has a time over a minute ahead of this machine's clock"
    rows.append(("streams_ahead", "gauge", text, str(janitor.streams_ahead)))
    lines = [line for name, *rest in rows for line in single(f"fastbk_janitor_{name}", *rest)]
    return "\n".join([*lines, *_cursor_lines(janitor.gauges)]) + "\n"


def _cursor_lines(gauges: CursorGauges) -> list[str]:
    """Return a series for each cursor: of a bounded number (`--cursor-series`)."""
    lines: list[str] = []
    known = [(_labels(one), one) for one in gauges.all()]
    for name, (text, value_of) in CURSOR_TEXTS.items():
        series = [(labels, value_of(one)) for labels, one in known]
        lines += family(f"fastbk_cursor_{name}", "gauge", text, series)
    text = "cursors that have no series, since there are more than --cursor-series"
    return lines + single("fastbk_cursors_left_out", "gauge", text, gauges.left_out)


def _labels(one: CursorGauge) -> str:
    return f'stream="{quoted(one.stream)}",cursor="{quoted(one.cursor)}",by="{quoted(one.by)}"'


def _of_backlog(one: CursorGauge, what: str) -> str:
    return "NaN" if one.backlog is None else f"{getattr(one.backlog, what):.15g}"


CURSOR_TEXTS: dict[str, tuple[str, Callable[[CursorGauge], str]]] = {
    "backlog_records": (
        "records behind a cursor's mark, as the last pass found it; NaN: bookies did not tell",
        lambda one: _of_backlog(one, "records"),
    ),
    "backlog_bytes": ("their bytes, about", lambda one: _of_backlog(one, "size_bytes")),
    "oldest_unread_seconds": (
        "since the first of them was appended; 0: there is none",
        lambda one: _of_backlog(one, "seconds"),
    ),
    "moved_seconds": (
        "since the mark was put where it is",
        lambda one: f"{one.moved_s:.3f}",
    ),
}


def _seconds(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.6f}"


async def serve(
    janitor: Janitor,
    host: str,
    port: int,
    allowed_hosts: Sequence[str] = (),
    tls: RefreshedContext | None = None,
    more_lines: Callable[[], list[str]] = list,
    admission: PageAdmission | None = None,
) -> PageServer:
    """Listen, and answer `/metrics` and `/livez` until it is closed. Raises OSError.

    `allowed_hosts`: further names that clients call this machine by. `more_lines`: of the process, for `/metrics`.
    `admission`: who may use the pages; None: everybody.
    """
    server = PageServer(allowed_hosts, admission)

    async def metrics(request: Request) -> Response:
        if request.method != "GET":
            return 405, TEXT, b"not for this path\n"
        lines = refused_lines("fastbk_janitor_http_refused", server.refused()) + more_lines()
        return 200, METRICS, (text_of(janitor) + "".join(f"{line}\n" for line in lines)).encode()

    async def alive(request: Request) -> Response:
        del request
        return 200, TEXT, b"ok\n"

    server.add_page("/metrics", metrics, is_quick=True)
    server.add_page("/livez", alive, is_quick=True)
    await server.open(host, port, tls)
    return server
