"""The checker of answers' shapes itself: it must find what is missing, surplus, or of another kind."""

from __future__ import annotations

import pytest

from tools.json_shapes import differences, documented

SHAPE = {
    "id": "integer",
    "name": "text | null",
    "more?": "number",
    "by": {"*": ["text"]},
    "end": {"one of": [{"at": "integer"}, "null"]},
}
GOOD = {"id": 1, "name": None, "by": {"b1": ["a"], "b2": []}, "end": {"at": 1}}


def test_good_answers_have_no_differences() -> None:
    assert differences(SHAPE, GOOD) == []
    assert differences(SHAPE, {**GOOD, "more": 1.5, "name": "a", "end": None}) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": True}, "the answer.id is True, not integer"),
        ({"id": 1.5}, "the answer.id is 1.5, not integer"),
        ({"more": "x"}, "the answer.more is 'x', not number"),
        ({"by": {"b1": [1]}}, "the answer.by.b1[0] is 1, not text"),
        ({"by": []}, "the answer.by is [], not an object"),
        ({"new": 1}, "the answer has 'new' = 1, which is not documented"),
        ({"end": {"at": "x"}}, "the answer.end.at is 'x', not integer"),
        ({"end": {"at": 1, "b": 2}}, "the answer.end has 'b' = 2, which is not documented"),
    ],
)
def test_each_difference_is_found(change: dict[str, object], says: str) -> None:
    assert differences(SHAPE, {**GOOD, **change}) == [says]


def test_a_missing_name_is_found() -> None:
    assert differences(SHAPE, {name: one for name, one in GOOD.items() if name != "id"}) == [
        "the answer lacks 'id'"
    ]


def test_a_page_is_read_by_its_headings() -> None:
    page = '# A\n\n## fastbk a b, fastbk c\n\nText.\n\n```json\n{"x": "text"}\n```\n\n## B\n\n```json\n1\n```\n'
    assert documented(page) == {"a b": {"x": "text"}, "c": {"x": "text"}}
