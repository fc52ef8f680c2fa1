"""No secret leaves: those that are known, those that look like one, and those that stand under a telling name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec import inspect

from fastbk.admin.support_bundle import (
    _STRINGS,
    LEFT_OUT,
    REMOVED,
    Redactor,
    allowed_setting,
    allowed_settings,
    is_sensitive,
    known_secrets,
)
from fastbk.server.configuration.bookie_config import BookieConfig

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "pl4nted-S3cret"


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f"Password: {SECRET}",
        f'{{"password": "{SECRET}"}}',
        f'\\"user_password\\": \\"{SECRET}\\"',
        f"--password {SECRET}".replace(" ", "="),
        f"zk://ann:{SECRET}@host:2181/ledgers",
        f"Authorization: Bearer {SECRET}",
        f"FASTBK_LEDGER_PASSWORD={SECRET}",
        f"token = '{SECRET}'",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}",
        f"eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.{SECRET}",
        f"api_key={SECRET}&x=1",
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str) -> None:
    assert SECRET not in Redactor().text(text)
    assert REMOVED in Redactor().text(text)


@pytest.mark.parametrize(
    "text",
    [
        "token_file=/etc/fastbk/token",
        "tls.key_password_file = /etc/fastbk/tls.password",
        "ledger 17 from entry 3: bookie-2: not registered",
        "zk+hierarchical://zk1:2181;zk2:2181/ledgers",
        "tokens_checked=17 passed=3",
        '{"event":"journal.rolled","role":"journal","sequence":7}',
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert Redactor().line(text) == text


def test_a_long_word_takes_as_long_as_it_is() -> None:
    """A line of a log may be one: looked at from each of its digits on, it took minutes."""
    word = "0" * (1 << 18)
    assert Redactor().text(f"{word} my_password=abc") == f"{word} my_password=(removed)"


def test_a_known_secret_is_removed_wherever_it_stands(tmp_path: Path) -> None:
    files = {
        "password": SECRET,
        "keys.json": json.dumps({"keys": [{"kid": "a", "d": "Zm9vYmFyYmF6cXV4"}]}),
        "users": 'FastbkUsers {\n  user_ann="open sesame 7";\n};',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    known = known_secrets(
        {"FASTBK_LEDGER_PASSWORD": "v4ri4ble"}, [str(tmp_path / name) for name in (*files, "gone")]
    )
    redactor = Redactor(known)
    said = f"x{SECRET}y Zm9vYmFyYmF6cXV4 open sesame 7 v4ri4ble"
    assert redactor.text(said) == f"x{REMOVED}y {REMOVED} {REMOVED} {REMOVED}"
    assert redactor.value({SECRET: [{"a": (said,)}], "n": 7}) == {
        REMOVED: [{"a": [f"x{REMOVED}y {REMOVED} {REMOVED} {REMOVED}"]}], "n": 7}  # fmt: skip


def test_telling_names_in_json_hide_their_values() -> None:
    given = {
        "password": "a",
        "tokens": 7,
        "masterKey": ["b"],
        "key_file": "/k",
        "user_password": {"c": 1},
    }
    assert Redactor().value(given) == {
        "password": REMOVED, "tokens": 7, "masterKey": REMOVED, "key_file": "/k", "user_password": REMOVED}  # fmt: skip
    assert is_sensitive("FASTBK_LEDGER_PASSWORD") and not is_sensitive("FASTBK_TOKEN_FILE")


def test_a_setting_whose_text_nobody_has_allowed_is_left_out() -> None:
    assert allowed_setting("authentication.users_allowed", "text") == LEFT_OUT
    assert allowed_setting("new.setting", "text") == LEFT_OUT
    assert allowed_setting("new.setting", 7) == 7
    assert allowed_setting("bookie.id", "bookie-1") == "bookie-1"
    assert allowed_settings(BookieConfig())["journal.sync"] == "always"


def test_settings_that_may_leave_are_there() -> None:
    """A setting that got another name must not be allowed by its old one."""
    names = {
        f"{section.name}.{field.name}"
        for section in msgspec.structs.fields(BookieConfig)
        for field in inspect.type_info(section.type).fields  # type: ignore[attr-defined]
    }
    assert names >= _STRINGS
