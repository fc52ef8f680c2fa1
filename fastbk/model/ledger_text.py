"""Reads ledger metadata of Apache's first two versions, which are text; `fastbk.model.ledger` writes the third.

What follows the first line "BookieMetadataFormatVersion\\t<version>":

1: lines with write quorum, ensemble size and length; a line `first entry TAB bookie TAB bookie ...` for each
   fragment; at the end `-102 TAB CLOSED` (in recovery) or `last entry TAB CLOSED`, nothing while it is open.
2: the message LedgerMetadataFormat in protobuf's text form.

Both give the binary message of version 3, so that one place decides what a ledger's metadata may be.
"""

from __future__ import annotations

from fastbk.model import protobuf, protobuf_text

_V1_IN_RECOVERY = -102
_STATES = {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3}
_DIGESTS = {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4}
_INTEGERS = {
    "quorumSize": 1,
    "ensembleSize": 2,
    "length": 3,
    "lastEntryId": 4,
    "ackQuorumSize": 9,
    "ctime": 10,
    "cToken": 12,
}
_ENUMS = {"state": (5, _STATES), "digestType": (7, _DIGESTS)}
_STRINGS = {"password": 8}
_KNOWN = {*_INTEGERS, *_ENUMS, *_STRINGS, "segment", "customMetadata"}


def message_of_version_1(body: bytes) -> bytes:
    """Return the binary message of what a version 1 node says behind its first line; raise ValueError."""
    lines = body.decode().split("\n")
    if len(lines) < 3:
        raise ValueError("quorum, ensemble size or length is missing")
    out = bytearray()
    for number, line in zip((1, 2, 3), lines, strict=False):
        protobuf.put_int(out, number, int(line))
    state, last_entry_id = "OPEN", -1
    for line in lines[3:]:
        first, *rest = line.split("\t")
        if line == "":
            continue
        if rest == ["CLOSED"]:
            if int(first) == _V1_IN_RECOVERY:
                state = "IN_RECOVERY"
            else:
                state, last_entry_id = "CLOSED", int(first)
            break
        _put_segment(out, int(first), [bookie.encode() for bookie in rest])
    protobuf.put_int(out, 4, last_entry_id)
    protobuf.put_int(out, 5, _STATES[state])
    return bytes(out)


def message_of_version_2(body: bytes) -> bytes:
    """Return the binary message of what a version 2 node says behind its first line; raise ValueError."""
    text = protobuf_text.parse(body)
    # Binary fields that are not known are carried along; text has no numbers to write them back under.
    unknown = text.values.keys() - _KNOWN
    if unknown:
        raise ValueError(f"unknown field {min(unknown)}")
    out = bytearray()
    for name, number in _INTEGERS.items():
        word = text.word(name)
        if word is not None:
            protobuf.put_int(out, number, int(word))
    for name, (number, values) in _ENUMS.items():
        word = text.word(name)
        if word is not None:
            if word not in values:
                raise ValueError(f"{name} {word} is not known")
            protobuf.put_int(out, number, values[word])
    for name, number in _STRINGS.items():
        content = text.content(name)
        if content is not None:
            protobuf.put_bytes(out, number, content)
    for segment in text.messages("segment"):
        first = segment.word("firstEntryId")
        if first is None:
            raise ValueError("a fragment has no first entry")
        _put_segment(out, int(first), segment.contents("ensembleMember"))
    for pair in text.messages("customMetadata"):
        entry = bytearray()
        protobuf.put_bytes(entry, 1, pair.content("key") or b"")
        protobuf.put_bytes(entry, 2, pair.content("value") or b"")
        protobuf.put_bytes(out, 11, bytes(entry))
    return bytes(out)


def _put_segment(out: bytearray, first_entry_id: int, bookies: list[bytes]) -> None:
    segment = bytearray()
    for bookie in bookies:
        protobuf.put_bytes(segment, 1, bookie)
    protobuf.put_int(segment, 2, first_entry_id)
    protobuf.put_bytes(out, 6, bytes(segment))
