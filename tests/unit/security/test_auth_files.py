"""Files of keys, users and revocations that change while a bookie runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.safe_files import read_password, write_text
from fastbk.security.auth_files import (
    AuthFiles,
    can_be_revoked,
    load_revocations,
    load_users,
    read_revocations,
    users_of,
)
from fastbk.security.credentials import Credentials
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


# The file of users, that of revocations, and a client's credentials.


FILE = """
// bookies
Bookie { /* as Apache's documentation has it */
    org.apache.zookeeper.server.auth.DigestLoginModule required
        user_alice="se\\"cret"   # a comment
        debug=true
        user_bookkeeper=plain;
};
Auditor { a.B required username="x" password="y"; };
"""


def file_of(tmp_path: Path, text: str, name: str = "file") -> str:
    write_text(tmp_path / name, text)
    return str(tmp_path / name)


def test_a_login_configuration_of_java_is_read(tmp_path: Path) -> None:
    path = file_of(tmp_path, FILE)
    assert load_users(path, "Bookie") == {"alice": 'se"cret', "bookkeeper": "plain"}
    with pytest.raises(ConfigError, match="no section Other"):
        load_users(path, "Other")
    with pytest.raises(ConfigError, match="names no user"):
        load_users(path, "Auditor")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no section"),
        ("Bookie", "f:1: expected `{`"),
        ("Bookie { a.B required user_a=", "f:1: expected a value"),
        ('Bookie { a.B required\nuser_a "hidden"; };', "f:2: expected `=`"),
        ('Bookie { a.B required user_a="hidden', "f:1: expected a value|a word"),
        ('Bookie { a.B required user_a="hid\nden"; };', "expected"),
        ('Bookie { a.B required user_a="hidden" };', "expected an option or `;`"),
        ('Bookie { a.B required user_a="hidden"; }', "expected `;`"),
        ('Bookie { a.B required user_="hidden"; };', "1 to 255 bytes"),
        ('= { a.B required user_a="hidden"; };', "expected a word"),
    ],
)
def test_what_is_wrong_is_named_without_a_password(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        users_of(text, "Bookie", "f")
    assert "hid" not in str(raised.value)


def test_secrets_that_others_can_read_are_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, FILE)
    Path(path).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod o= "):
        load_users(path, "Bookie")
    with pytest.raises(ConfigError, match="others can read"):
        read_password(path)
    with pytest.raises(ConfigError, match="No such file"):
        load_users(str(tmp_path / "none"), "Bookie")


def test_revocations(tmp_path: Path) -> None:
    path = file_of(tmp_path, "# comment\nuser:alice\n\n key:k1 # why\nid:77\n")
    assert load_revocations(path) == {"user:alice", "key:k1", "id:77"}
    for wrong in ("alice", "users:alice", "user:"):
        with pytest.raises(ConfigError, match=":1: must be user:NAME"):
            load_revocations(file_of(tmp_path, wrong))


def test_a_wrong_line_leaves_the_other_revocations(tmp_path: Path) -> None:
    found, wrong = read_revocations(file_of(tmp_path, "user:alice\nbob\nid:77\nkey:\n"))
    assert found == {"user:alice", "id:77"}
    assert ":2: must be user:NAME" in wrong


def test_credentials_of_the_environment(tmp_path: Path) -> None:
    assert Credentials.from_environment({}) is None
    given = Credentials(token_file="t", user="u", password_file="p", sasl_without_tls=True)
    assert Credentials.from_environment(given.environment()) == given
    with pytest.raises(ConfigError, match="must be 0 or 1"):
        Credentials.from_environment({"FASTBK_SASL_WITHOUT_TLS": "yes"})


def test_credentials_are_checked_before_they_are_used(tmp_path: Path) -> None:
    token, password = file_of(tmp_path, "abc\n", "token"), file_of(tmp_path, "pw\n", "password")
    Credentials(token_file=token).check(is_encrypted=True)
    assert Credentials(token_file=token).token() == b"abc"
    Credentials(user="u", password_file=password, sasl_without_tls=True).check(is_encrypted=False)
    cases = [
        (Credentials(), True, "give a token file"),
        (Credentials(user="u"), True, "go together"),
        (Credentials(password_file=password), True, "give a token file"),
        (Credentials(token_file=token), False, "a token needs TLS"),
        (Credentials(user="u", password_file=password), False, "a user needs TLS"),
        (Credentials(token_file=str(tmp_path / "none")), True, "No such file"),
        (Credentials(token_file=file_of(tmp_path, "", "empty")), True, "1 to 4096 bytes, not 0"),
        (Credentials(user="a\nb", password_file=password), True, "control characters"),
    ]
    for credentials, is_encrypted, reason in cases:
        with pytest.raises(ConfigError, match=reason):
            credentials.check(is_encrypted=is_encrypted)
