"""Signed tokens and tags: JSON Web Tokens (RFC 7519) with Ed25519 (RFC 8037). Only who has a private key makes one.

A token names a client. Its claims: `sub` (whose it is), `aud` (the cluster's id, perhaps with the one kind of servers
it is good at), `exp` (its end), `ops` (what it allows: `read`, `add`, `recover`, `admin`, `delete`, `truncate`,
`serve`), `ns` (patterns of namespaces that it is limited to; without it: none), `jti` (its own id, by which it can be
revoked). Its header names the key (`kid`). Bookies have the public keys as a JSON Web Key Set (RFC 7517): {"keys":
[{"kty": "OKP", "crv": "Ed25519", "kid": ..., "x": ...}]}.

A tag names the namespace of a ledger. A bookie that has read it in the ledger's metadata signs it. Its claims:
`ledger` (the id), `ns` (the namespace, "" where metadata names none), `aud` (the cluster's id), `iat`. A tag is good
for TAG_AGE_S_MAX, since a ledger may be moved to another namespace; clients have it signed anew each day. A token is
no tag, and a tag no token, even with one key for both.

Decisions 117 and 136.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.errors import ConfigError
from fastbk.model.ids import ID_MAX
from fastbk.printable_text import printable
from fastbk.safe_files import read_public, read_secret
from fastbk.security.rights import NO_RIGHTS, OPERATIONS, Principal, can_be_revoked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


TOKEN_BYTES_MAX = 4096
NAME_CHARACTERS_MAX = 200
REASON_CHARACTERS_MAX = 300
UNREVOCABLE = 'could not be revoked: it must not begin or end with a blank, nor have " #" in it'
KEYS_MAX = 100
ALGORITHM = "EdDSA"
TAG_TYPE = "fastbk-ledger"
"""The header's `typ` of a ledger's tag, and of no token."""
NAMESPACES_MAX = 100
BOOKIES, GATEWAYS, PAGES = "bookies", "gateways", "pages"
"""Kinds of servers that a token may be limited to: its audience is then AUDIENCE/KIND."""
KINDS = (BOOKIES, GATEWAYS, PAGES)
_PUBLIC_FIELDS = ("kty", "crv", "x", "kid")


class TokenError(Exception):
    """A token that is not accepted; the text says why, without the token. It can be sent and shown."""

    def __init__(self, reason: str) -> None:
        super().__init__(printable(reason, REASON_CHARACTERS_MAX))


class TokenKeys:
    """The public keys of one file, and the tokens that they have signed."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        """Keep the keys by their ids."""
        self._keys = dict(keys)

    @classmethod
    def load(cls, path: str) -> TokenKeys:
        """Read a JSON Web Key Set. Raises ConfigError."""
        import jwt

        entries = _key_entries(read_public(path), path)
        keys: dict[str, Any] = {}
        for entry in entries:
            key_id = entry.get("kid")
            if (
                entry.get("kty") != "OKP"
                or entry.get("crv") != "Ed25519"
                or not isinstance(key_id, str)
            ):
                raise ConfigError(f"{path}: every key must be of Ed25519 and have a kid")
            if key_id in keys:
                raise ConfigError(f"{path}: two keys have the kid {key_id[:40]!r}")
            try:
                public = {name: entry[name] for name in _PUBLIC_FIELDS}
                keys[key_id] = jwt.PyJWK.from_dict({**public, "alg": ALGORITHM}).key
            except (jwt.PyJWTError, KeyError, ValueError, TypeError) as error:
                raise ConfigError(f"{path}: the key {key_id[:40]!r} is none of Ed25519") from error
        if not 0 < len(keys) <= KEYS_MAX:
            raise ConfigError(f"{path}: must have 1 to {KEYS_MAX} keys")
        return cls(keys)

    @property
    def ids(self) -> frozenset[str]:
        """The keys' ids."""
        return frozenset(self._keys)

    def __contains__(self, key_id: object) -> bool:
        """Return whether there is such a key."""
        return key_id in self._keys

    def verify(
        self, token: bytes, audience: str, clock_s: Callable[[], float] = time.time, kind: str = ""
    ) -> Principal:
        """Return whose token it is and what it allows. Raises TokenError.

        `kind`: of this server: tokens for all of the cluster's, and those for its kind, are good here.
        """
        if kind and _claimed_audience(token) == f"{audience}/{kind}":
            audience = f"{audience}/{kind}"
        claims, key_id = self.claims(token, audience, ("exp", "aud", "sub"), is_tag=False)
        return _principal(claims, key_id, clock_s())

    def claims(
        self, token: bytes, audience: str, required: Sequence[str], *, is_tag: bool
    ) -> tuple[Mapping[str, Any], str]:
        """Return what one of these keys has signed for this audience, and the key's id. Raises TokenError.

        Its times are not judged.
        """
        import jwt

        if not 0 < len(token) <= TOKEN_BYTES_MAX:
            raise TokenError(f"a token has 1 to {TOKEN_BYTES_MAX} bytes, not {len(token)}")
        try:
            # A nested or overlong header or payload is bounded by the token's length.
            header = jwt.get_unverified_header(token)
            key_id = str(header.get("kid", ""))
            key = self._keys.get(key_id)
            if key is None:
                raise TokenError(f"no key {key_id[:40]!r} is known here")
            if (header.get("typ") == TAG_TYPE) != is_tag:
                raise TokenError(
                    "it is no tag of a ledger" if is_tag else "it is a tag of a ledger"
                )
            claims = jwt.decode(
                token,
                key,
                algorithms=[ALGORITHM],
                audience=audience,
                options={"require": list(required), "verify_exp": False, "verify_iat": False, "strict_aud": True},
            )  # fmt: skip
        except jwt.InvalidAudienceError:
            raise TokenError(
                "it is for another cluster, or for another kind of servers (aud)"
            ) from None
        except TokenError:
            raise
        except Exception as error:  # noqa: BLE001 - a stranger's bytes in a library; its text may quote them
            raise TokenError(f"it is not good: {error}") from None
        return claims, key_id


