"""What a write service's file must not say, and what it is called by others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.cli.__main__ import main
from fastbk.config import from_document
from fastbk.errors import ConfigError
from fastbk.producers.configuration import ServeConfig, advertised_address, id_of
from fastbk.stream.services import SERVICE_ID

STORE = '[metadata]\nuri = "sqlite:/var/lib/fastbk/metadata.sqlite"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[metadata]\nuri = "memory:x"\n', "must name the metadata store"),
        (STORE + '[serve]\nlisten = "nowhere"\n', "is not host:port"),
        (STORE + '[serve]\nlisten = "0.0.0.0:3183"\n', "no address that others reach it by"),
        (STORE + '[serve]\nadvertised = "a~b"\n', "is no address"),
        (STORE + '[serve]\nid = "a b"\n', "1 to 64 letters"),
        (STORE + '[serve]\npending_max = "8MiB"\nmemory_max = "8MiB"\n', "twice pending_max"),
        (STORE + '[tls]\nmode = "prefer"\n', 'must be "require" or "off"'),
        (
            STORE + '[authentication]\nmethods = ["sasl"]\nusers_file = "/u"\n',
            'takes "token" and "certificate"',
        ),
        (
            STORE + '[authentication]\nmethods = ["token"]\ntoken_keys_file = "/k"\n',
            'mode must not be "off"',
        ),
        (STORE + '[authorization]\nreaders = ["token:a"]\n', "needs [authentication] methods"),
        (STORE + "[server]\n", "did you mean serve"),
        (STORE + '[client]\ntoken_file = "/none.token"\n', "a token needs TLS"),
    ],
)
def test_a_file_that_forbids_a_start_says_why(
    tmp_path: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    assert main(["serve", "--config", str(path), "--check"]) == 2
    assert reason in capsys.readouterr().err


def test_a_trial_needs_only_a_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FASTBK_METADATA", raising=False)
    path = tmp_path / "serve.toml"
    path.write_text(STORE)
    assert main(["serve", "--config", str(path), "--check"]) == 0
    assert main(["serve", "--metadata", "sqlite:/x", "--listen", "127.0.0.1:0", "--check"]) == 0
    assert "a write service would start with it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("serve", "address"),
    [
        ({"listen": "10.0.0.5:3183"}, "10.0.0.5:9"),
        ({"listen": "[::1]:3183"}, "[::1]:9"),
        ({"listen": "0.0.0.0:3183", "advertised": "host.example"}, "host.example:9"),
        ({"listen": "0.0.0.0:3183", "advertised": "host:99"}, "host:99"),
        ({"listen": "0.0.0.0:3183", "advertised": "[fd00::1]:99"}, "[fd00::1]:99"),
        ({"listen": "0.0.0.0:3183", "advertised": "fd00::1"}, "[fd00::1]:9"),
    ],
)
def test_others_reach_it_by_its_advertised_address(serve: dict[str, str], address: str) -> None:
    config = from_document({"serve": serve}, ServeConfig, "test")
    assert advertised_address(config, 9) == address
    assert SERVICE_ID.fullmatch(id_of(config, address))
    config = from_document({"serve": {**serve, "id": "one"}}, ServeConfig, "test")
    assert id_of(config, address) == "one"


def test_a_key_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        from_document({"serve": {"listn": "x"}}, ServeConfig, "test")
