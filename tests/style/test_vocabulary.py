"""Names use the words of docs/glossary.md, and none of those that it lists as too vague."""

from __future__ import annotations

import ast
import re

from tests.style.tree import ROOT, walk

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
NOT_USED = GLOSSARY.partition("## Words that names must not use")[2]
FORBIDDEN = {
    word
    for row in re.findall(r"^\| ([a-z, ]+) \| [a-z]", NOT_USED, re.MULTILINE)
    if row != "not"
    for word in row.split(", ")
}


def words(name: str) -> set[str]:
    """Return the words of a name, in small letters: `ReadLac` and `read_lac` have the same two."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def defined(scope: ast.Module | ast.ClassDef) -> list[str]:
    """Return the public classes, functions and methods of a module or class; not what functions define inside."""
    found = []
    for node in scope.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found += [node.name] if not node.name.startswith("_") else []
            found += defined(node) if isinstance(node, ast.ClassDef) else []
    return found


def names() -> list[tuple[str, str]]:
    """Return (file, name) of all files, of Python's public classes and functions, and of C's functions."""
    listed = []
    for relative, path in walk((".py", ".c", ".h", ".md")):
        if not relative.startswith(("fastbk/", "loadtest/", "docs/")) or "generated" in relative:
            continue
        listed.append((relative, path.stem))
        if path.suffix == ".py":
            listed += [(relative, name) for name in defined(ast.parse(path.read_text()))]
        elif path.suffix == ".h":
            listed += [(relative, name) for name in re.findall(r"\b(fbk_\w+)\(", path.read_text())]
    return listed


def test_the_glossary_names_words_that_are_not_used() -> None:
    assert {"look", "hear", "desk", "doomed"} <= FORBIDDEN


def test_no_name_has_a_word_that_the_glossary_forbids() -> None:
    assert {f"{relative}: {name}" for relative, name in names() if words(name) & FORBIDDEN} == set()


def test_words_of_the_glossary_are_used() -> None:
    text = "\n".join(
        path.read_text().lower()
        for relative, path in walk((".py", ".c", ".h", ".md"))
        if relative != "docs/glossary.md"
    )
    terms = re.findall(r"^\| ([^|]+) \| [^|]+\|$", GLOSSARY.partition("## Words that")[0], re.M)
    listed = [
        word
        for term in terms
        for word in re.sub(r"\s*\([^)]*\)", "", term).split(", ")
        if word != "word"
    ]
    assert len(listed) > 50
    assert [word for word in listed if word.lower() not in text] == []
