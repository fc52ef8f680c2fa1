"""What a path of the record store names: the reverse of `fastbk.stream.paths`. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from urllib.parse import unquote

from fastbk.errors import ConfigError, StorageError
from fastbk.meta.replica_marks import FOLDER as MARKS
from fastbk.meta.replica_marks import path_of
from fastbk.stream.cursor.store import path_of as cursor_path
from fastbk.stream.drafts import parts_of
from fastbk.stream.paths import (
    COORDINATION,
    CURSORS,
    SERVICES,
    STORED,
    STREAMS,
    check_name,
    decode,
    encode,
    entry_path,
    number_of_page,
)
from fastbk.stream.services import SERVICE_ID


class Kind(enum.Enum):
    """What a record is. FOLDER: none, but there are some below it."""

    NAMESPACE = "namespace"
    ENTRY = "name"
    USAGE = "usage"
    STORED = "stored bytes"
    STREAM = "stream"
    CHAIN = "chain"
    PAGE = "page"
    CURSOR = "cursor"
    PATTERN_CURSOR = "cursor of a pattern in namespace"
    DRAFT = "draft"
    PRODUCERS_PAGE = "page of producers"
    SERVICE = "write service"
    COORDINATION = "lease, counter or configuration"
    COORDINATION_NAMES = "count of leases, counters and configurations of namespace"
    MARK = "mark"
    NAMES_FOLDER = "folder of names"
    PATTERNS_FOLDER = "folder of cursors of patterns"
    STREAM_FOLDER = "folder of a stream"
    SERVICES_FOLDER = "folder of write services"
    OTHER = "record"


@dataclass(frozen=True, slots=True)
class RecordName:
    """What a path names.

    Attributes:
        owner: the id of its namespace or stream; of a mark, its ledger's id; "" of others.
        name: of an ENTRY, what a namespace or stream is called; of COORDINATION, its own; of a SERVICE, its id.
    """

    kind: Kind
    owner: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """What people are told that it is."""
        return f"{self.kind.value} {self.name or self.owner}".strip()

    @property
    def is_of_namespace(self) -> bool:
        """Whether `owner` is a namespace."""
        return self.kind in _OF_NAMESPACES

    @property
    def is_of_stream(self) -> bool:
        """Whether `owner` is a stream."""
        return self.kind in _OF_STREAMS


OF_PATTERNS = {Kind.PATTERN_CURSOR, Kind.PATTERNS_FOLDER}
OF_COORDINATION = {Kind.COORDINATION, Kind.COORDINATION_NAMES}
_OF_NAMESPACES = {
    Kind.NAMESPACE,
    Kind.ENTRY,
    Kind.USAGE,
    Kind.STORED,
    Kind.NAMES_FOLDER,
    *OF_PATTERNS,
    *OF_COORDINATION,
}
_BELOW_STREAMS = {
    "pages": Kind.PAGE,
    "producers": Kind.PRODUCERS_PAGE,
    "cursors": Kind.CURSOR,
    "drafts": Kind.DRAFT,
}
_OF_STREAMS = {Kind.STREAM, Kind.CHAIN, Kind.STREAM_FOLDER, *_BELOW_STREAMS.values()}
OF_SERVICES = {Kind.SERVICE, Kind.SERVICES_FOLDER}
_OTHER = RecordName(Kind.OTHER)


def name_of(path: str) -> RecordName:
    """Return what a path names. One that only resembles a namespace's or stream's is OTHER, which few may change."""
    first, *parts = path.split("/")
    if first == MARKS:
        return _mark(path, parts)
    if first == SERVICES:
        return _of_services(parts)
    if len(parts) < 2 or parts[0] != parts[1][:2]:
        return _OTHER
    owner, below = parts[1], parts[2:]
    if first == "namespaces":
        return _of_namespace(owner, below)
    if first in ("usage", STORED) and not below:
        return RecordName(Kind.USAGE if first == "usage" else Kind.STORED, owner)
    if first == STREAMS:
        return _of_stream(owner, below)
    if first == CURSORS:
        return _of_patterns(owner, below)
    if first == COORDINATION:
        return _of_coordination(owner, below)
    return _OTHER


def _of_namespace(owner: str, below: list[str]) -> RecordName:
    if not below:
        return RecordName(Kind.NAMESPACE, owner)
    if len(below) == 1:
        return RecordName(Kind.NAMES_FOLDER, owner)
    name = decode(below[1])
    # A second spelling would let a name be there twice; one with a slash would be the path of another namespace.
    if len(below) == 2 and _is_name(name) and below == entry_path(owner, name).split("/")[-2:]:
        return RecordName(Kind.ENTRY, owner, name)
    return _OTHER


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except ConfigError:
        return False
    return True


def _of_stream(owner: str, below: list[str]) -> RecordName:
    if not below:
        return RecordName(Kind.STREAM, owner)
    if below == ["chain"]:
        return RecordName(Kind.CHAIN, owner)
    kind = _BELOW_STREAMS.get(below[0])
    if kind is None or len(below) > 2:
        return _OTHER
    if len(below) == 1:
        return RecordName(Kind.STREAM_FOLDER, owner)
    return RecordName(kind, owner) if _may_be_called(kind, below[1]) else _OTHER


def _of_services(parts: list[str]) -> RecordName:
    if not parts:
        return RecordName(Kind.SERVICES_FOLDER)
    is_one = len(parts) == 1 and SERVICE_ID.fullmatch(parts[0])
    return RecordName(Kind.SERVICE, name=parts[0]) if is_one else _OTHER


def _of_patterns(owner: str, below: list[str]) -> RecordName:
    if not below:
        return RecordName(Kind.PATTERNS_FOLDER, owner)
    if len(below) == 1 and _may_be_called(Kind.CURSOR, below[0]):
        return RecordName(Kind.PATTERN_CURSOR, owner)
    return _OTHER


def _of_coordination(owner: str, below: list[str]) -> RecordName:
    if not below:
        return RecordName(Kind.COORDINATION_NAMES, owner)
    name = decode(below[0])
    if len(below) == 1 and _is_name(name) and encode(name) == below[0]:
        return RecordName(Kind.COORDINATION, owner, name)
    return _OTHER


def _may_be_called(kind: Kind, name: str) -> bool:
    """Return whether a page, cursor or draft can have this name: others would hold up who lists and deletes them."""
    if kind in (Kind.PAGE, Kind.PRODUCERS_PAGE):
        return number_of_page(name) >= 0
    try:
        if kind is Kind.CURSOR:
            return cursor_path("aa", unquote(name)).rpartition("/")[2] == name
        parts_of(name)
    except (ConfigError, StorageError):
        return False
    return True


def _mark(path: str, parts: list[str]) -> RecordName:
    try:
        ledger_id = int(parts[1], 16) if len(parts) == 2 else -1
    except ValueError:
        return _OTHER
    return (
        RecordName(Kind.MARK, str(ledger_id))
        if ledger_id >= 0 and path_of(ledger_id) == path
        else _OTHER
    )
