"""Signed tokens: whose they are, what they allow, and everything that makes one useless."""

from __future__ import annotations

import base64
import json
import os
import random
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.safe_files import write_text
from fastbk.security.digest_md5 import DigestClient, DigestServer, SaslError
from fastbk.security.rights import Right
from fastbk.security.tokens import KINDS, TokenError, TokenKey, TokenKeys, sign_tag, verify_tag

if TYPE_CHECKING:
    from pathlib import Path

KEY = TokenKey.generate("key-1")
NOW_S = 1_900_000_000.0


def now() -> float:
    return NOW_S


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> TokenKeys:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    write_text(path, KEY.public_text())
    return TokenKeys.load(str(path))


def signed(
    key: Any = KEY.private_key, algorithm: str = "EdDSA", kid: str = "key-1", **claims: Any
) -> bytes:
    whole = {"sub": "app", "aud": "cluster", "exp": NOW_S + 60, "ops": ["read"], **claims}
    kept = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm, headers={"kid": kid}).encode()


def test_a_token_names_its_client_and_what_it_may_do(keys: TokenKeys) -> None:
    token = KEY.sign("app", ["read", "add"], "cluster", lifetime_s=60, clock_s=now).encode()
    found = keys.verify(token, "cluster", now)
    assert (found.name, found.key_id, found.ends_at_s) == ("token:app", "key-1", NOW_S + 60)
    assert found.rights == Right.ENTER | Right.READ | Right.ADD
    assert found.token_id
    assert found.granted == (found.rights, Right(0))


def test_a_token_for_one_kind_of_servers_is_good_at_no_other(keys: TokenKeys) -> None:
    for kind in KINDS:
        token = signed(sub="a", aud=f"c/{kind}", exp=now() + 60, ops=["read"])
        assert keys.verify(token, "c", kind=kind).name == "token:a"
        for other in (*KINDS, ""):
            if other != kind:
                with pytest.raises(TokenError, match="another kind of servers"):
                    keys.verify(token, "c", kind=other)
        with pytest.raises(TokenError, match="another cluster"):
            keys.verify(token, "d", kind=kind)
        whole = signed(sub="a", aud="c", exp=now() + 60, ops=["read"])
        assert keys.verify(whole, "c", kind=kind).name == "token:a"


@pytest.mark.parametrize(
    "payload", [b"", b"!", b"W10", b"bnVsbA", b"ImEi", b"eyJhdWQiOlsiYy9ib29raWVzIl19", b"/w"]
)
def test_an_audience_of_another_form_is_none(keys: TokenKeys, payload: bytes) -> None:
    head, _, signature = signed(sub="a", aud="c/bookies", exp=now() + 60, ops=["read"]).split(b".")
    with pytest.raises(TokenError):
        keys.verify(b".".join((head, payload, signature)), "c", kind="bookies")


def test_a_token_may_be_limited_to_namespaces(keys: TokenKeys) -> None:
    made = KEY.sign(
        "app", ["read"], "cluster", lifetime_s=60, namespaces=["orders", "orders/*"], clock_s=now
    )
    found = keys.verify(made.encode(), "cluster", now)
    assert found.granted == (Right.ENTER, Right.ENTER | Right.READ)
    names = ["orders", "orders/eu", "orders/eu/x", "ordersx", "", "Orders", "other/orders"]
    assert [found.is_allowed(one) for one in names] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    every = KEY.sign("app", ["read"], "cluster", lifetime_s=60, namespaces=["*"], clock_s=now)
    assert keys.verify(every.encode(), "cluster", now).is_allowed("")
    with pytest.raises(ConfigError, match="1 to 100 patterns"):
        KEY.sign("app", ["read"], "cluster", lifetime_s=60, namespaces=[])


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (signed(exp=NOW_S), "expired"),
        (signed(exp=None), "exp"),
        (signed(exp="soon"), "is not good|no time"),
        (signed(exp=float("1e300")), "is not good|no time"),
        (signed(aud="other"), "another cluster"),
        (signed(aud=["cluster", "other"]), "another cluster"),
        (signed(aud=None), "aud"),
        (signed(sub=None), "sub"),
        (signed(sub=""), "subject"),
        (signed(sub="x" * 201), "subject"),
        (signed(sub="a\nb"), "subject"),
        (signed(ops=None), "no operation"),
        (signed(ops=[]), "no operation"),
        (signed(ops=["read", "root"]), "operation 'root'"),
        (signed(ops=[{}]), "operation"),
        (signed(ns=[]), "patterns of namespaces"),
        (signed(ns="orders"), "patterns of namespaces"),
        (signed(ns=["x"] * 101), "patterns of namespaces"),
        (signed(ns=[""]), "1 to 200 printable"),
        (signed(ns=[5]), "1 to 200 printable"),
        (signed(nbf=4_000_000_000), "not yet valid"),
        (signed(kid="key-2"), "no key 'key-2'"),
        (signed(key=Ed25519PrivateKey.generate()), "Signature verification failed"),
        (signed(key=None, algorithm="none"), "is not good"),
        (signed(key="k" * 32, algorithm="HS256"), "is not good"),
        (b"", "has 1 to 4096 bytes"),
        (b"x" * 4097, "has 1 to 4096 bytes"),
        (b"a.b.c", "is not good"),
    ],
)
def test_each_of_these_is_refused(keys: TokenKeys, token: bytes, reason: str) -> None:
    with pytest.raises(TokenError, match=reason):
        keys.verify(token, "cluster", now)


