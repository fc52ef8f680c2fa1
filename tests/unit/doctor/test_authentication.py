"""What the doctor says of the files of authentication and of the audit log's folder."""

from __future__ import annotations

from pathlib import Path

from fastbk.doctor import Status
from fastbk.doctor.examine import Tradeoffs
from fastbk.security.settings import AuditSettings, AuthenticationSettings
from fastbk.server.configuration.bookie_config import BookieConfig


def test_files_of_authentication(tmp_path: Path) -> None:
    revoked = tmp_path / "revoked"
    settings = AuthenticationSettings(methods=("certificate",), revoked_file=str(revoked))
    look = Tradeoffs(BookieConfig(authentication=settings)).authentication
    assert (look().status, "No such file" in look().why) == (Status.FAIL, True)
    revoked.write_text("token:a\nb\n")
    assert (look().status, f"{revoked}:2: must be" in look().why) == (Status.FAIL, True)
    revoked.write_text("token:a\n")
    assert look().status == Status.OK


def test_the_folder_of_the_audit_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    look = Tradeoffs(BookieConfig(audit=AuditSettings(file=f"{folder}/audit.log"))).audit_log
    assert (look().status, look().fix) == (Status.FAIL, f"mkdir -m 0700 {folder}")
    folder.mkdir()
    assert look().status == Status.OK
