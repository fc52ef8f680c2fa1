"""The commands of all runbooks exist with these options; tests/integration/test_runbooks.py runs them."""

from __future__ import annotations

import shlex

import pytest

from fastbk.cli.completion import whole_parser
from tests.fixtures.runbook import FOLDER, steps_of

PAGES = sorted([FOLDER.with_suffix(".md"), *FOLDER.glob("*.md")])


def commands_of(text: str) -> list[list[str]]:
    lines = [line for blocks in steps_of(text).values() for one in blocks for line in one.commands]
    words = [shlex.split(line, comments=True) for line in lines]
    # Behind the last one: `runuser -u fastbk -- fastbk` has a user of that name.
    return [one[len(one) - one[::-1].index("fastbk") :] for one in words if "fastbk" in one]


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.stem)
def test_commands_of_a_runbook_are_commands(page: object) -> None:
    found = commands_of(page.read_text())  # type: ignore[attr-defined]
    parser = whole_parser()
    for words in found:
        parser.parse_args(words)  # else it ends the test by SystemExit


def test_a_command_that_is_none_is_found() -> None:
    (words,) = commands_of("# A\n```sh\nfastbk bookie mend bookie-1\n```\n")
    with pytest.raises(SystemExit):
        whole_parser().parse_args(words)
