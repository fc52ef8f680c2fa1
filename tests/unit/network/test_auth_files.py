"""Files of keys, users and revocations that change while a bookie runs."""

from __future__ import annotations

from pathlib import Path

from fastbk.auth.rights import Principal, Right
from fastbk.private_files import write_text
from fastbk.server.configuration.authentication import AuthenticationSettings
from fastbk.server.network.auth_files import AuthFiles
from tests.fixtures.logins import KEY

OTHER = "token:other"


def files_of(folder: Path, revoked: str) -> AuthFiles:
    write_text(folder / "keys", KEY.public_text())
    write_text(folder / "revoked", revoked)
    return AuthFiles(
        AuthenticationSettings(
            methods=("token",), token_keys_file=str(folder / "keys"), revoked_file=str(folder / "revoked")
        )
    )


def is_revoked(files: AuthFiles, name: str) -> bool:
    return files.why_revoked(Principal(name=name, rights=Right.READ)) != ""


def test_a_revocation_counts_beside_a_wrong_line_and_none_is_taken_back(tmp_path: Path) -> None:
    files = files_of(tmp_path, "token:first\n")
    write_text(tmp_path / "revoked", "token first\ntoken:second\n")
    assert files.has_changed()
    assert is_revoked(files, "token:first")
    assert is_revoked(files, "token:second")
    assert not is_revoked(files, OTHER)
    write_text(tmp_path / "revoked", "token:second\n")
    assert files.has_changed()
    assert not is_revoked(files, "token:first")
    assert is_revoked(files, "token:second")
    assert not files.has_changed()


def test_a_revocation_counts_beside_a_broken_file_of_keys(tmp_path: Path) -> None:
    files = files_of(tmp_path, "")
    (tmp_path / "keys").write_text("{")
    write_text(tmp_path / "revoked", f"{OTHER}\n")
    assert files.has_changed()
    assert is_revoked(files, OTHER)
    assert files.keys is not None
    assert KEY.key_id in files.keys
