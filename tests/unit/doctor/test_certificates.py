"""What the doctor says of a bookie's certificates."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from fastbk.doctor import Status
from fastbk.doctor.examine import Tradeoffs
from fastbk.security.authority import Authority, Issued
from fastbk.security.settings import TlsSettings
from fastbk.server.configuration.bookie_config import BookieConfig


def examined(issued: Issued) -> list[tuple[Status, str]]:
    settings = TlsSettings(
        mode="require",
        certificate_file=str(issued.certificate_file),
        key_file=str(issued.key_file),
    )
    findings = Tradeoffs(BookieConfig(tls=settings)).certificates()
    return [(one.status, one.why) for one in findings if one.status != Status.OK]


def test_certificates_that_end_or_name_another_host(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca")
    here = ["127.0.0.1"]
    assert examined(authority.issue(tmp_path / "good", here)) == []
    ((status, why),) = examined(
        authority.issue(tmp_path / "soon", here, valid_for=timedelta(days=3))
    )
    assert (status, "ends in" in why) == (Status.WARN, True)
    ((status, why),) = examined(
        authority.issue(tmp_path / "ended", here, valid_for=timedelta(days=-3))
    )
    assert (status, "3 days ago" in why) == (Status.FAIL, True)
    other = authority.issue(tmp_path / "other", ["a.example"])
    ((status, why),) = examined(other)
    assert (status, "names a.example" in why) == (Status.WARN, True)
    mixed = Issued(tmp_path / "good" / "tls.crt", other.key_file)
    ((status, why),) = examined(mixed)
    assert (status, "not the certificate's" in why) == (Status.FAIL, True)
