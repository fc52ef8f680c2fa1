"""Tags: the namespace of a ledger, signed by a bookie that has read it in the ledger's metadata.

A tag is a JSON Web Token of Ed25519, as tokens are, with other claims: `ledger` (the id), `ns` (the namespace, "" where
metadata names none), `aud` (the cluster's id), `iat`. It never expires, since a ledger's namespace does not change; who
removes its key has it refused. A token is no tag, and a tag no token, even with one key for both.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.auth.tokens import TAG_TYPE, TOKEN_BYTES_MAX, TokenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.auth.tokens import TokenKey, TokenKeys

LEDGER_ID_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LedgerTag:
    """What a good tag says, and the id of the key that signed it."""

    ledger_id: int
    namespace: str
    key_id: str


def sign_tag(
    key: TokenKey, ledger_id: int, namespace: str, audience: str, clock_s: Callable[[], float] = time.time
) -> bytes:
    """Return a ledger's tag. Raises TokenError for a namespace that is too long for one."""
    claims = {"ledger": ledger_id, "ns": namespace, "aud": audience, "iat": int(clock_s())}
    tag = key.signed(claims, TAG_TYPE).encode()
    if len(tag) > TOKEN_BYTES_MAX:
        raise TokenError(f"the name of its namespace has {len(namespace)} characters, too many for a tag")
    return tag


def verify_tag(keys: TokenKeys, tag: bytes, audience: str) -> LedgerTag:
    """Return what a tag says. Raises TokenError."""
    claims, key_id = keys.claims(tag, audience, ("ledger", "ns", "aud"), is_tag=True)
    ledger_id, namespace = claims["ledger"], claims["ns"]
    if isinstance(ledger_id, bool) or not isinstance(ledger_id, int) or not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise TokenError("its ledger is no id")
    if not isinstance(namespace, str):
        raise TokenError("its namespace (ns) is no name")
    return LedgerTag(ledger_id, namespace, key_id)
