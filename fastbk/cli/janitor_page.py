"""What a janitor counts, as a page for Prometheus: `fastbk janitor --http HOST:PORT`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.server.admin.http import METRICS, TEXT, PageServer, Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.stream.janitor import Janitor

TEXTS = {
    "passes": "passes over all streams, those that were ended early too",
    "streams": "streams that were looked at",
    "rolled": "idle segments that were ended",
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
    lines: list[str] = []
    for name, count in janitor.counts.as_dict().items():
        lines += _lines(f"{name}_total", "counter", TEXTS[name], str(count))
    lines += _lines(
        "early_ends_total", "counter", "passes that something ended early", str(janitor.early_ends)
    )
    took_s, ended_s = janitor.last_pass_s, janitor.last_pass_ended_s
    lines += _lines(
        "last_pass_seconds", "gauge", "how long the last whole pass took", _seconds(took_s)
    )
    lines += _lines(
        "last_pass_age_seconds", "gauge", "since the last whole pass ended; NaN before the first",
        _seconds(None if ended_s is None else clock() - ended_s),
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def _seconds(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.6f}"


def _lines(name: str, kind: str, text: str, value: str) -> list[str]:
    metric = f"fastbk_janitor_{name}"
    return [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}", f"{metric} {value}"]


async def serve(janitor: Janitor, host: str, port: int) -> PageServer:
    """Listen, and answer `/metrics` and `/livez` until it is closed. Raises OSError."""
    server = PageServer()

    async def metrics(request: Request) -> Response:
        if request.method != "GET":
            return 405, TEXT, b"not for this path\n"
        return 200, METRICS, text_of(janitor).encode()

    async def alive(request: Request) -> Response:
        del request
        return 200, TEXT, b"ok\n"

    server.add_page("/metrics", metrics)
    server.add_page("/livez", alive)
    await server.open(host, port)
    return server
