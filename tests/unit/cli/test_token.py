"""`fastbk token`: keys, tokens and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastbk.security.tokens import TokenKeys
from tests.fixtures.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(f"sqlite:{tmp_path}/metadata.sqlite")
    made("metadata", "init")
    return made


def test_from_a_key_to_a_token_that_bookies_accept(cli: Cli, tmp_path: Path) -> None:
    private, public, token = tmp_path / "sign.json", tmp_path / "keys.json", tmp_path / "app.token"
    cli("token", "key", str(private), "--public", str(public), "--key-id", "k1")
    assert (private.stat().st_mode & 0o777, public.stat().st_mode & 0o777) == (0o600, 0o644)
    assert '"d"' in private.read_text()
    assert '"d"' not in public.read_text()
    sign = ("token", "create", "--key-file", str(private), "--subject", "app")
    cli(*sign, "--out", str(token), "--lifetime", "1h")
    assert token.stat().st_mode & 0o777 == 0o600
    shown = json.loads(cli("token", "show", str(token)))
    assert (shown["sub"], shown["key"], shown["ops"]) == ("app", "k1", ["read", "add", "recover"])
    found = TokenKeys.load(str(public)).verify(token.read_bytes().strip(), shown["aud"])
    assert found.name == "token:app"
    # The next key stands beside the first, for as long as its tokens are in use.
    cli("token", "key", str(tmp_path / "next.json"), "--public", str(public), "--key-id", "k2")
    keys = TokenKeys.load(str(public))
    assert ("k1" in keys, "k2" in keys) == (True, True)
    printed = cli(*sign, "--operations", "read", "--audience", "elsewhere").strip()
    assert keys.verify(printed.encode(), "elsewhere").key_id == "k1"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("key", "{f}/sign.json", "--public", "{f}/keys.json"),
            "exists: it may be a key that is in use",
        ),
        (
            ("key", "{f}/new.json", "--public", "{f}/keys.json", "--key-id", "k1"),
            "has a key 'k1' already",
        ),
        (("create", "--key-file", "{f}/keys.json", "--subject", "a"), "others can read"),
        (("create", "--key-file", "{f}/none", "--subject", "a"), "No such file"),
        (
            ("create", "--key-file", "{f}/sign.json", "--subject", "a", "--operations", "root"),
            "some of read",
        ),
        (
            ("create", "--key-file", "{f}/sign.json", "--subject", "a", "--lifetime", "long"),
            "--lifetime",
        ),
        (("show", "{f}/sign.json"), "is no token"),
    ],
)
def test_what_cannot_be_done_is_said(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    cli(
        "token",
        "key",
        str(tmp_path / "sign.json"),
        "--public",
        str(tmp_path / "keys.json"),
        "--key-id",
        "k1",
    )
    code, _ = cli.run("token", *(word.format(f=tmp_path) for word in words))
    assert (code, reason in cli.err) == (2, True), cli.err
