"""A file is one concept, whole: a module that only its neighbour imports is a chapter of it, and belongs into it.

`./dev structure` prints how the tree is cut.
"""

from __future__ import annotations

from tools import ROOT
from tools.structure import lone_modules, read_modules

# Modules with one importer in their own folder that stay on their own: path below fastbk/ -> why.
STAY: dict[str, str] = {}
# How many others there may be. It only shrinks.
UNEXPLAINED_MAX = 155


def test_modules_that_only_a_neighbour_imports_become_fewer() -> None:
    lone = lone_modules(read_modules(ROOT))
    unexplained = [
        f"{path} -> {importer}"
        for path, importer in lone.items()
        if path.removeprefix("fastbk/") not in STAY
    ]
    listing = "\n".join(unexplained)
    assert len(unexplained) <= UNEXPLAINED_MAX, f"merge one into its importer:\n{listing}"


def test_each_module_that_stays_is_one_that_only_a_neighbour_imports() -> None:
    lone = {path.removeprefix("fastbk/") for path in lone_modules(read_modules(ROOT))}
    assert not STAY.keys() - lone, "remove these from STAY: they are gone, or have more importers"
