"""Contexts: what the file holds, which of several sources names the cluster, and that no secret is stored or leaks."""

from __future__ import annotations

import argparse
import json
import stat
import tomllib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from fastbk.cli import __main__ as cli
from fastbk.cli import context
from fastbk.cli.context import Context, apply
from fastbk.errors import ConfigError

PRODUCTION = "zk+hierarchical://zk1:2181/ledgers"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder of this test's own, and an environment that names nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (*context._REPLACED, context.NAME_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "fastbk"


def secret(path: Path, text: str = "not to be stored") -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def add(*words: str) -> int:
    return cli.main(["context", "add", *words])


def given(**values: str | None) -> argparse.Namespace:
    return argparse.Namespace(**{"metadata": None, "context": None, **values})


def test_the_file_is_its_owners_and_has_paths_but_no_secrets(home: Path, tmp_path: Path) -> None:
    token = secret(tmp_path / "token")
    assert (
        add("production", "--metadata", PRODUCTION, "--token-file", str(token), "--tls", "--use")
        == 0
    )
    file = home / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = tomllib.loads(file.read_text())
    wanted = {"metadata": PRODUCTION, "tls": True, "token_file": str(token)}
    assert found == {"current": "production", "contexts": {"production": wanted}}
    assert "not to be stored" not in file.read_text()


def test_paths_are_stored_as_absolute_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret(tmp_path / "token")
    monkeypatch.chdir(tmp_path)
    assert add("a", "--metadata", PRODUCTION, "--token-file", "token") == 0
    assert context.load().named("a").token_file == str(tmp_path / "token")


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "a" * 65, 'q"', "ü"])
def test_a_name_that_could_be_misread_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a context's name"):
        context.checked_name(name)


def test_a_secret_that_others_can_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = secret(tmp_path / "token")
    token.chmod(0o644)
    assert add("a", "--metadata", PRODUCTION, "--token-file", str(token)) == 2
    assert f"chmod o= {token}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "--metadata", "nowhere"), "has no scheme"),
        (("a", "--metadata", "zk+hierarchical://h:99999/x"), "is not a server"),
        (("a", "--metadata", PRODUCTION, "--user", "ann"), "--user-password-file"),
        (("a", "--metadata", PRODUCTION, "--token-file", "/nowhere/token"), "No such file"),
    ],
)
def test_what_could_not_work_is_not_stored(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(*words) == 2
    assert said in capsys.readouterr().err
    assert context.load().contexts == {}


def test_a_file_that_others_can_change_is_refused(home: Path) -> None:
    """It could send a token to another cluster."""
    add("a", "--metadata", PRODUCTION)
    (home / "contexts.toml").chmod(0o666)
    with pytest.raises(ConfigError, match="others can change"):
        context.load()


def test_a_damaged_file_says_what_to_do(home: Path) -> None:
    home.mkdir(parents=True)
    (home / "contexts.toml").write_text("contexts = 3\n")
    with pytest.raises(ConfigError, match="Mend it by hand"):
        context.load()


ENVIRONMENT = {
    "FASTBK_METADATA": "sqlite:/env",
    "FASTBK_TOKEN_FILE": "/env/token",
    "FASTBK_CONTEXT": "b",
}
A = {"FASTBK_METADATA": "sqlite:/a", "FASTBK_TOKEN_FILE": "/a/token"}
B = {"FASTBK_METADATA": "sqlite:/b", "FASTBK_TLS_CA_FILE": "/b/ca", "FASTBK_TLS": "1"}


@pytest.mark.parametrize(
    ("options", "environment", "wanted"),
    [
        # `--metadata` names a cluster: no context's credentials go there.
        ({"metadata": "sqlite:/option"}, {"FASTBK_CONTEXT": "b"}, {"FASTBK_CONTEXT": "b"}),
        # `--context` is the context alone: no other cluster's token goes there.
        ({"context": "b"}, ENVIRONMENT, {**B, "FASTBK_CONTEXT": "b"}),
        ({}, ENVIRONMENT, ENVIRONMENT),
        ({}, {"FASTBK_CONTEXT": "b"}, {**B, "FASTBK_CONTEXT": "b"}),
        ({}, {"FASTBK_CONTEXT": "b", "FASTBK_TLS_CA_FILE": "/env/ca"},
         {**B, "FASTBK_CONTEXT": "b", "FASTBK_TLS_CA_FILE": "/env/ca"}),
        ({}, {}, A),
        ({}, {"FASTBK_TOKEN_FILE": "/env/token"}, {**A, "FASTBK_TOKEN_FILE": "/env/token"}),
    ],
)  # fmt: skip
def test_which_source_names_the_cluster(
    options: dict[str, str], environment: dict[str, str], wanted: dict[str, str]
) -> None:
    with context.changed() as found:
        found.current = "a"
        found.contexts["a"] = Context(metadata="sqlite:/a", token_file="/a/token")
        found.contexts["b"] = Context(metadata="sqlite:/b", tls_ca_file="/b/ca")
    after = dict(environment)
    apply(given(**options), after)
    assert after == wanted


def test_two_names_of_a_cluster_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        apply(given(metadata="sqlite:/x", context="a"), {})


def test_an_unknown_context_names_those_that_are_there() -> None:
    add("a", "--metadata", PRODUCTION)
    with pytest.raises(ConfigError, match=r"no context 'b' in .*; there are: a"):
        apply(given(context="b"), {})


def test_list_show_use_and_remove(capsys: pytest.CaptureFixture[str]) -> None:
    add("a", "--metadata", "sqlite:/a")
    add("b", "--metadata", "sqlite:/b", "--use")
    capsys.readouterr()
    assert cli.main(["context", "ls", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out) if one["in_use"]] == ["b"]
    assert cli.main(["context", "use", "a"]) == 0
    assert cli.main(["context", "show"]) == 0
    assert "FASTBK_METADATA=sqlite:/a" in capsys.readouterr().out
    assert cli.main(["context", "rm", "a"]) == 0
    assert context.load() == context.Contexts(contexts={"b": Context(metadata="sqlite:/b")})
    assert cli.main(["context", "show"]) == 2
    assert "no context is in use" in capsys.readouterr().err


def _add_some(first: int) -> None:
    for number in range(first, first + 10):
        with context.changed() as found:
            found.contexts[f"c{number}"] = Context(metadata="sqlite:/x")


def test_several_processes_lose_no_context_of_each_other() -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        list(pool.map(_add_some, (0, 10, 20)))
    assert set(context.load().contexts) == {f"c{number}" for number in range(30)}
