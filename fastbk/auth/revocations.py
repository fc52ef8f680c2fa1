"""The file of principals, tokens and keys that are not accepted any more."""

from __future__ import annotations

from fastbk.errors import ConfigError
from fastbk.private_files import read_public

KINDS = ("user", "token", "certificate", "id", "key")


def read_revocations(path: str) -> tuple[frozenset[str], str]:
    """Return the good lines of a file of who is revoked, and what is wrong with the first other one; "": nothing.

    `#` begins a comment. Raises ConfigError: it cannot be read.
    """
    found, wrong = set(), ""
    for number, line in enumerate(read_public(path).decode("utf-8", "replace").splitlines(), 1):
        entry = line.partition("#")[0].strip()
        kind, separator, name = entry.partition(":")
        if kind in KINDS and separator and name:
            found.add(entry)
        elif entry:
            wrong = wrong or f"{path}:{number}: must be {', '.join(f'{one}:NAME' for one in KINDS)}"
    return frozenset(found), wrong


def load_revocations(path: str) -> frozenset[str]:
    """Return the lines of a file that has to be good. Raises ConfigError."""
    found, wrong = read_revocations(path)
    if wrong:
        raise ConfigError(wrong)
    return found
