"""A ledger's password: from a file, a variable, or the terminal; it is no argument."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fastbk.cli.data_files import VARIABLE, add_password, password_of
from fastbk.errors import ConfigError


def given(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_password(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("content", "found"), [(b"pw", b"pw"), (b"pw\n", b"pw"), (b"p w\n\n", b"p w\n"), (b"", b"")]
)
def test_a_file_has_it_and_a_newline_at_its_end_does_not_count(
    content: bytes, found: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    assert password_of(given("--password-file", str(path))) == found


def test_a_file_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "from the variable")
    assert password_of(given()) == b"from the variable"
    path = tmp_path / "secret"
    path.write_bytes(b"from the file")
    assert password_of(given("--password-file", str(path))) == b"from the file"
    monkeypatch.delenv(VARIABLE)
    assert password_of(given()) == b""


def test_a_file_that_cannot_be_one_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it"):
        password_of(given("--password-file", str(tmp_path / "none")))
    (tmp_path / "large").write_bytes(bytes(5000))
    with pytest.raises(ConfigError, match="more than 4096"):
        password_of(given("--password-file", str(tmp_path / "large")))


def test_it_is_no_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        given("--password", "pw")
    said = capsys.readouterr().err
    assert "list of processes: give --password-file FILE" in said and " pw" not in said
