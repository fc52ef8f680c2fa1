"""Ledger metadata: the value, its legal transitions, and Apache's bytes (version 3; 1 and 2 are read too).

    "BookieMetadataFormatVersion\\t3\\n" | varint size | protobuf message LedgerMetadataFormat

Fields that this version does not know are kept and written back, so that a compare-and-set by an older client
loses nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from fastbk.errors import ConfigError, StorageError
from fastbk.model import protobuf
from fastbk.model.entry import DigestType
from fastbk.model.ids import NO_ENTRY, BookieId, EntryId
from fastbk.model.quorum import check_quorums

_HEADER = b"BookieMetadataFormatVersion\t"
_HEAD_BYTES_MAX = 40
FORMAT_VERSION = 3
NAMESPACE_KEY = "fastbk.namespace"
"""Key of a ledger's custom metadata: its namespace."""
STREAM_KEY = "fastbk.stream"
"""Key of a ledger's custom metadata: the stream that it belongs to."""
SEGMENT_KEY = "fastbk.segment"
"""The number that a stream's writer made it for."""
NAME_KEY = "fastbk.name"
"""The name of the stream or object when its writer made it: for one whose record is lost."""
CURSOR_KEY = "fastbk.cursor"
"""The cursor whose states it holds."""
OBJECT_KEY = "fastbk.object"
"""The upload that made it, of an object whose name is below `NAME_KEY`."""


def custom_of_stream(stream_id: str, namespace: str) -> dict[str, bytes]:
    """Return the custom metadata that each ledger of a stream has. `namespace`: the stream's, by path; "": the root."""
    custom = {STREAM_KEY: stream_id.encode()}
    return {**custom, NAMESPACE_KEY: namespace.encode()} if namespace else custom


class LedgerState(enum.IntEnum):
    """Where a ledger is in its life; the numbers of the bytes."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """The entries from `first_entry_id` up to the next fragment's first, and the bookies that hold them."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """What the metadata store holds about one ledger.

    `last_entry_id` and `length` (bytes of data) count only when CLOSED; else they are -1 and 0. `creation_token`
    is a random number that tells a creator whose answer got lost that the ledger is its own.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId = NO_ENTRY
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes | None = field(default=b"", repr=False)
    created_ms: int | None = None
    custom: dict[str, bytes] = field(default_factory=dict)
    creation_token: int = 0
    unknown_fields: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)
        if not self.fragments:
            raise ConfigError("ledger metadata needs at least one fragment")
        previous = -1
        for fragment in self.fragments:
            if len(fragment.ensemble) != self.ensemble_size:
                raise ConfigError(
                    f"fragment {fragment.first_entry_id} names {len(fragment.ensemble)} bookies,"
                    f" the ensemble has {self.ensemble_size}"
                )
            if fragment.first_entry_id <= previous:
                raise ConfigError("fragments must start at 0 or later and ascend")
            previous = fragment.first_entry_id

    @property
    def namespace(self) -> str:
        """What its creator said that it belongs to; "": nothing."""
        return self.custom.get(NAMESPACE_KEY, b"").decode(errors="replace")

    @property
    def is_closed(self) -> bool:
        """Whether the last entry is final."""
        return self.state is LedgerState.CLOSED

    @property
    def is_placeholder(self) -> bool:
        """Whether it only keeps its id from being used."""
        return self == PLACEHOLDER

    @property
    def is_empty(self) -> bool:
        """Whether it ended without an entry."""
        return self.is_closed and self.last_entry_id < 0

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        """Return the fragment that `entry_id` belongs to (entries before the first one: the first)."""
        found = self.fragments[0]
        for fragment in self.fragments:
            if fragment.first_entry_id > entry_id:
                break
            found = fragment
        return found

    def closed(self, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        """Return the metadata after a close; CLOSED is final, so another end raises ConfigError."""
        if self.is_closed and (self.last_entry_id, self.length) != (last_entry_id, length):
            raise ConfigError("a closed ledger keeps its last entry and length")
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def to_bytes(self) -> bytes:
        """Return Apache's bytes, version 3."""
        message = _to_message(self)
        return b"%b%d\n%b%b" % (_HEADER, FORMAT_VERSION, protobuf.varint(len(message)), message)

    @classmethod
    def from_bytes(cls, raw: bytes) -> LedgerMetadata:
        """Return the value of `raw` (versions 1 to 3); raise StorageError for anything that is not well-formed."""
        head, newline, body = raw.partition(b"\n")
        is_head = head.startswith(_HEADER) and head[len(_HEADER) :].isdigit()
        if not newline or not is_head or len(head) > _HEAD_BYTES_MAX:
            raise StorageError("ledger metadata does not begin with its format's name and version")
        version = int(head[len(_HEADER) :])
        if not 1 <= version <= FORMAT_VERSION:
            raise StorageError(
                f"ledger metadata is of format version {version}; this version reads 1 to {FORMAT_VERSION}"
            )
        try:
            if version == 1:
                return _from_message(message_of_version_1(body))
            if version == 2:
                return _from_message(message_of_version_2(body))
            size, index = protobuf.read_varint(body, 0)
            if index + size > len(body):
                raise ValueError("the message is cut off")
            return _from_message(body[index : index + size])
        except (ValueError, ConfigError) as error:
            raise StorageError(f"ledger metadata is damaged: {error}") from error


PLACEHOLDER = LedgerMetadata(
    ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, ("none:0",)),)
).closed(NO_ENTRY, 0)
"""What is created and deleted at once, so that an id is never used: a store remembers those of deleted ledgers."""


