"""Where the records of namespaces and streams are in the metadata store. Pure; nobody else writes such a path.

ZooKeeper tells the names below a node in one answer, of about 1 MB at most. So whatever there may be any number of lies
below many parents: ids by their first two digits, which are drawn, and the names of a namespace by a checksum of the
name. Parents are made by the first record below them, and nobody lists more than one of ids at a time.

| path | |
|---|---|
| `namespaces/<xx>/<id>` | a namespace; xx: the first two characters of the id |
| `namespaces/<xx>/<id>/<part>/<name>` | what has this name in it; part: one of 64 |
| `usage/<xx>/<id>` | counts of a namespace |
| `stored/<xx>/<id>` | bytes of a namespace that has a quota of them |
| `streams/<xx>/<id>` | a stream; its chain, pages, cursors and drafts lie below |
"""

from __future__ import annotations

import zlib

from fastbk.stream.names import encode

STREAMS = "streams"
STORED = "stored"
NAME_PARTS = 64
"""Parents of a namespace's names: few, for a small namespace is listed by as many requests at most."""
NAMES_MAX = 200_000
"""In one namespace, the names of those below it not counted: with the longest names a part then has some 800 KB."""


def _by_id(folder: str, one_id: str) -> str:
    return f"{folder}/{one_id[:2]}/{one_id}"


# --- namespaces -------------------------------------------------------------------------------------------------


def namespace_path(namespace_id: str) -> str:
    """Return where a namespace's record is; the parts of its names lie directly below."""
    return _by_id("namespaces", namespace_id)


def entry_path(namespace_id: str, name: str) -> str:
    """Return where it stands what has this name."""
    part = encode(name)
    return f"{names_path(namespace_id, f'{zlib.crc32(part.encode()) % NAME_PARTS:02d}')}/{part}"


def names_path(namespace_id: str, part: str) -> str:
    """Return what a part of a namespace's names lies below."""
    return f"{namespace_path(namespace_id)}/{part}"


def usage_path(namespace_id: str) -> str:
    """Return where a namespace's counts are."""
    return _by_id("usage", namespace_id)


def stored_path(namespace_id: str) -> str:
    """Return where it stands how many bytes a namespace has."""
    return _by_id(STORED, namespace_id)


def stored_part_path(part: str) -> str:
    """Return what the counts of bytes lie below of namespaces whose ids begin so; the parts are below `STORED`."""
    return f"{STORED}/{part}"


# --- streams ----------------------------------------------------------------------------------------------------


def streams_path(part: str) -> str:
    """Return what the streams lie below whose ids begin so; the parts are below `STREAMS`."""
    return f"{STREAMS}/{part}"


def stream_path(stream_id: str) -> str:
    """Return where a stream's record is."""
    return _by_id(STREAMS, stream_id)


def chain_path(stream_id: str) -> str:
    """Return where a stream's chain is."""
    return f"{stream_path(stream_id)}/chain"


def pages_path(stream_id: str) -> str:
    """Return what the pages of a stream's old segments lie below."""
    return f"{stream_path(stream_id)}/pages"


def cursors_path(stream_id: str) -> str:
    """Return what a stream's cursors lie below."""
    return f"{stream_path(stream_id)}/cursors"


def drafts_path(stream_id: str) -> str:
    """Return what the drafts lie below: ledgers that are to be attached to a stream."""
    return f"{stream_path(stream_id)}/drafts"