def test_the_public_key_is_no_secret_to_sign_with(keys: TokenKeys) -> None:
    """The classic mistake: a token that is signed by HMAC, with the public key as its secret."""
    public = json.loads(KEY.public_text())["keys"][0]["x"]
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"key-1"}').rstrip(b"=")
    claims = signed().split(b".")[1]
    import hashlib
    import hmac

    secret = base64.urlsafe_b64decode(public + "=")
    signature = hmac.digest(secret, head + b"." + claims, hashlib.sha256)
    token = head + b"." + claims + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    with pytest.raises(TokenError, match="is not good"):
        keys.verify(token, "cluster", now)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_makes_it_useless(at: int, flip: int) -> None:
    token = bytearray(signed())
    token[at % len(token)] ^= flip
    keys = TokenKeys({"key-1": KEY.private_key.public_key()})
    try:
        found = keys.verify(bytes(token), "cluster", now)
    except TokenError:
        return
    # The last character of a signature has bits that mean nothing.
    assert (found.name, at % len(token)) == ("token:app", len(token) - 1)


def test_keys_are_rotated_by_files(tmp_path: Path) -> None:
    new = TokenKey.generate("key-2")
    path = tmp_path / "keys.json"
    write_text(path, new.public_text(json.loads(KEY.public_text())["keys"]))
    both = TokenKeys.load(str(path))
    assert ("key-1" in both, "key-2" in both, "key-3" in both) == (True, True, False)
    assert both.verify(signed(), "cluster", now).key_id == "key-1"
    assert both.verify(signed(new.private_key, kid="key-2"), "cluster", now).key_id == "key-2"
    private = tmp_path / "private.json"
    write_text(private, new.text())
    assert TokenKey.load(str(private)).key_id == "key-2"
    with pytest.raises(ConfigError, match="no private key"):
        TokenKey.load(str(path))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON Web Key Set"),
        ("[]", "no JSON Web Key Set"),
        ('{"keys": [1]}', "no JSON Web Key Set"),
        ('{"keys": []}', "1 to 100 keys"),
        ('{"keys": [{"kty": "RSA", "kid": "a"}]}', "of Ed25519"),
        ('{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "AA"}]}', "none of Ed25519"),
        ('{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AA"}]}', "have a kid"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "keys.json"
    write_text(path, text)
    with pytest.raises(ConfigError, match=reason):
        TokenKeys.load(str(path))


def test_keys_that_others_can_change_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_text(path, KEY.public_text())
    path.chmod(0o644)
    TokenKeys.load(str(path))
    path.chmod(0o646)
    with pytest.raises(ConfigError, match="others can change"):
        TokenKeys.load(str(path))


def test_operations_are_known_ones() -> None:
    for operations in ([], ["root"]):
        with pytest.raises(ConfigError, match="operations must be some of"):
            KEY.sign("app", operations, "cluster", lifetime_s=60)


# Changed tokens and SASL messages: none of them authenticates anybody, and none is an error of
# ours.
#
# TOKENS=1000000 makes it a long run.


TOKENS = int(os.environ.get("TOKENS", "3000"))


def changed(data: bytes, dice: random.Random) -> bytes:
    """Change at least one byte, or cut, repeat or mix."""
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(out))
        match dice.randrange(5):
            case 0:
                out[at] ^= dice.randrange(1, 256)
            case 1:
                out[at] = dice.choice(b'._-="\\,\x00 Aa9')
            case 2:
                del out[at : at + dice.choice((1, 3, 40))]
            case 3:
                out[at:at] = dice.choice((b".", b'"', b"\\", b",nc=1", dice.randbytes(3)))
            case _:
                other = dice.randrange(len(out))
                out[at : at + 20] = out[other : other + 20]
        if not out:
            out = bytearray(b".")
    return bytes(out)


@pytest.mark.timeout(120 + TOKENS // 1000)
@pytest.mark.parametrize("kind", ["token", "tag"])
def test_no_changed_token_or_tag_is_accepted(kind: str, seed: int) -> None:
    dice = random.Random(seed)
    key = TokenKey.generate("k1")
    keys = TokenKeys({"k1": key.private_key.public_key()})

    def verify(text: bytes) -> object:
        return (
            keys.verify(text, "cluster").name
            if kind == "token"
            else verify_tag(keys, text, "cluster")
        )

    token = key.sign("app", ["read"], "cluster", lifetime_s=1e6, namespaces=["a"]).encode()
    if kind == "tag":
        token = sign_tag(key, 5, "orders", "cluster")
    said = verify(token)
    *head, _ = token.split(b".")
    accepted = 0
    for _ in range(TOKENS):
        other = changed(token, dice)
        try:
            assert verify(other) == said
        except TokenError:
            continue
        # Only spare bits of the last character may differ.
        assert other.split(b".")[:2] == head
        assert other[:-1] == token[:-1]
        accepted += 1
    assert accepted < TOKENS / 10


@pytest.mark.timeout(120 + TOKENS // 1000)
def test_no_changed_response_is_accepted(seed: int) -> None:
    dice = random.Random(seed)
    passwords = {"alice": "secret", "bob": "other"}
    for _ in range(TOKENS):
        server = DigestServer(passwords.get, dice.randbytes)
        client = DigestClient("alice", "secret", dice.randbytes)
        challenge = server.challenge()
        try:
            response = client.respond(
                changed(challenge, dice) if dice.random() < 0.3 else challenge
            )
            other = changed(response, dice)
            user, _ = server.verify(other)
        except SaslError:
            continue
        # Spaces and the case of names and digits mean nothing; the fields that are hashed are the same.
        assert user == "alice", other
