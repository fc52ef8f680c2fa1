"""Consent to what cannot be undone, and hints for misspelt verbs."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import fastbk
from fastbk.admin.cluster import BookieState
from fastbk.cli import __main__ as cli
from fastbk.cli.completion import whole_parser
from fastbk.cli.options import add_confirmation, add_json, exit_without_consent, print_json
from fastbk.errors import ConfigError
from fastbk.model.ids import BookieId
from fastbk.wire.messages import InfoReply

ACTION = "delete stream shop/a (3 segments)"
FINAL_VERBS = (
    ("stream", "delete"),
    ("stream", "truncate"),
    ("stream", "seal"),
    ("stream", "cursors"),
    ("namespace", "delete"),
    ("ledger", "delete"),
    ("bookie", "decommission"),
    ("cluster", "cookies"),
    ("metadata", "format"),
)


class Terminal(io.StringIO):
    """Standard input as a terminal at which somebody types this."""

    def isatty(self) -> bool:
        return True


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_confirmation(parser)
    add_json(parser)
    return parser.parse_args(words)


def test_yes_goes_on_without_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_without_consent(options("--yes"), ACTION) is None
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    with pytest.raises(ConfigError, match=r"would delete stream shop/a .* --yes .* --dry-run"):
        exit_without_consent(options(), ACTION)


@pytest.mark.parametrize(("typed", "code"), [("yes\n", None), ("y\n", 1), ("\n", 1), ("", 1)])
def test_a_terminal_is_asked(
    typed: str,
    code: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert exit_without_consent(options(), ACTION) == code
    said = capsys.readouterr()
    assert said.out == "" and f"This will {ACTION}." in said.err
    assert ("nothing was changed" in said.err) == (code is not None)


def test_a_dry_run_says_what_would_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_without_consent(options("--dry-run"), ACTION) == 0
    assert capsys.readouterr().out == f"would {ACTION}; nothing was changed\n"
    assert exit_without_consent(options("--dry-run", "--json", "--yes"), ACTION, {"n": 1}) == 0
    assert json.loads(capsys.readouterr().out) == {"dry_run": True, "action": ACTION, "n": 1}


@pytest.mark.parametrize(("noun", "verb"), FINAL_VERBS)
def test_every_verb_that_cannot_be_undone_has_both_options(
    noun: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([noun, verb, "--help"])
    text = capsys.readouterr().out
    assert "--yes" in text and "--dry-run" in text


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["stream", "delte"], "no verb 'delte': did you mean delete?"),
        (["bookie", "gc", "statsu"], "no verb 'statsu': did you mean status?"),
        (["cluster", "zzz"], "no verb 'zzz': one of status,"),
    ],
)
def test_a_wrong_verb_names_the_nearest(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


def test_a_wrong_value_of_an_option_is_no_wrong_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["ledger", "create", "--digest", "md5"])
    assert "--digest: invalid choice: 'md5'" in capsys.readouterr().err


def test_completion_knows_every_command_and_verb() -> None:
    commands = next(
        action
        for action in whole_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    assert set(commands.choices) == set(cli.COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_completion_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "under-replicated" in script and "decommission" in script


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("cluster und", "under-replicated"),
        ("context ad", "add"),
        ("cluster status --wa", "--watch"),
        ("bookie check --config bo", "bookie.toml"),
        ("inspect journal jo", "journal"),
        ("context use prod", "production"),
        ("cluster status --context prod", "production"),
        ("--context prod", "production"),
    ],
)
def test_bash_completes_with_the_script(
    words: str,
    completed: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli.main(["context", "add", "production", "--metadata", "sqlite:/x"]) == 0
    command = tmp_path / "bin" / "fastbk"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fastbk.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(fastbk.__file__).parents[1]))
    capsys.readouterr()
    (tmp_path / "bookie.toml").touch()
    (tmp_path / "journal").touch()
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    given = ["fastbk", *words.split()]
    ask = (
        f"COMP_WORDS=({' '.join(given)}); COMP_CWORD={len(given) - 1}\n"
        f'$(complete -p fastbk | sed "s/.*-F \\([^ ]*\\).*/\\1/") fastbk {given[-1]} {given[-2]}\n'
        'echo "${COMPREPLY[@]}"\n'
    )
    bash = shutil.which("bash")
    assert bash, "Debian's base system has bash"
    done = subprocess.run(
        [bash, "--norc"],
        input=script + ask,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
        cwd=tmp_path,
    )
    assert done.stdout.split()[-1] == completed


def test_a_message_in_an_answer_is_printed_by_its_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`dataclasses.asdict` leaves it as it is: `fastbk cluster bookies --json` failed."""
    info = InfoReply(software="x", bookie_id="b1", incarnation=1, writable=True, disk_total_bytes=7)
    print_json(asdict(BookieState(BookieId("b1"), "up", info=info)))
    answer = json.loads(capsys.readouterr().out)
    assert (answer["bookie_id"], answer["info"]["disk_total_bytes"]) == ("b1", 7)
    with pytest.raises(TypeError, match="object cannot be printed"):
        print_json(object())
