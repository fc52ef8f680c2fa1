"""Names of namespaces and streams: which are refused, and that each is one part of a path of metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.meta.records import check_path
from fastbk.stream.paths import check_name, decode, encode, split_path


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "<default>", "a/b", "a\nb", "a\x00", "\x7f", "\ud800", "x" * 256]
    + ["ä" * 43, "a\u2028b"],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_name(name)


@pytest.mark.parametrize(
    "name", ["orders", "größe 1", "a%2Fb", "100%", "x" * 255, "ä" * 42, "日本", "a.b", "a<b"]
)
def test_names_are_kept_as_they_are(name: str) -> None:
    assert decode(encode(check_name(name))) == name
    assert check_path(f"namespaces/root/{encode(name)}")


@given(st.text(), st.text())
def test_each_name_has_a_part_of_its_own(first: str, second: str) -> None:
    found = []
    for name in (first, second):
        try:
            found.append(check_name(name))
        except ConfigError:
            continue
    for name in found:
        assert decode(encode(name)) == name
        assert check_path(encode(name)) and "/" not in encode(name)
    if len(found) == 2:
        assert (first == second) == (encode(first) == encode(second))


def test_paths_are_names_between_slashes() -> None:
    assert split_path("") == ()
    assert split_path("tenant/app") == ("tenant", "app")
    for path in ("/", "/a", "a/", "a//b", "a/../b", "a/./b"):
        with pytest.raises(ConfigError):
            split_path(path)
