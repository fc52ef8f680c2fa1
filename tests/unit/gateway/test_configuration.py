"""What a gateway's file must not say: each would serve strangers, or nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.cli.__main__ import main
from fastbk.errors import ConfigError
from fastbk.gateway.configuration import load

STORE = '[metadata]\nuri = "sqlite:/var/lib/fastbk/metadata.sqlite"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must name the metadata store"),
        ('[metadata]\nuri = "gateway://other:3182"\n', "must name the metadata store"),
        ('[metadata]\nuri = "memory:x"\n', "must name the metadata store"),
        (STORE + '[gateway]\nlisten = "0.0.0.0:3182"\n', "else everybody may change metadata"),
        (STORE + '[gateway]\nlisten = "nowhere"\n', "is not host:port"),
        (STORE + '[tls]\nmode = "prefer"\n', 'must be "require"'),
        (
            STORE + '[authentication]\nmethods = ["sasl"]\nusers_file = "/u"\n',
            'takes "token" and "certificate"',
        ),
        (
            STORE + '[authentication]\nmethods = ["token"]\ntoken_keys_file = "/k"\n',
            'mode must not be "off"',
        ),
        (STORE + '[authorization]\nreaders = ["token:a"]\n', "needs [authentication] methods"),
        (STORE + "[gatway]\n", "did you mean gateway"),
    ],
)
def test_a_file_that_forbids_a_start_says_why(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_trial_on_loopback_needs_only_a_store(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(STORE)
    assert load(path).gateway.listen == "127.0.0.1:3182"


def test_check_reads_the_files_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(STORE)
    assert main(["gateway", "--config", str(path), "--check"]) == 0
    assert "a gateway would start with it" in capsys.readouterr().out
    path.write_text(
        STORE + '[tls]\nmode = "require"\ncertificate_file = "/none.crt"\nkey_file = "/none.key"\n'
    )
    assert main(["gateway", "--config", str(path), "--check"]) == 2
    assert "/none.crt is missing" in capsys.readouterr().err
    path.write_text(STORE + '[audit]\nfile = "/none/audit.log"\n')
    assert main(["gateway", "--config", str(path), "--check"]) == 2
    assert "make the folder /none" in capsys.readouterr().err
