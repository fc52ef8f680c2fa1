"""The file of principals, tokens and keys that are not accepted any more."""

from __future__ import annotations

from fastbk.errors import ConfigError
from fastbk.private_files import read_public

KINDS = ("user", "token", "certificate", "id", "key")


def load_revocations(path: str) -> frozenset[str]:
    """Return the lines of a file of who is revoked; `#` begins a comment. Raises ConfigError."""
    found = set()
    for number, line in enumerate(read_public(path).decode("utf-8", "replace").splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        kind, separator, name = entry.partition(":")
        if kind not in KINDS or not separator or not name:
            raise ConfigError(f"{path}:{number}: must be {', '.join(f'{one}:NAME' for one in KINDS)}")
        found.add(entry)
    return frozenset(found)
