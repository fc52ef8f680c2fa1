"""The versions of all formats, and from which format level on each is written.

A cluster has a format level, a number that only rises (`fastbk cluster finalize`, `fastbk.meta.format_level`). A new
version of fastbk reads what the version before it wrote, and writes nothing else until the cluster has the level that
the new format needs. Until then every process may go back to the version before.

The numbers live where files are read and written: `home` names that place. `tests/unit/test_formats.py` compares them.
Imports nothing: the tables of a command that prints them need no client.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

LEVEL_FIRST = 1
"""Level of clusters that were never finalized, and of processes that do not register a level."""
LEVEL_MAX = 4
"""The highest level that this version has."""
LEVEL_PROPERTY = "format_level"
"""The property of a bookie's registration that has its `LEVEL_MAX`."""
LEVELS = {
    1: "the formats of 0.1; every process may go back to it",
    2: "the same formats; every process reads the cluster's level and leaves a cluster whose level it lacks",
    3: "cursors of patterns of streams, which every janitor has to honour",
    4: "journal files that stay as entry logs; policies of namespaces and streams that place their segments;"
    " streams of producers, and sinks of pipelines; leases, counters and configuration; objects",
}
"""What each level adds to the one below."""


class Format(msgspec.Struct, frozen=True):
    """One format.

    Attributes:
        name: as `fastbk version --formats` prints it.
        written: level -> the version that is written from that level on. One that is not written at all in clusters of
            lower levels does not have `LEVEL_FIRST`.
        read_min: the oldest version that is read; all up to the newest in `written` are.
        home: `module:NAME` in fastbk, or `file.h:NAME` below fastbk/native/src: what the code writes at `LEVEL_MAX`.
        where: where the bytes are.
    """

    name: str
    written: Mapping[int, int]
    read_min: int
    home: str
    where: str

    @property
    def newest(self) -> int:
        """Return the newest version, which this fastbk writes at `LEVEL_MAX`."""
        return self.written[max(self.written)]

    @property
    def since(self) -> int:
        """Return the level from which on it is written at all."""
        return min(self.written)

    def version_at(self, level: int) -> int:
        """Return the version to write in a cluster of this level, at least `since` (INV-U1)."""
        return self.written[max(one for one in self.written if one <= level)]


def _same(
    name: str, version: int, home: str, where: str, *, read_min: int = 0, since: int = LEVEL_FIRST
) -> Format:
    """Return a format that is the same at all levels from `since` on; `read_min` 0: only this version is read."""
    return Format(name, {since: version}, read_min or version, home, where)


PATTERN_CURSOR = "pattern's cursor"
PLACEMENT_POLICY = "placement in policies"
PRODUCERS = "table of producers"
COORDINATION = "record of coordination"
OBJECT = "object"
_JOURNAL, _LEDGERS, _BOTH = "journal directory", "ledger directory", "both directories"
FORMATS = (
    Format("journal file", {1: 2, 4: 3}, 1, "base/journal_header.h:FBK_JOURNAL_VERSION", _JOURNAL),
    _same("entry log", 1, "base/layout.h:FBK_LOG_VERSION", _LEDGERS),
    Format("locations file", {1: 2, 4: 3}, 1, "base/layout.h:FBK_LOCATIONS_VERSION", _LEDGERS),
    Format("manifest", {1: 2, 4: 3}, 1, "storage.manifest:VERSION", _LEDGERS),
    _same("identity", 1, "storage.identity:FORMAT", _BOTH),
    _same("cookie", 5, "model.cookie:VERSION", f"{_BOTH}, metadata", read_min=4),
    _same("mark of metadata's age", 1, "storage.metadata_mark:FORMAT", _LEDGERS),
    _same("last seen metadata", 1, "storage.last_metadata:VERSION", _LEDGERS),
    _same("ledgers in limbo", 1, "storage.limbo:VERSION", _LEDGERS),
    _same("unclean start", 1, "storage.unclean:FORMAT", _LEDGERS),
    _same("explicit LACs, read-only, import", 1, "storage.small_files:FORMAT", _LEDGERS),
    _same("scrub's progress", 1, "storage.scrub_state:FORMAT", _LEDGERS),
    _same("move of shards", 1, "server.offline:FORMAT", _LEDGERS),
    _same("ledger metadata", 3, "model.ledger:FORMAT_VERSION", "metadata", read_min=1),
    _same("sqlite metadata", 3, "meta.sqlite.store:FORMAT", "metadata.sqlite", read_min=1),
    _same("stream's chain", 1, "stream.chain:VERSION", "metadata"),
    _same("cursor", 1, "stream.cursor.state:VERSION", "metadata"),
    _same(PATTERN_CURSOR, 1, "stream.pattern.store:VERSION", "metadata", since=3),
    _same(PLACEMENT_POLICY, 1, "stream.policy:VERSION", "metadata", since=4),
    _same(PRODUCERS, 1, "stream.kind:VERSION", "metadata", since=4),
    _same(COORDINATION, 1, "coordination.records:VERSION", "metadata", since=4),
    _same(OBJECT, 1, "stream.object_records:VERSION", "metadata, ledgers", since=4),
    _same("stream position", 1, "stream.positions:VERSION", "applications"),
    _same("metadata backup", 1, "admin.metadata_backup:FORMAT", "a file of the operator's"),
    _same("collection of a bookie", 1, "admin.metadata_rebuild:FORMAT", "a file of the operator's"),
    _same("fastbk's protocol", 1, "wire.messages:VERSION_MAX", "network"),
    _same(
        "Apache's protocol, version 2", 2, "apache/packet.h:FBK_APACHE_PACKET_VERSION", "network"
    ),
    _same(
        "Apache's protocol, version 3",
        3,
        "apache/messages.h:FBK_APACHE_PROTOCOL_VERSION",
        "network",
    ),
)
"""All formats that outlive a process or go from one to another. Shared memory is not among them: all of a bookie's
processes are of one version."""


def version_at(name: str, level: int) -> int:
    """Return the version of a format to write in a cluster of this level (INV-U1). KeyError: there is no such one."""
    return _BY_NAME[name].version_at(level)


def level_of(name: str) -> int:
    """Return the level from which on a format is written at all. KeyError: there is no such one."""
    return _BY_NAME[name].since


def level_with(name: str, version: int) -> int:
    """Return the level from which on this version of a format may be written. KeyError: there is no such one."""
    written = _BY_NAME[name].written
    return min(level for level in written if written[level] >= version)


_BY_NAME = {one.name: one for one in FORMATS}