def _to_message(metadata: LedgerMetadata) -> bytes:
    out = bytearray()
    protobuf.put_int(out, 1, metadata.write_quorum)
    protobuf.put_int(out, 2, metadata.ensemble_size)
    protobuf.put_int(out, 3, metadata.length)
    protobuf.put_int(out, 4, metadata.last_entry_id)
    protobuf.put_int(out, 5, metadata.state)
    for fragment in metadata.fragments:
        segment = bytearray()
        for bookie_id in fragment.ensemble:
            protobuf.put_bytes(segment, 1, bookie_id.encode())
        protobuf.put_int(segment, 2, fragment.first_entry_id)
        protobuf.put_bytes(out, 6, bytes(segment))
    if metadata.digest_type is not None:
        protobuf.put_int(out, 7, metadata.digest_type)
    if metadata.password is not None:
        protobuf.put_bytes(out, 8, metadata.password)
    protobuf.put_int(out, 9, metadata.ack_quorum)
    if metadata.created_ms is not None:
        protobuf.put_int(out, 10, metadata.created_ms)
    for key, value in metadata.custom.items():
        pair = bytearray()
        protobuf.put_bytes(pair, 1, key.encode())
        protobuf.put_bytes(pair, 2, value)
        protobuf.put_bytes(out, 11, bytes(pair))
    protobuf.put_int(out, 12, metadata.creation_token)
    return bytes(out) + metadata.unknown_fields


def _from_message(message: bytes) -> LedgerMetadata:
    numbers: dict[int, int] = {}
    fragments: list[Fragment] = []
    custom: dict[str, bytes] = {}
    password: bytes | None = None
    unknown = bytearray()
    for one in protobuf.fields(message):
        if one.number in (1, 2, 3, 4, 5, 7, 9, 10, 12):
            numbers[one.number] = one.integer()
        elif one.number == 6:
            fragments.append(_fragment(one.content()))
        elif one.number == 8:
            password = one.content()
        elif one.number == 11:
            key, value = _pair(one.content())
            custom[key] = value
        else:
            unknown += one.raw
    for required in (1, 2, 3, 5):
        if required not in numbers:
            raise ValueError(f"field {required} is missing")
    state = LedgerState(numbers[5])
    closed = state is LedgerState.CLOSED
    if closed and (numbers[3] < 0 or numbers.get(4, NO_ENTRY) < NO_ENTRY):
        raise ValueError(f"it ends at entry {numbers.get(4)} with {numbers[3]} bytes")
    return LedgerMetadata(
        write_quorum=numbers[1],
        ensemble_size=numbers[2],
        ack_quorum=numbers.get(9, numbers[1]),
        fragments=tuple(sorted(fragments, key=lambda fragment: fragment.first_entry_id)),
        state=state,
        last_entry_id=numbers.get(4, NO_ENTRY) if closed else NO_ENTRY,
        length=numbers[3] if closed else 0,
        digest_type=DigestType(numbers[7]) if 7 in numbers else None,
        password=password,
        created_ms=numbers.get(10),
        custom=custom,
        creation_token=numbers.get(12, 0),
        unknown_fields=bytes(unknown),
    )


def _fragment(message: bytes) -> Fragment:
    ensemble: list[BookieId] = []
    first: EntryId | None = None
    for one in protobuf.fields(message):
        if one.number == 1:
            ensemble.append(one.content().decode())
        elif one.number == 2:
            first = one.integer()
    if first is None:
        raise ValueError("a fragment has no first entry")
    return Fragment(first, tuple(ensemble))


def _pair(message: bytes) -> tuple[str, bytes]:
    key, value = "", b""
    for one in protobuf.fields(message):
        if one.number == 1:
            key = one.content().decode()
        elif one.number == 2:
            value = one.content()
    return key, value


# --- Apache's text form ------------------------------------------------------------------------------------------
#
# Reads ledger metadata of Apache's first two versions, which are text.
#
# What follows the first line "BookieMetadataFormatVersion\t<version>":
#
# 1: lines with write quorum, ensemble size and length; a line `first entry TAB bookie TAB bookie ...` for each
#    fragment; at the end `-102 TAB CLOSED` (in recovery) or `last entry TAB CLOSED`, nothing while it is open.
# 2: the message LedgerMetadataFormat in protobuf's text form.
#
# Both give the binary message of version 3, so that one place decides what a ledger's metadata may be.


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
    text = protobuf.parse_text(body)
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
