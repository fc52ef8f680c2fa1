"""The settings of tags: what belongs together, and where the private key must not lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastbk.errors import ConfigError
from fastbk.safe_files import write_text
from fastbk.security.auth_files import check_files
from fastbk.security.settings import (
    AuthenticationSettings,
    AuthorizationSettings,
    TlsSettings,
    authentication_problems,
)
from fastbk.security.tokens import TokenKey
from tests.fixtures.logins import KEY

TAGS = TokenKey.generate("tags-1")


def test_the_settings_say_what_is_missing(tmp_path: Path) -> None:
    tls = TlsSettings(mode="require", certificate_file="/keys/tls.crt", key_file="/keys/tls.key")

    def wrong(**changes: Any) -> list[str]:
        values = {"methods": ("token",), "token_keys_file": "/public/keys", **changes}
        return list(
            authentication_problems(AuthenticationSettings(**values), AuthorizationSettings(), tls)
        )

    both = {"tag_keys_file": "/public/tags", "tag_key_file": "/signing/tags"}
    assert wrong() == wrong(**both) == []
    for one in both:
        assert wrong(**{one: both[one]}) == [
            "[authentication] tag_keys_file and tag_key_file go together"
        ]
    for folder in ("/public", "/public/below", "/keys"):
        (problem,) = wrong(**{**both, "tag_key_file": f"{folder}/tags"})
        assert "tag_key_file must not lie below" in problem
    # What counts is where it lies, by whatever name.
    (tmp_path / "keys").mkdir()
    (tmp_path / "signing").symlink_to(tmp_path / "keys")
    linked = {
        "token_keys_file": str(tmp_path / "keys" / "k"),
        "tag_key_file": str(tmp_path / "signing" / "tags"),
    }
    assert "tag_key_file must not lie below" in wrong(**{**both, **linked})[0]
    assert "tag_key_file must not lie below" in wrong(**both, token_keys_file="/keys.json")[0]
    assert 'add "token" to methods' in wrong(**both, methods=(), token_keys_file="")[0]
    settings_ = AuthenticationSettings(
        tag_keys_file=str(tmp_path / "public"), tag_key_file=str(tmp_path / "own")
    )
    write_text(tmp_path / "own", TAGS.text())
    write_text(tmp_path / "public", TAGS.public_text())
    check_files(settings_)
    write_text(tmp_path / "public", KEY.public_text())
    with pytest.raises(ConfigError, match="does not have the key of"):
        check_files(settings_)