class TokenKey(msgspec.Struct, frozen=True, kw_only=True):
    """A private key, and the id that bookies know it by."""

    key_id: str
    private_key: Ed25519PrivateKey

    @classmethod
    def generate(cls, key_id: str = "") -> TokenKey:
        """Make one."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(key_id=key_id or secrets.token_hex(8), private_key=Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str) -> TokenKey:
        """Read a file that `text` made. Raises ConfigError."""
        import jwt
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        entries = _key_entries(read_secret(path), path)
        try:
            entry = entries[-1]
            key = jwt.PyJWK.from_dict({**entry, "alg": ALGORITHM}).key
            key_id = entry["kid"]
        except (jwt.PyJWTError, KeyError, IndexError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} has no key of Ed25519") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(
                f"{path} has no private key: sign with the file that `fastbk token key` made"
            )
        return cls(key_id=str(key_id), private_key=key)

    def text(self) -> str:
        """Return the content of the private file."""
        return _key_set([{**self._entry(self.private_key), "kid": self.key_id}])

    def public_text(self, others: Sequence[Mapping[str, str]] = ()) -> str:
        """Return the content of the bookies' file: this key behind `others`."""
        return _key_set(
            [*others, {**self._entry(self.private_key.public_key()), "kid": self.key_id}]
        )

    def sign(
        self,
        subject: str,
        operations: Sequence[str],
        audience: str,
        *,
        lifetime_s: float,
        namespaces: Sequence[str] | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> str:
        """Return a token. `namespaces`: patterns that it is limited to; None: not.

        Raises ConfigError for an operation that there is not, and for what bookies would refuse.
        """
        if wrong := [one for one in operations if one not in OPERATIONS] or not operations:
            raise ConfigError(f"operations must be some of {', '.join(OPERATIONS)}, not {wrong}")
        if not 0 < len(subject) <= NAME_CHARACTERS_MAX or not subject.isprintable():
            raise ConfigError(
                f"the subject must have 1 to {NAME_CHARACTERS_MAX} printable characters"
            )
        if not can_be_revoked(subject):
            raise ConfigError(f"the subject {subject!r} {UNREVOCABLE}")
        now_s = int(clock_s())
        claims = {
            "sub": subject,
            "aud": audience,
            "iat": now_s,
            "exp": now_s + int(lifetime_s),
            "ops": list(operations),
            "jti": secrets.token_hex(8),
        }
        if namespaces is not None:
            try:
                claims["ns"] = list(_patterns(list(namespaces)))
            except TokenError as error:
                raise ConfigError(f"namespaces: {error}") from None
        return self.signed(claims, "JWT")

    def signed(self, claims: Mapping[str, Any], kind: str) -> str:
        """Return claims with a signature; `kind` stands in the header."""
        import jwt

        headers = {"kid": self.key_id, "typ": kind}
        return jwt.encode(dict(claims), self.private_key, algorithm=ALGORITHM, headers=headers)

    @staticmethod
    def _entry(key: Any) -> dict[str, str]:  # noqa: ANN401 -- private or public, as PyJWT takes it
        from jwt.algorithms import OKPAlgorithm

        return dict(OKPAlgorithm.to_jwk(key, as_dict=True))


def public_entries(path: str) -> list[dict[str, str]]:
    """Return the public halves of all keys of a file. Raises ConfigError."""
    entries = _key_entries(read_public(path), path)
    return [{name: str(entry.get(name, "")) for name in _PUBLIC_FIELDS} for entry in entries]


def _key_set(entries: Sequence[Mapping[str, str]]) -> str:
    return json.dumps({"keys": [dict(one) for one in entries]}, indent=2) + "\n"


def _key_entries(text: bytes, path: str) -> list[dict[str, Any]]:
    try:
        content = json.loads(text)
        entries = content["keys"]
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f'{path} is no JSON Web Key Set: {{"keys": [...]}}') from error
    return entries


