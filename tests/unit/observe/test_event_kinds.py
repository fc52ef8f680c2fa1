"""The table of events: the code logs all of them, and docs/events.md lists the same."""

from __future__ import annotations

import re

from fastbk.observe.events import KIND_OF, KINDS
from tests.style.tree import ROOT, walk

TABLE = "fastbk/observe/events.py"
MADE = {"bookie.became_read_only": '"bookie.became_"', "bookie.became_writable": '"bookie.became_"'}
"""Events whose names the code puts together, and what of them it holds."""


def test_each_event_is_logged_somewhere() -> None:
    code = "\n".join(
        path.read_text()
        for relative, path in walk((".py",))
        if relative.startswith("fastbk/") and relative != TABLE
    )
    missing = [one for one in KIND_OF if MADE.get(one, f'"{one}"') not in code]
    assert missing == []


def test_each_kind_has_events_and_each_event_a_kind() -> None:
    assert set(KIND_OF.values()) == set(KINDS)


def test_the_page_lists_the_same_events() -> None:
    text = (ROOT / "docs" / "events.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \|$",
        text.partition("## Kinds")[2].partition("\n- **")[0],
        re.MULTILINE,
    )
    listed = {event: kind for kind, events in rows for event in re.findall(r"`([\w.]+)`", events)}
    assert listed == KIND_OF
    assert [kind for kind, _ in rows] == list(KINDS)
