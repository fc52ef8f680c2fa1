"""Tags: the namespace of a ledger, signed by a bookie that has read it in the ledger's metadata.

A tag is a JSON Web Token of Ed25519, as tokens are, with other claims: `ledger` (the id), `ns` (the namespace, "" where
metadata names none), `aud` (the cluster's id), `iat`. It is good for AGE_S_MAX, since a ledger may be moved to another
namespace; clients have it signed anew each day. A token is no tag, and a tag no token, even with one key for both.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.auth.tokens import TAG_TYPE, TOKEN_BYTES_MAX, TokenError
from fastbk.model.ids import ID_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.auth.tokens import TokenKey, TokenKeys

AGE_S_MAX = 7 * 86_400.0
"""Clients go on for so long where metadata is away, also on new connections."""


@dataclass(frozen=True, slots=True)
class LedgerTag:
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
    if not clock_s() - signed_s <= AGE_S_MAX:
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
