"""The key of the hashes by which an index notices that a worker has rewritten a record (`base/header_hash.h`, INV-R4).

The supervisor draws one for each pair and boot, and gives it to the pair's journal and index alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib

if TYPE_CHECKING:
    from fastbk.native.cdata import CData

HEADER_KEY_BYTES: int = lib.FBK_HEADER_KEY_BYTES
NO_HEADER_KEY = bytes(HEADER_KEY_BYTES)
"""Where nobody attacks: in tests."""


def new_header_key() -> bytes:
    """Return a random key."""
    return os.urandom(HEADER_KEY_BYTES)  # `secrets` returns the same, and imports hashlib


def put_header_key(options: CData, key: bytes) -> None:
    """Put a key into the options of a journal or an index. Raises ValueError for another length."""
    if len(key) != HEADER_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes: {HEADER_KEY_BYTES} are needed")
    ffi.memmove(options.header_key, key, HEADER_KEY_BYTES)
