"""The head of an HTTP/1 request: one meaning, or none. Pure.

A proxy in front that reads a head in another way would let one request hide in another, and pass it by its own checks.
So a head is refused that others read differently: a name with spaces around it, a folded line, a line end of one byte.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def parsed_head(head: bytes) -> tuple[str, str, dict[str, str] | None]:
    """Return method, target and headers by their lower-case names; None for what is no HTTP/1 request."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or _CONTROL.search(first):
        return "", "", None
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
            return "", "", None
        name = name.lower()
        # Two hosts are nobody's: joined as lists are, they name no server.
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return words[0], words[1], headers
