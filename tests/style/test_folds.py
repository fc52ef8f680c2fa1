"""A file is one concept, whole: a module that only its neighbour imports is a chapter of it, and belongs into it.

`./dev structure` prints how the tree is cut.
"""

from __future__ import annotations

from tools import ROOT
from tools.structure import lone_modules, read_modules

# Modules with one importer in their own folder that stay on their own: path below fastbk/ -> why.
STAY: dict[str, str] = {
    "console/actions.py": "all that the console changes, beside the pages that only show",
    "console/app.py": "which path is which page; the process is about ports, files and signals",
    "console/cluster_pages.py": "one group of pages; all of them in app.py would be five concepts",
    "console/ledger_pages.py": "one group of pages",
    "console/login_pages.py": "signing in and out, the only pages for strangers",
    "console/search.py": "the search and what it finds",
    "console/stream_pages.py": "one group of pages",
    "gateway/connections.py": "what the port takes and its bounds, without the process around it",
    "gateway/ledger_rules.py": "a pure decider, which tests call by itself",
    "gateway/record_operations.py": "records, beside ledger_operations.py; the service is about clients",
    "gateway/record_rules.py": "a pure decider, which tests call by itself",
}
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
