"""The file of users, that of revocations, and a client's credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.errors import ConfigError
from fastbk.safe_files import read_password, write_text
from fastbk.security.auth_files import load_revocations, load_users, read_revocations, users_of
from fastbk.security.credentials import Credentials

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
