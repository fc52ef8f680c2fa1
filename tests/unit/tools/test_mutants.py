"""`./dev mutants` names a place by its function, so that two trees that cut their files differently can be compared."""

from __future__ import annotations

import ast
from pathlib import Path

from tools.mutants import draw, moved, sites_of

SOURCE = '''
def f(a, b):
    """Add 1 or 2, not 3."""
    if a < b and not b:
        print(a)
        return a + 1
    return True  # é < 2


class C:
    def m(self, ä):
        return "é" if ä is None else [ä - 2 == 4]
'''


def mutated(source: str) -> dict[str, str]:
    return {
        site.name: source[: site.start] + site.text + source[site.end :]
        for site in sites_of("x.py", source)
    }


def test_each_change_is_one_and_still_python() -> None:
    changed = mutated(SOURCE)
    lines = SOURCE.splitlines()
    for name, text in changed.items():
        ast.parse(text)
        different = [
            (old, new) for old, new in zip(lines, text.splitlines(), strict=True) if old != new
        ]
        assert len(different) == 1, name
    assert "if a <= b and not b" in changed["f comparison 0"]
    assert "if a < b or not b" in changed["f boolean 0"]
    assert "and b:" in changed["f negation 0"]
    assert "return a - 1" in changed["f arithmetic 0"]
    assert "return a + 2" in changed["f number 0"]
    assert "return False" in changed["f truth 0"]
    assert "        pass\n" in changed["f statement 0"]
    assert "ä is not None" in changed["C.m comparison 0"]
    assert "[ä - 2 != 4]" in changed["C.m comparison 1"]
    assert not any('"""Add 2' in text for text in changed.values())


def test_a_function_keeps_its_names_in_another_file() -> None:
    moved = "import os\n\n\ndef first() -> int:\n    return 7\n" + SOURCE
    assert set(mutated(SOURCE)) < set(mutated(moved))


def test_functions_that_moved_unchanged_are_known(tmp_path: Path) -> None:
    first, second = tmp_path / "first" / "fastbk", tmp_path / "second" / "fastbk"
    for folder in (first, second):
        folder.mkdir(parents=True)
    (first / "a.py").write_text(SOURCE + "\n\ndef stays() -> int:\n    return 1\n")
    (second / "a.py").write_text("def stays() -> int:\n    return 1\n")
    (second / "b.py").write_text(SOURCE.replace("Add 1", "Now it adds 1").replace("- 2", "- 3"))
    assert moved(second.parent, first.parent) == {"f"}, "a docstring is not text, a number is"


def test_a_seed_draws_the_same_ones() -> None:
    sites = {site.name: site for site in sites_of("x.py", SOURCE)}
    assert draw(sites, 3, "1") == draw(dict(reversed(sites.items())), 3, "1")
    assert len(draw(sites, 3, "1")) == 3