def _principal(claims: Mapping[str, Any], key_id: str, now_s: float) -> Principal:
    subject, operations, ends_at_s = claims["sub"], claims.get("ops"), claims["exp"]
    if (
        not isinstance(subject, str)
        or not 0 < len(subject) <= NAME_CHARACTERS_MAX
        or not subject.isprintable()
    ):
        raise TokenError(f"its subject must have 1 to {NAME_CHARACTERS_MAX} printable characters")
    if not can_be_revoked(subject):
        raise TokenError(f"its subject {subject!r} {UNREVOCABLE}")
    if (
        isinstance(ends_at_s, bool)
        or not isinstance(ends_at_s, int | float)
        or not abs(ends_at_s) < 1e12
    ):
        raise TokenError("its end (exp) is no time")
    if ends_at_s <= now_s:
        raise TokenError("it has expired")
    if not isinstance(operations, list) or not operations:
        raise TokenError("it allows no operation (ops)")
    rights = NO_RIGHTS
    for operation in operations:
        if not isinstance(operation, str) or operation not in OPERATIONS:
            raise TokenError(f"its operation {str(operation)[:40]!r} is not known here")
        rights |= OPERATIONS[operation]
    token_id = claims.get("jti", "")
    return Principal(
        name=f"token:{subject}",
        rights=rights,
        ends_at_s=float(ends_at_s),
        key_id=key_id,
        token_id=token_id if isinstance(token_id, str) else "",
        namespaces=_patterns(claims["ns"]) if "ns" in claims else None,
    )


def _patterns(patterns: object) -> tuple[str, ...]:
    if not isinstance(patterns, list) or not 0 < len(patterns) <= NAMESPACES_MAX:
        raise TokenError(f"it must be limited to 1 to {NAMESPACES_MAX} patterns of namespaces (ns)")
    for one in patterns:
        if (
            not isinstance(one, str)
            or not 0 < len(one) <= NAME_CHARACTERS_MAX
            or not one.isprintable()
        ):
            raise TokenError(
                f"a pattern of namespaces (ns) must have 1 to {NAME_CHARACTERS_MAX} printable characters"
            )
    return tuple(patterns)


def _claimed_audience(token: bytes) -> object:
    """Return what a token says that it is for; None: nothing. Nothing is verified."""
    try:
        payload = token.split(b".")[1]
        return json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))["aud"]
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        return None


def namespaces_of(token: bytes) -> tuple[str, ...] | None:
    """Return the patterns of namespaces that a token of one's own is limited to; None: to none. Nothing is verified."""
    try:
        payload = token.split(b".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        return _patterns(claims["ns"]) if "ns" in claims else None
    except (IndexError, ValueError, TypeError, RecursionError, TokenError):
        return None


TAG_AGE_S_MAX = 7 * 86_400.0
"""Clients go on for so long where metadata is away, also on new connections."""


class LedgerTag(msgspec.Struct, frozen=True):
    """What a good tag says, and the id of the key that signed it."""

    ledger_id: int
    namespace: str
    key_id: str


def sign_tag(
    key: TokenKey,
    ledger_id: int,
    namespace: str,
    audience: str,
    clock_s: Callable[[], float] = time.time,
) -> bytes:
    """Return a ledger's tag. Raises TokenError for a namespace that is too long for one."""
    claims = {"ledger": ledger_id, "ns": namespace, "aud": audience, "iat": int(clock_s())}
    tag = key.signed(claims, TAG_TYPE).encode()
    if len(tag) > TOKEN_BYTES_MAX:
        raise TokenError(
            f"the name of its namespace has {len(namespace)} characters, too many for a tag"
        )
    return tag


def verify_tag(
    keys: TokenKeys, tag: bytes, audience: str, clock_s: Callable[[], float] = time.time
) -> LedgerTag:
    """Return what a tag says. Raises TokenError."""
    claims, key_id = keys.claims(tag, audience, ("ledger", "ns", "aud", "iat"), is_tag=True)
    ledger_id, namespace, signed_s = claims["ledger"], claims["ns"], claims["iat"]
    if isinstance(signed_s, bool) or not isinstance(signed_s, int | float):
        raise TokenError("its time (iat) is none")
    if not clock_s() - signed_s <= TAG_AGE_S_MAX:
        raise TokenError("it is older than 7 days")
    if (
        isinstance(ledger_id, bool)
        or not isinstance(ledger_id, int)
        or not 0 <= ledger_id <= ID_MAX
    ):
        raise TokenError("its ledger is no id")
    if not isinstance(namespace, str):
        raise TokenError("its namespace (ns) is no name")
    return LedgerTag(ledger_id, namespace, key_id)
