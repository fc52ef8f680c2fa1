"""When the certificates of this process end: lines of `/metrics`, and events that say soon, now, and renewed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Literal

from fastbk.observe import logs
from fastbk.observe.prometheus import family, number, quoted
from fastbk.units import format_utc_ms

if TYPE_CHECKING:
    from fastbk.security.tls import TlsFiles

SOON_S = 14 * 86_400.0
"""As early as the alert FastbkCertificateEnds."""
INTERVAL_S = 60.0
AGAIN_S = 86_400.0
"""How often the same is logged again."""

State = Literal["good", "soon", "ended", "unreadable"]
_EVENTS = {
    "soon": "certificate.ends_soon",
    "ended": "certificate.ended",
    "unreadable": "certificate.unreadable",
}


class CertificateStates:
    """What was logged of each file, and when."""

    def __init__(self) -> None:
        self._logged: dict[str, tuple[State, float]] = {}

    def check(self, ends_s: Mapping[str, float], now_s: float) -> None:
        """Log what has changed, or is as bad as a day ago. `ends_s`: Unix time by path; NaN: it cannot be read."""
        for path, end_s in ends_s.items():
            state = _state(end_s, now_s)
            before, logged_s = self._logged.get(path, ("good", now_s))
            if state == before and (state == "good" or now_s - logged_s < AGAIN_S):
                continue
            self._logged[path] = (state, now_s)
            if state == "unreadable":
                next_step = (
                    "the process goes on with what it read before; `fastbk doctor` shows the fault"
                )
                logs.warning(_EVENTS[state], file=path, next=next_step)
                continue
            days_left = math.floor((end_s - now_s) / 86_400)
            facts = {"file": path, "ends": format_utc_ms(int(end_s * 1000)), "days_left": days_left}
            if state == "good":
                logs.info("certificate.renewed", **facts)
            else:
                write = logs.error if state == "ended" else logs.warning
                write(
                    _EVENTS[state],
                    **facts,
                    next="replace the file; it is read again while the process runs",
                )


def _state(end_s: float, now_s: float) -> State:
    if math.isnan(end_s):
        return "unreadable"
    return "ended" if end_s <= now_s else "soon" if end_s - now_s < SOON_S else "good"


@contextlib.asynccontextmanager
async def watched_certificates(files: TlsFiles | None) -> AsyncGenerator[None, None]:
    """Check the certificates of `files` while the block runs; None: there are none."""
    if files is None:
        yield
        return
    task = asyncio.create_task(_watch(files), name="fastbk certificates")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch(files: TlsFiles) -> None:
    from fastbk.security.certificates import CertificateEnds  # 40 ms

    ends, states = CertificateEnds(files), CertificateStates()
    while True:
        states.check(await asyncio.to_thread(ends.ends_s), time.time())
        await asyncio.sleep(INTERVAL_S)


def certificate_lines(files: TlsFiles) -> Callable[[], list[str]]:
    """Return what makes the lines of `/metrics` about certificate and authorities."""
    from fastbk.security.certificates import CertificateEnds  # 40 ms

    ends = CertificateEnds(files)

    def lines() -> list[str]:
        text = "When the first certificate of a file ends, in seconds of Unix time; NaN: it cannot be read."
        series = [
            (f'file="{quoted(path)}"', number(end_s)) for path, end_s in ends.ends_s().items()
        ]
        return family("fastbk_tls_certificate_end_seconds", "gauge", text, series) if series else []

    return lines
