"""Apache's properties format, against what Apache BookKeeper 4.17's own library made of 225 files.

`tests/golden/apache_properties.json`: hand-written edges and random texts, and each key's values, None where that
library cannot say them.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.apache.configuration import source
from fastbk.errors import ConfigError

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "apache_properties.json").read_text()
)


def without_repeated_blanks(values: list[str]) -> list[str]:
    """Java's library may drop an empty string that it has seen; nobody wants empty items of a list."""
    return [value for at, value in enumerate(values) if value or not at]


@pytest.mark.parametrize("case", RECORDED, ids=[str(number) for number in range(len(RECORDED))])
def test_a_file_means_what_it_means_to_apache(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises(ConfigError):
            source.parse(case["text"])
        return
    parsed = source.parse(case["text"])
    assert set(parsed.found) == set(case["keys"])
    for key, theirs in case["keys"].items():
        try:
            ours = list(parsed.values(key, {"P4_TEST": "envval"}))
        except ConfigError:
            # What stands for nothing stays as it is for Apache; nobody wants a directory of that name.
            assert theirs is None or "${" in str(theirs) or "[" in str(theirs)
            continue
        assert without_repeated_blanks(ours) == without_repeated_blanks(theirs)


def test_there_are_vectors_of_each_kind() -> None:
    texts = "".join(case["text"] for case in RECORDED)
    for part in ("\\\n", "\r\n", "\\u00", "${", "\\,", "#", "!", "\t", "\x0c"):
        assert part in texts
    assert sum(bool(case.get("error")) for case in RECORDED) >= 3
    assert any(values is None for case in RECORDED for values in case.get("keys", {}).values())


def test_a_last_line_that_goes_on_is_told() -> None:
    parsed = source.parse("a=1\nb=2\\\n  3\\")
    assert "b" not in parsed
    assert parsed.unfinished == [2]
    assert parsed.found["a"].line == 1


def test_included_files_stand_where_they_are_named() -> None:
    files = {"one.conf": "b=3\ninclude=two.conf", "two.conf": "c=${b}"}
    parsed = source.parse("a=1\ninclude = one.conf\nincludeoptional=none.conf\nb=2", files.get)
    assert parsed.values("b") == ("3", "2")
    assert parsed.values("c") == ("3", "2")
    assert "include" not in parsed


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("include = none.conf", "line 1: cannot read the included file none.conf"),
        ("a=1\ninclude = self.conf", "line 1: files include one another more than 16 deep"),
        ("a=\\uzzzz", "line 1: .*four hexadecimal digits"),
        ("\\u00=1", "line 1: .*four hexadecimal digits"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text: str, fault: str) -> None:
    files = {"self.conf": "include = self.conf"}
    with pytest.raises(ConfigError, match=fault):
        source.parse(text, files.get)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a=${b}\nb=${a}", "stands for itself"),
        ("a=${none}/x", "stands for nothing"),
        ("a=${env:NONE}", "stands for nothing"),
        ("a=$${b}", "different things"),
        ("a=x,${b}\nb=1,2", "a list within a list"),
        (
            "\n".join(f"a{n}=${{a{n + 1}}}" for n in range(50)) + "\na50=1\na=${a0}",
            "more than 32 deep",
        ),
        (
            "\n".join(f"a{n}={f'${{a{n + 1}}}' * 9}" for n in range(9)) + "\na9=xxxx\na=${a0}",
            "longer than",
        ),
    ],
)
def test_variables_that_stand_for_nothing_sensible_are_refused(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        source.parse(text).values("a")


def test_an_environment_variable_may_stand_in_a_value() -> None:
    parsed = source.parse("a=${env:HOST:-none}:1,${env:NONE:-x}\nb=${env:HOST}")
    assert parsed.values("b", {"HOST": "h"}) == ("h",)
    assert parsed.values("a", {"HOST": "h"}) == ("h:1", "x")


ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def escaped(text: str, also: str) -> str:
    """Return a text as Java's own Properties write it."""
    return "".join(
        f"\\u{ord(c):04x}" if ord(c) > 126 or (ord(c) < 32 and c not in ESCAPES) else
        ESCAPES.get(c) or ("\\" + c if c in also else c)
        for c in text
    )  # fmt: skip


# A comma or a backslash in a value is for lists, and Apache takes it apart twice; a blank at either end is trimmed.
PLAIN = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, blacklist_characters=",\\$")
    | st.sampled_from(" \t\n"),
    min_size=1,
    max_size=20,
).filter(lambda text: text == text.strip(source._TRIMMED))


@given(
    st.dictionaries(
        PLAIN.filter(lambda key: not key.lower().startswith("include")), PLAIN, max_size=8
    )
)
def test_what_java_writes_is_read_back(pairs: dict[str, str]) -> None:
    lines = [f"{escaped(key, ' =:#!')}={escaped(value, '=:#!')}" for key, value in pairs.items()]
    parsed = source.parse("\n".join(lines))
    assert {key: parsed.values(key) for key in parsed.found} == {
        key: (value,) for key, value in pairs.items()
    }


@given(st.text(st.sampled_from("ab=: \t\\\n\r,#!${}u0041-\x0c\"'"), max_size=200))
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parsed = source.parse(text, lambda _: None)
        for key in parsed.found:
            parsed.values(key)
