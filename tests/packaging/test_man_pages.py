"""Manual pages: one for each command, with every option, and nothing in them that roff takes for its own."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from fastbk.cli.__main__ import COMMANDS
from fastbk.cli.completion import parsers_below, whole_parser
from tests.style.tree import ROOT


@pytest.fixture(scope="module")
def man_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "man_pages", ROOT / "packaging" / "debian" / "man_pages.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(path: Path) -> str:
    """Return a page as `man` shows it, without bold and underlined letters."""
    words = ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == "", f"{path.name}: {done.stderr}"
    return done.stdout


def test_each_page_is_good_roff_and_has_every_verb_and_option(
    man_pages: ModuleType, tmp_path: Path
) -> None:
    paths = {path.name: path for path in man_pages.write_pages(tmp_path)}
    assert set(paths) == {"fastbk.1", *(f"fastbk-{name}.1" for name in COMMANDS)}
    texts = {name: shown(path) for name, path in paths.items()}
    for parser, _ in parsers_below(whole_parser()):
        text = texts[f"fastbk-{parser.prog.split()[1]}.1"]
        assert parser.prog in text
        for action in parser._actions:
            if action.help != "==SUPPRESS==" and action.dest != "help":
                for name in action.option_strings:
                    assert re.search(rf"^ +.*{re.escape(name)}\b", text, re.MULTILINE), (
                        f"{parser.prog} {name}"
                    )
    for name in COMMANDS:
        assert f"fastbk-{name}(1)" in texts["fastbk.1"]


@pytest.mark.parametrize(
    "text",
    [
        ".SH not a section",
        "'ti not a request",
        "back\\slash",
        'it\'s `code` -1 ~ ^ "quoted"',
        "-",
        "",
    ],
)
def test_any_text_is_shown_as_it_is(man_pages: ModuleType, tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.1"
    path.write_text(man_pages.page("a", "b", [".SH TEXT", man_pages._roff(text) + "\\&end"], "1"))
    assert f"{text}end" in shown(path)


def test_whatis_reads_the_names(man_pages: ModuleType, tmp_path: Path) -> None:
    for path in man_pages.write_pages(tmp_path):
        text = path.read_text()
        (line,) = re.findall(r"^\.SH NAME\n(.*)$", text, re.MULTILINE)
        name, _, what = line.partition(" \\- ")
        assert name.replace("\\-", "-") == path.stem and what
        if shutil.which("lexgrog"):
            found = subprocess.run(
                ["lexgrog", str(path)], capture_output=True, text=True, check=True
            ).stdout
            assert f'"{path.stem} - ' in found


def test_pages_are_the_same_on_any_terminal_and_day(
    man_pages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = man_pages.pages()
    monkeypatch.setenv("COLUMNS", "40")
    assert man_pages.pages() == first
