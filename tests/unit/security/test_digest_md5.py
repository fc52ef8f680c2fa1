"""SASL DIGEST-MD5: the example of RFC 2831, both sides against each other, and messages that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.security import digest_md5
from fastbk.security.digest_md5 import DigestClient, DigestServer, SaslError, parse

EXAMPLE = {
    "realm": "elwood.innosoft.com",
    "nonce": "OA6MG9tEQGm2hh",
    "nc": "00000001",
    "cnonce": "OA6MHXh6VqTrRk",
    "digest-uri": "imap/elwood.innosoft.com",
}
TEXTS = st.text(
    st.characters(min_codepoint=32, exclude_categories=("Cs",)), min_size=1, max_size=40
)


def exchange(user: str, password: str, known: dict[str, str]) -> str:
    server, client = DigestServer(known.get), DigestClient(user, password)
    found, last = server.verify(client.respond(server.challenge()))
    client.finish(last)
    return found


def response_of(user: str = "alice", password: str = "secret") -> tuple[DigestServer, bytes]:
    server = DigestServer({"alice": "secret"}.get)
    return server, DigestClient(user, password).respond(server.challenge())


def test_the_example_of_the_rfc() -> None:
    """RFC 2831, section 4."""
    response, proof = digest_md5._responses(EXAMPLE, "chris", "secret")
    assert response == "d388dad90d4bbd760a152321f2143af7"
    assert proof == "ea40f60335c427b5527b84dbabcdfffd"


@given(TEXTS, TEXTS)
def test_whoever_knows_the_password_is_accepted(user: str, password: str) -> None:
    assert exchange(user, password, {user: password}) == user


@given(TEXTS, TEXTS, TEXTS)
def test_nobody_else_is(user: str, password: str, other: str) -> None:
    known = {user: password} if other != password else {}
    with pytest.raises(SaslError, match="the user or the password is wrong"):
        exchange(user, other, known)


def test_a_bookie_that_does_not_know_the_password_is_not_accepted() -> None:
    client = DigestClient("alice", "secret")
    client.respond(DigestServer(lambda _: None).challenge())
    for last in (b"rspauth=" + b"0" * 32, b"", b'rspauth=""'):
        with pytest.raises(SaslError, match="does not know the password"):
            client.finish(last)


def test_a_recorded_response_is_of_no_use() -> None:
    server, response = response_of()
    assert server.verify(response)[0] == "alice"
    with pytest.raises(SaslError, match="a second response"):
        server.verify(response)
    with pytest.raises(SaslError, match="nonce is not the challenge's"):
        DigestServer({"alice": "secret"}.get).verify(response)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"nc=00000001", b"nc=00000002", "nc is not"),
        (b"bookkeeper/bookkeeper", b"imap/elsewhere", "another service"),
        (b"qop=auth", b"qop=auth-conf", "quality of protection"),
        (b"charset=utf-8", b"charset=latin", "charset"),
        (b"qop=auth", b'qop=auth,authzid="bob"', "another user"),
        (b'username="alice"', b'username=""', "lacks a user"),
        (b"charset=utf-8", b"nc=00000001", "nc twice"),
        (b"response=", b"response=f", "is wrong"),
        (b"response=", b'response="\xc3\xa9",x=', "is wrong"),
    ],
)
def test_each_field_of_a_response_counts(old: bytes, new: bytes, reason: str) -> None:
    server, response = response_of()
    with pytest.raises(SaslError, match=reason):
        server.verify(response.replace(old, new, 1))


def test_a_challenge_of_something_else_is_refused() -> None:
    client = DigestClient("alice", "secret")
    for challenge in (
        b"",
        b'nonce="x",algorithm=md5',
        b'nonce="x",algorithm=md5-sess,qop="auth-conf"',
    ):
        with pytest.raises(SaslError):
            client.respond(challenge)


@given(st.binary(max_size=200) | st.text('nonce=",\\ qop auth', max_size=60).map(str.encode))
def test_any_bytes_are_directives_or_refused(message: bytes) -> None:
    try:
        found = parse(message)
    except SaslError:
        return
    assert all(isinstance(value, str) for value in found.values())


def test_a_long_message_is_refused_at_once() -> None:
    with pytest.raises(SaslError, match="4 KiB"):
        parse(b'a="' + b"x" * 4096 + b'"')
