"""Text of others is made safe to send, to log and to show."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fastbk.printable_text import printable, printable_json

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


def test_what_is_printable_stays_as_it_is() -> None:
    assert printable("token:ünïcode 名 #1") == "token:ünïcode 名 #1"
    assert printable("") == ""


def test_what_a_terminal_obeys_becomes_an_escape() -> None:
    assert printable("\x1b]0;title\x07\x9b2J\n") == r"\x1b]0;title\x07\x9b2J\x0a"
    assert printable("a\u202eb\u2028\ud800\U000e0001") == r"a\u202eb\u2028\ud800\U000e0001"
    assert printable("one\n\ttwo\r", kept="\n\t") == "one\n\ttwo\\x0d"


def test_a_long_text_is_cut() -> None:
    assert printable("x" * 5, 5) == "xxxxx"
    assert printable("x" * 6, 5) == "xxxxx..."


@given(ANY_TEXT)
def test_any_text_can_be_encoded_and_shown_on_one_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.encode().splitlines()) <= 1
    assert len(shown) <= 10 * 1000 + 3


@given(st.recursive(ANY_TEXT, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner)))
def test_json_of_any_text_can_be_shown_and_means_the_same(value: object) -> None:
    line = printable_json(value)
    assert line.decode().isprintable()
    if not _has_surrogates(value):
        assert json.loads(line) == value


def _has_surrogates(value: object) -> bool:
    if isinstance(value, str):
        return not value.isascii() and "\\ud" in ascii(value)
    if isinstance(value, dict):
        return any(_has_surrogates(one) for pair in value.items() for one in pair)
    return any(_has_surrogates(one) for one in value) if isinstance(value, list) else False


def test_json_is_made_of_anything() -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError

    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    odd = {
        "s": "a\ud800",
        "n": 1 << 100,
        "o": object,
        "bad": Bad(),
        "deep": deep,
        7: ("\udfff", None, 1.5, True),
    }
    found = json.loads(printable_json(odd))
    assert found["s"] == r"a\ud800"
    assert found["n"] == hex(1 << 100)
    assert found["bad"] == "a Bad"
    assert found["7"] == [r"\udfff", None, 1.5, True]
