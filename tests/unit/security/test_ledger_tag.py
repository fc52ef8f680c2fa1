"""Signed tags of ledgers: what they say, and everything that makes one useless."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.security.tokens import (
    TAG_TYPE,
    LedgerTag,
    TokenError,
    TokenKey,
    TokenKeys,
    namespaces_of,
    sign_tag,
    verify_tag,
)

KEY = TokenKey.generate("tags-1")
NOW_S = 1_900_000_000
KEYS = TokenKeys({"tags-1": KEY.private_key.public_key()})


def verified(tag: bytes, audience: str = "cluster") -> LedgerTag:
    return verify_tag(KEYS, tag, audience, lambda: NOW_S + 60.0)


def signed(kind: str = TAG_TYPE, key: TokenKey = KEY, **changes: Any) -> bytes:
    claims = {"ledger": 5, "ns": "orders", "aud": "cluster", "iat": NOW_S, **changes}
    return key.signed(
        {name: value for name, value in claims.items() if value is not None}, kind
    ).encode()


@pytest.mark.parametrize("namespace", ["orders", "orders/eu", "", "größe/ünï"])
def test_a_tag_names_a_ledger_and_its_namespace(namespace: str) -> None:
    tag = sign_tag(KEY, (1 << 63) - 1, namespace, "cluster", lambda: NOW_S)
    assert verified(tag) == LedgerTag((1 << 63) - 1, namespace, "tags-1")


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        (signed(aud="other"), "another cluster"),
        (signed(aud=None), "aud"),
        (signed(ledger=None), "ledger"),
        (signed(ledger=-1), "no id"),
        (signed(ledger=1 << 63), "no id"),
        (signed(ledger=True), "no id"),
        (signed(ledger="5"), "no id"),
        (signed(ns=None), "ns"),
        (signed(iat=None), "iat"),
        (signed(iat=True), "no time|is none"),
        (signed(iat="now"), "is none|is not good"),
        (signed(iat=NOW_S - 7 * 86_400), "older than 7 days"),
        (signed(ns=["orders"]), "no name"),
        (signed("JWT"), "no tag"),
        (signed(key=TokenKey.generate("tags-1")), "Signature verification failed"),
        (signed(key=TokenKey.generate("tags-2")), "no key 'tags-2'"),
        (b"", "1 to 4096 bytes"),
        (b"a.b.c", "is not good"),
    ],
)
def test_each_of_these_is_refused(tag: bytes, reason: str) -> None:
    with pytest.raises(TokenError, match=reason):
        verified(tag)


def test_a_token_is_no_tag_and_a_tag_no_token_even_with_one_key() -> None:
    token = KEY.sign("app", ["read"], "cluster", lifetime_s=60).encode()
    with pytest.raises(TokenError):
        verified(token)
    both = signed(sub="app", exp=4_000_000_000, ops=["read"])
    with pytest.raises(TokenError, match="is a tag"):
        KEYS.verify(both, "cluster")
    assert verified(both).ledger_id == 5


def test_a_namespace_may_be_too_long_for_a_tag() -> None:
    with pytest.raises(TokenError, match="has 3100 characters"):
        sign_tag(KEY, 5, "x" * 3100, "cluster")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_makes_it_useless(at: int, flip: int) -> None:
    tag = bytearray(signed())
    tag[at % len(tag)] ^= flip
    try:
        found = verified(bytes(tag))
    except TokenError:
        return
    # The last character of a signature has bits that mean nothing.
    assert found == LedgerTag(5, "orders", "tags-1")


def test_a_client_knows_what_its_own_token_is_limited_to() -> None:
    def of(namespaces: list[str] | None) -> tuple[str, ...] | None:
        token = KEY.sign("app", ["read"], "cluster", lifetime_s=60, namespaces=namespaces)
        return namespaces_of(token.encode())

    assert of(None) is None
    assert of(["orders", "orders/*"]) == ("orders", "orders/*")
    assert namespaces_of(b"no token") is None
