"""Names use the words of docs/glossary.md, and none of those that it lists as too vague."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.style.tree import ROOT, asked_once, walk

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
NOT_USED = GLOSSARY.partition("## Words that names must not use")[2]
FORBIDDEN = {
    word
    for row in re.findall(r"^\| ([a-z, ]+) \| [a-z]", NOT_USED, re.MULTILINE)
    if row != "not"
    for word in row.split(", ")
}

# Names that others have given: a status of the protocol, metrics, a function of liburing.
EXCEPTED = re.compile(r"cannot_tell|fbk_c_gc_looks|gc_looks|io_uring_cqe_seen", re.IGNORECASE)
# Files x names that still have one; they only shrink.
FORBIDDEN_MAX = 301
# What says nothing about the value that it stands for.
EMPTY = {"one", "found", "at"}
EMPTY_MAX = 568


def words(name: str) -> set[str]:
    """Return the words of a name, in small letters: `ReadLac` and `read_lac` have the same two."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def identifiers(tree: ast.Module) -> set[str]:
    """Return every name that a module defines: functions, classes, parameters, fields, attributes, locals."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


names_in = asked_once(identifiers, "fastbk", "loadtest")


def c_identifiers(text: str) -> set[str]:
    """Return every name of a C file, without comments, strings and directives that include."""
    code = re.sub(
        r"/\*.*?\*/|//[^\n]*|^#include[^\n]*|\"(?:\\.|[^\"\n])*\"", "", text, flags=re.S | re.M
    )
    return set(re.findall(r"\b[A-Za-z_]\w+", code))


@cache
def names() -> list[tuple[str, str]]:
    """Return (file, name) of all files and of each name that a file of the product defines, once."""
    listed = []
    for relative, path in walk((".py", ".c", ".h", ".md")):
        if not relative.startswith(("fastbk/", "loadtest/", "docs/")) or "generated" in relative:
            continue
        listed.append((relative, path.stem))
        if path.suffix == ".py":
            listed += [(relative, name) for name in names_in(path)]
        elif path.suffix in (".c", ".h"):
            listed += [(relative, name) for name in c_identifiers(path.read_text())]
    return listed


def test_the_glossary_names_words_that_are_not_used() -> None:
    assert {"look", "hear", "desk", "doomed"} <= FORBIDDEN


def test_names_with_a_word_that_the_glossary_forbids_become_fewer() -> None:
    forbidden = sorted(
        f"{relative}: {name}"
        for relative, name in names()
        if words(name) & FORBIDDEN and not EXCEPTED.search(name)
    )
    listing = "\n".join(forbidden)
    assert len(forbidden) <= FORBIDDEN_MAX, f"at most {FORBIDDEN_MAX}, it only shrinks:\n{listing}"


def test_names_that_say_nothing_become_fewer() -> None:
    empty = sorted(f"{relative}: {name}" for relative, name in names() if name in EMPTY)
    listing = "\n".join(empty)
    assert len(empty) <= EMPTY_MAX, f"at most {EMPTY_MAX}, it only shrinks:\n{listing}"


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
