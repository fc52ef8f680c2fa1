"""Files of keys, users and revocations that change while a bookie runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.safe_files import write_text
from fastbk.security.auth_files import AuthFiles, can_be_revoked, read_revocations
from fastbk.security.digest_md5 import check_name
from fastbk.security.rights import Principal, Right
from fastbk.security.settings import AuthenticationSettings
from fastbk.security.tokens import TokenError, TokenKeys
from tests.fixtures.logins import KEY

OTHER = "token:other"


def files_of(folder: Path, revoked: str) -> AuthFiles:
    write_text(folder / "keys", KEY.public_text())
    write_text(folder / "revoked", revoked)
    return AuthFiles(
        AuthenticationSettings(
            methods=("token",),
            token_keys_file=str(folder / "keys"),
            revoked_file=str(folder / "revoked"),
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


def test_a_line_revokes_the_name_that_it_says_and_no_other(tmp_path: Path) -> None:
    lines = (
        "# of last week",
        "token:team#1",
        "token:old   # left",
        "  user:a b  ",
        "certificate:#x",
        "token: blank",
    )
    found, wrong = read_revocations(str(files_in(tmp_path, lines)))
    assert found == {"token:team#1", "token:old", "user:a b", "certificate:#x"}
    assert ":6:" in wrong, "a name that begins with a blank is nobody's"


def files_in(folder: Path, lines: tuple[str, ...]) -> Path:
    write_text(folder / "revoked", "\n".join(lines))
    return folder / "revoked"


@pytest.mark.parametrize("subject", [" a", "a ", "a #1", "a\u2028b", "a\n"])
def test_nobody_gets_a_name_that_could_not_be_revoked(subject: str) -> None:
    with pytest.raises(ConfigError):
        KEY.sign(subject, ["read"], "c", lifetime_s=60)
    claims = {"sub": subject, "aud": "c", "exp": 2e9, "ops": ["read"]}
    keys = TokenKeys({KEY.key_id: KEY.private_key.public_key()})
    with pytest.raises(TokenError, match="subject") as caught:
        keys.verify(KEY.signed(claims, "JWT").encode(), "c")
    assert str(caught.value).isprintable()
    with pytest.raises(ConfigError):
        check_name(subject)


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_every_name_that_somebody_gets_can_be_revoked(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = files_in(Path(folder), (f"token:{name}",))
        found, wrong = read_revocations(str(path))
        if can_be_revoked(name):
            assert (found, wrong) == ({f"token:{name}"}, "")
