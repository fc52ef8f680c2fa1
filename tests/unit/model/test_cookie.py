"""Apache's cookie, letter for letter: who a bookie is, in node and file (INV-D1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.model.cookie import Cookie, CookieError, decode, encode

COOKIE = Cookie("b1:3181", ("ab12",), ("cd34", "ef56"), "0b1e-id")
RAW = (
    b"5\n"
    b'bookieHost: "b1:3181"\n'
    b'journalDir: "ab12"\n'
    b'ledgerDirs: "2\\tcd34\\tef56"\n'
    b'instanceId: "0b1e-id"\n'
    b'indexDirs: "2\\tcd34\\tef56"\n'
)
NAMES = st.text("abcdef/0123456789.-äß\"'\\", min_size=1, max_size=12)


def test_apache_s_bytes() -> None:
    assert encode(COOKIE) == RAW
    assert decode(RAW) == COOKIE
    assert b"instanceId" not in encode(Cookie("b", ("a",), ("c",)))


def test_a_cookie_of_an_apache_bookie() -> None:
    """As Java's TextFormat prints it, and one of the version before, which knew no index directories."""
    raw = b'4\nbookieHost: "10.0.0.1:3181"\njournalDir: "/d/j1,/d/j2"\nledgerDirs: "2\\t/d/l1\\t/d/l2"\n'
    assert decode(raw) == Cookie("10.0.0.1:3181", ("/d/j1", "/d/j2"), ("/d/l1", "/d/l2"))


@given(
    st.builds(
        Cookie,
        NAMES,
        st.lists(NAMES, max_size=3).map(tuple),
        st.lists(NAMES, max_size=3).map(tuple),
        NAMES | st.just(""),
    )
)
def test_read_back(cookie: Cookie) -> None:
    assert decode(encode(cookie)) == cookie


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not a cookie"),
        (b"\xff\xfe", "not a cookie"),
        (b"9" * 5000, "not a cookie"),
        (b"3\n/d\n", "version 3"),
        (RAW.replace(b"5", b"6", 1), "version 6"),
        (RAW[:40], "damaged"),
        (RAW.replace(b'"2\\t', b'"3\\t'), "2 directories under a count"),
        (RAW.replace(b"bookieHost", b"bookie"), "names no bookie"),
        (RAW.replace(b"cd34", b"\\377\\376"), "damaged"),
        (b"5\nbookieHost: 7\n", "not a string"),
    ],
)
def test_what_is_no_cookie_is_refused_with_its_name(raw: bytes, says: str) -> None:
    with pytest.raises(CookieError, match=f"^/d/VERSION: .*{says}"):
        decode(raw, "/d/VERSION")


def test_any_changed_byte_gives_a_cookie_or_an_error_of_ours() -> None:
    for at in range(len(RAW)):
        for bit in range(8):
            bad = bytearray(RAW)
            bad[at] ^= 1 << bit
            try:
                assert isinstance(decode(bytes(bad)), Cookie)
            except CookieError:
                continue
