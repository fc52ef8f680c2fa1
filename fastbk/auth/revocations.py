"""The file of principals, tokens and keys that are not accepted any more.

A line is `token:NAME`, and so on. `#` begins a comment at a line's start, or behind a blank: `token:team#1` is whole.
So a name that begins or ends with a blank, has " #" in it, or what is not printable, could not be revoked. Nobody is
served by such a name.
"""

from __future__ import annotations

import re

from fastbk.errors import ConfigError
from fastbk.private_files import read_public

KINDS = ("user", "token", "certificate", "id", "key")
_COMMENT = re.compile(r"(?:^|\s)#.*")


def can_be_revoked(name: str) -> bool:
    """Return whether a line of the file can say a name."""
    return name.isprintable() and name == name.strip() and " #" not in name


def read_revocations(path: str) -> tuple[frozenset[str], str]:
    """Return the good lines of a file of who is revoked, and what is wrong with the first other one; "": nothing.

    Raises ConfigError: it cannot be read.
    """
    found, wrong = set(), ""
    for number, line in enumerate(read_public(path).decode("utf-8", "replace").splitlines(), 1):
        entry = _COMMENT.sub("", line).strip()
        kind, separator, name = entry.partition(":")
        if kind in KINDS and separator and name and can_be_revoked(name):
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
