"""The pages say what is there: paths and links exist, every invariant is kept and tested somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fixtures.released import RELEASED
from tests.style.tree import ROOT, walk
from tools import pages

NAMED = re.compile(r"`((?:fastbk|demo|tests|loadtest|requirements)/[\w./-]+)`")
"""Paths of ours that a page names. CHANGELOG.md names files as they were then."""


def test_paths_that_pages_name_exist() -> None:
    missing = [
        f"{relative}: {name}"
        for relative, path in walk((".md",))
        if relative != "CHANGELOG.md"
        for name in NAMED.findall(path.read_text())
        if not (ROOT / name.rstrip("/.")).exists()
    ]
    assert missing == []


def test_c_files_that_pages_name_exist() -> None:
    native = ROOT / "fastbk" / "native"
    missing = [
        f"{relative}: {name}"
        for relative, path in walk((".md",))
        if relative != "CHANGELOG.md"
        for name in re.findall(r"`(\w+/\w+\.[ch])`", path.read_text())
        if not any((one / name).exists() for one in (native, native / "src", ROOT / "tests"))
    ]
    assert missing == []


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_from_the_code_is_current(page: str) -> None:
    assert (ROOT / page).read_text() == pages.PAGES[page](), "run ./dev docs"


def test_prose_is_at_most_100_columns_wide() -> None:
    """Tables, code and what has no blank may be wider."""
    wide = [
        f"{relative}:{number}: {line[:60]}"
        for relative, path in walk((".md",))
        if relative not in pages.PAGES
        and (text := path.read_text()) != (wrapped := pages.wrapped_page(text))
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > pages.WIDTH and line not in wrapped.splitlines()
    ]
    assert wide == [], "run ./dev docs"


LONG = "word " * 30


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        (f"{LONG}\n", f"{'word ' * 19}word\n{'word ' * 9}word\n"),
        (f"- {LONG}end\n- next\n", f"- {'word ' * 18}word\n  {'word ' * 10}word end\n- next\n"),
        (f"10. {LONG}\n    end", f"10. {'word ' * 18}word\n    {'word ' * 10}word end"),
        (f"{'word ' * 19}`a code` is\nkept", f"{'word ' * 18}word\n`a code` is kept"),
        (f"{'word ' * 19}word - no item", f"{'word ' * 18}word\nword - no item"),
        (f"{LONG}\\\nmeant", f"{'word ' * 19}word\n{'word ' * 9}word \\\nmeant"),
    ],
)
def test_a_wide_paragraph_is_wrapped(text: str, wrapped: str) -> None:
    assert pages.wrapped_page(text) == wrapped
    assert pages.wrapped_page(wrapped) == wrapped


@pytest.mark.parametrize(
    "kept", [f"| {LONG} |", f"```\n{LONG}\n```", f"# {LONG}", "x" * 120, "short\nlines\n\n  here"]
)
def test_what_is_no_wide_prose_is_not_touched(kept: str) -> None:
    assert pages.wrapped_page(kept) == kept


def headings(page: Path) -> set[str]:
    """Return what `#` of a link can name in a page, as GitHub makes it of headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def test_links_of_all_pages_lead_somewhere() -> None:
    dead = []
    for relative, path in walk((".md",)):
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", path.read_text()):
            name, _, heading = target.partition("#")
            page = path.parent / name if name else path
            if not page.exists() or (heading and heading not in headings(page)):
                dead.append(f"{relative}: {target}")
    assert dead == []


def invariants() -> list[str]:
    """Return the ids that docs/invariants.md lists."""
    page = (ROOT / "docs" / "invariants.md").read_text()
    return re.findall(r"^\| (INV-\w+) \|", page, re.MULTILINE)


def test_every_invariant_is_cited_by_code_and_by_a_test() -> None:
    cited: dict[str, set[str]] = {"code": set(), "tests": set()}
    for relative, path in walk((".py", ".c", ".h")):
        where = "tests" if relative.startswith("tests/") else "code"
        cited[where] |= set(re.findall(r"INV-[A-Z]\d+", path.read_text()))
    listed = invariants()
    assert len(listed) > 5
    missing = [
        f"{name}: no {where}" for name in listed for where in cited if name not in cited[where]
    ]
    assert not missing, "\n".join(missing)
    unknown = (cited["code"] | cited["tests"]) - set(listed)
    assert not unknown, f"cited but not in docs/invariants.md: {sorted(unknown)}"


def test_decisions_have_one_number_each_and_none_is_missing() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text()
    numbers = [int(one) for one in re.findall(r"^### (\d+)\. ", page, re.MULTILINE)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_each_decision_is_cited_in_a_file_that_it_governs() -> None:
    cited: set[int] = set()
    for relative, path in walk((".py", ".c", ".h", ".md", ".toml")):
        if relative.startswith(("fastbk/", "tests/", "tools/", "packaging/")):
            for numbers in re.findall(r"[Dd]ecisions? (\d+(?:(?:, | and )\d+)*)", path.read_text()):
                cited |= {int(number) for number in re.findall(r"\d+", numbers)}
    page = (ROOT / "docs" / "decisions.md").read_text()
    listed = {int(number) for number in re.findall(r"^### (\d+)\. ", page, re.MULTILINE)}
    missing = sorted(listed - cited)
    assert not missing, f"name these where they hold: {missing}"


def test_the_page_about_upgrades_names_the_last_build_of_the_version_before() -> None:
    assert RELEASED in (ROOT / "docs" / "upgrade.md").read_text()


def test_the_version_has_one_home() -> None:
    import fastbk

    pattern = re.compile(rf"(?<![\d.]){re.escape(fastbk.__version__)}(?![\d.])")
    homes = [
        relative
        for relative, path in walk((".py", ".toml", ".c", ".h", ".md", ""))
        if not relative.startswith(("CHANGELOG.md", "LICENSE", "tests/"))
        and pattern.search(path.read_text(errors="replace"))
    ]
    assert homes == ["fastbk/version.py"]
