"""The lines of an audit log: JSON, each with a hash over itself and all lines before it.

A line that is changed, taken out or put in breaks the chain at that place. Lines cut off at the end do not: so the
bookie logs the last hash from time to time (`audit.head`), and who keeps its log elsewhere can compare.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.printable_text import printable_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

BEGINNING = "0" * 64
LINE_BYTES_MAX = 8192
_MARK = b',"chain":"'
_END = b'"}'


class Chain:
    """The end of an audit log.

    Attributes:
        sequence: the number of its last line.
        head: the hash of its last line.
    """

    def __init__(self, sequence: int = 0, head: str = BEGINNING) -> None:
        self.sequence = sequence
        self.head = head

    def line(self, record: Mapping[str, Any]) -> bytes:
        """Return the next line, with its line break."""
        self.sequence += 1
        body = printable_json({"sequence": self.sequence, **record})[:-1]
        if len(body) > LINE_BYTES_MAX:
            cut = body[: LINE_BYTES_MAX // 4].decode("utf-8", "replace")
            body = printable_json(
                {"sequence": self.sequence, "cut_bytes": len(body), "start": cut}
            )[:-1]
        self.head = _hash(self.head, body)
        return body + _MARK + self.head.encode() + _END + b"\n"


def last_of(line: bytes) -> Chain | None:
    """Return the chain that ends with a line; None: it is broken."""
    found = _parts(line)
    if found is None:
        return None
    _, head, sequence = found
    return Chain(sequence, head)


def faults(lines: Iterable[bytes], chain: Chain | None = None) -> Iterator[str]:
    """Yield what is wrong with an audit log's lines, in their order. `chain`: what comes before; None: not known."""
    for number, line in enumerate(lines, 1):
        found = _parts(line)
        if found is None:
            yield f"line {number} is no line of an audit log, or is cut"
            chain = None
            continue
        body, head, sequence = found
        if chain is not None and sequence != chain.sequence + 1:
            yield f"line {number} has number {sequence} behind {chain.sequence}: lines are missing"
        elif chain is not None and _hash(chain.head, body) != head:
            yield f"line {number} (number {sequence}) does not belong behind the one before it: one of them was changed"
        chain = Chain(sequence, head)


def _parts(line: bytes) -> tuple[bytes, str, int] | None:
    body, mark, rest = line.rstrip(b"\n").rpartition(_MARK)
    if (
        not mark
        or not line.endswith(b"\n")
        or len(rest) != 64 + len(_END)
        or not rest.endswith(_END)
    ):
        return None
    try:
        sequence = msgspec.json.decode(body + b"}", type=dict[str, Any])["sequence"]
        head = rest[:64].decode("ascii")
    except (ValueError, KeyError, RecursionError):
        return None
    return (body, head, sequence) if isinstance(sequence, int) else None


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + body).hexdigest()
