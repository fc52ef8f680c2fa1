"""SASL DIGEST-MD5 (RFC 2831), as Apache's clients and bookies speak it: both sides as state machines without I/O.

Quality of protection is `auth`: what follows is neither signed nor encrypted, so this belongs behind TLS. Both sides
prove that they know the password; neither sends it. One challenge serves one response, with a nonce of its own: a
response that somebody has recorded is refused.

Decision 118.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.security.rights import can_be_revoked

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_BYTES_MAX = 4096
"""RFC 2831 limits a response to these bytes."""
SERVICE = "bookkeeper"
DIGEST_URI = f"{SERVICE}/{SERVICE}"
"""Apache's names of service and host: the same for all bookies."""
NONCE_BYTES = 18
FIRST_USE = "00000001"

_DIRECTIVE = re.compile(
    rb'[ \t]*([!#$%&\'*+\-.^_`|~0-9A-Za-z]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^",\s\\]+))[ \t]*',
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NEEDS_ESCAPE = re.compile(r'(["\\])')


class SaslError(Exception):
    """A message of the other side that does not authenticate it. The text is for our own log."""


class DigestServer:
    """A bookie's side of one authentication: `challenge`, then `verify`, once."""

    def __init__(
        self,
        password_of: Callable[[str], str | None],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._password_of = password_of
        self._nonce = base64.b64encode(random_bytes(NONCE_BYTES)).decode()
        self._is_used = False

    def challenge(self) -> bytes:
        """Return what the client answers."""
        return (
            f'realm="{SERVICE}",nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'
        ).encode()

    def verify(self, response: bytes) -> tuple[str, bytes]:
        """Return the user's name, and the last message, which proves that this side knows the password too.

        Raises SaslError.
        """
        if self._is_used:
            raise SaslError("a second response to one challenge")
        self._is_used = True
        found = parse(response)
        user, wanted = found.get("username", ""), found.get("response", "")
        same = {"nonce": self._nonce, "nc": FIRST_USE}
        for name, value in same.items():
            if found.get(name) != value:
                raise SaslError(f"{name} is not the challenge's")
        if found.get("digest-uri", "").lower() != DIGEST_URI:
            raise SaslError("it is for another service")
        if found.get("qop", "auth") != "auth":
            raise SaslError("it wants another quality of protection than auth")
        if found.get("charset", "utf-8") != "utf-8":
            raise SaslError("it has another charset than utf-8")
        if found.get("authzid", user) != user:
            raise SaslError("it wants to act for another user")
        if not user or not found.get("cnonce"):
            raise SaslError("it lacks a user or a cnonce")
        password = self._password_of(user)
        expected, proof = _responses(found, user, password or "")
        # Without such a user as much is computed as with one.
        if not _is_same(expected, wanted) or password is None:
            raise SaslError("the user or the password is wrong")
        return user, b"rspauth=" + proof.encode()


class DigestClient:
    """A client's side of one authentication: `respond` to the challenge, then `finish`."""

    def __init__(
        self, user: str, password: str, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._user, self._password = user, password
        self._cnonce = base64.b64encode(random_bytes(NONCE_BYTES)).decode()
        self._proof = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the response. Raises SaslError for a challenge of another mechanism."""
        found = parse(challenge)
        if not found.get("nonce") or found.get("algorithm") != "md5-sess":
            raise SaslError("it is no challenge of DIGEST-MD5")
        if "auth" not in (part.strip() for part in found.get("qop", "auth").split(",")):
            raise SaslError("it wants encryption or signatures of SASL: use TLS")
        answer = {
            "charset": "utf-8",
            "username": self._user,
            "realm": found.get("realm", ""),
            "nonce": found["nonce"],
            "nc": FIRST_USE,
            "cnonce": self._cnonce,
            "digest-uri": DIGEST_URI,
            "qop": "auth",
        }
        response, self._proof = _responses(answer, self._user, self._password)
        plain = ("charset", "nc", "qop")
        parts = [
            f"{name}={value}" if name in plain else f'{name}="{_quoted(value)}"'
            for name, value in answer.items()
        ]
        return ",".join((*parts, f"response={response}")).encode()

    def finish(self, last: bytes) -> None:
        """Verify the bookie's last message. Raises SaslError: it does not know the password."""
        proof = parse(last).get("rspauth", "")
        if not self._proof or not _is_same(self._proof, proof):
            raise SaslError("it does not know the password")


def parse(message: bytes) -> dict[str, str]:
    """Return the directives of a message. Raises SaslError."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslError("it is longer than 4 KiB")
    found: dict[str, str] = {}
    offset = 0
    while offset < len(message):
        match = _DIRECTIVE.match(message, offset)
        if match is None:
            raise SaslError("it is not a list of directives")
        name = match[1].decode().lower()
        try:
            value = (
                _ESCAPED.sub(r"\1", match[2].decode())
                if match[2] is not None
                else match[3].decode()
            )
        except UnicodeDecodeError:
            raise SaslError("it is not UTF-8") from None
        # a challenge may offer several realms: the first counts
        if name in found and name != "realm":
            raise SaslError(f"it has {name} twice")
        found.setdefault(name, value)
        offset = match.end()
        if offset < len(message):
            if message[offset : offset + 1] != b",":
                raise SaslError("it is not a list of directives")
            offset += 1
    return found


def check_name(user: str) -> None:
    """Raise ConfigError for a user's name that cannot be sent."""
    if not user or len(user.encode()) > 255 or any(ord(one) < 32 for one in user):
        raise ConfigError(
            f"user {user[:40]!r}: must have 1 to 255 bytes of UTF-8 without control characters"
        )
    if not can_be_revoked(user):
        reason = 'must not begin or end with a blank, nor have " #" in it: a line of revoked_file could not say it'
        raise ConfigError(f"user {user[:40]!r}: {reason}")


def _responses(found: dict[str, str], user: str, password: str) -> tuple[str, str]:
    """Return the digests that client and bookie prove themselves by."""
    first = _md5(b":".join(_hashed(part) for part in (user, found.get("realm", ""), password)))
    session = [first, found["nonce"].encode(), found["cnonce"].encode()]
    if "authzid" in found:
        session.append(found["authzid"].encode())
    secret = _md5(b":".join(session)).hex()

    def digest(method: str) -> str:
        second = _md5(f"{method}:{found['digest-uri']}".encode()).hex()
        parts = (secret, found["nonce"], found["nc"], found["cnonce"], "auth", second)
        return _md5(":".join(parts).encode()).hex()

    return digest("AUTHENTICATE"), digest("")


def _is_same(digest: str, given: str) -> bool:
    return hmac.compare_digest(digest.encode(), given.lower().encode())


def _hashed(text: str) -> bytes:
    # RFC 2831, 2.1.2.1: what fits into ISO 8859-1 is hashed as that.
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _quoted(text: str) -> str:
    return _NEEDS_ESCAPE.sub(r"\\\1", text)
