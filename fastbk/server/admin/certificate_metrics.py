"""When a process's certificates end, for its `/metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.observe.prometheus import family, number, quoted
from fastbk.security.certificates import CertificateEnds

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.security.tls import TlsFiles


def certificate_lines(files: TlsFiles) -> Callable[[], list[str]]:
    """Return what makes the lines of certificate and authorities."""
    ends = CertificateEnds(files)

    def lines() -> list[str]:
        text = "When the first certificate of a file ends, in seconds of Unix time; NaN: it cannot be read."
        series = [
            (f'file="{quoted(path)}"', number(end_s)) for path, end_s in ends.ends_s().items()
        ]
        return family("fastbk_tls_certificate_end_seconds", "gauge", text, series) if series else []

    return lines
