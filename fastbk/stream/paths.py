"""Names of namespaces and streams, and the paths of their records in the metadata store. Pure.

No other module writes such a path. README.md lists them.

ZooKeeper tells the names below a node in one answer, of about 1 MB at most. So whatever there may be any number of lies
below many parents: ids by their first two digits, which are drawn, and the names of a namespace by a checksum of the
name. Parents are made by the first record below them, and nobody lists more than one of ids at a time.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from urllib.parse import quote, unquote

from fastbk.errors import ConfigError, WrongType

NAMESPACES = "namespaces"
USAGE = "usage"
STREAMS = "streams"
STORED = "stored"
CURSORS = "cursors"
"""Cursors of patterns: a stream's own cursors lie below the stream."""
COORDINATION = "coordination"
"""Leases, counters and configuration of namespaces (`fastbk.coordination`)."""
SERVICES = "services"
"""Write services: few, and each of them and each producer lists them all."""
OBJECTS = "objects"
UPLOADS = "uploads"
"""Ledgers of objects that have no name yet, or none any more."""
OBJECT_PARTS = 256
"""Parents of the names of a namespace's objects: a namespace may have more objects than streams."""
OBJECTS_MAX = 800_000
"""Maximum objects in one namespace: with the longest names a part then has some 800 KB."""
NAME_PARTS = 64
"""Parents of a namespace's names: few, for a small namespace is listed by as many requests at most."""
NAMES_MAX = 200_000
"""Maximum names in one namespace, the names of those below it not counted: with the longest names a part then has
some 800 KB.
"""


def _by_id(folder: str, one_id: str) -> str:
    return f"{folder}/{one_id[:2]}/{one_id}"


# --- namespaces -----------------------------------------------------------------------------------


def namespace_path(namespace_id: str) -> str:
    """Return where a namespace's record is; the parts of its names lie directly below."""
    return _by_id(NAMESPACES, namespace_id)


def entry_path(namespace_id: str, name: str) -> str:
    """Return where it stands what has this name."""
    part = encode(name)
    return f"{names_path(namespace_id, f'{zlib.crc32(part.encode()) % NAME_PARTS:02d}')}/{part}"


def names_path(namespace_id: str, part: str) -> str:
    """Return what a part of a namespace's names lies below."""
    return f"{namespace_path(namespace_id)}/{part}"


def usage_path(namespace_id: str) -> str:
    """Return where a namespace's counts are."""
    return _by_id(USAGE, namespace_id)


def stored_path(namespace_id: str) -> str:
    """Return where it stands how many bytes a namespace has."""
    return _by_id(STORED, namespace_id)


# --- streams --------------------------------------------------------------------------------------


def part_path(folder: str, part: str) -> str:
    """Return what lies below of STREAMS, STORED or CURSORS whose ids begin so; the parts are below the folder."""
    return f"{folder}/{part}"


def stream_path(stream_id: str) -> str:
    """Return where a stream's record is."""
    return _by_id(STREAMS, stream_id)


def chain_path(stream_id: str) -> str:
    """Return where a stream's chain is."""
    return f"{stream_path(stream_id)}/chain"


def pages_path(stream_id: str) -> str:
    """Return what the pages of a stream's old segments lie below."""
    return f"{stream_path(stream_id)}/pages"


def page_part(number: int, token: int) -> str:
    """Return the name of a page's record below `pages_path`."""
    return f"{number}-{token:016x}"


def number_of_page(name: str) -> int:
    """Return the number of a page by the name of its record; -1 for a name that no page has."""
    number, _, token = name.partition("-")
    try:
        found = int(number), int(token, 16)
    except ValueError:
        return -1
    return found[0] if min(found) >= 0 and page_part(*found) == name else -1


def producers_path(stream_id: str) -> str:
    """Return what the pages of a stream's table of producers lie below, of a change of its kind (`page_part`).

    Their number is the epoch in which they were written.
    """
    return f"{stream_path(stream_id)}/producers"


def cursors_path(stream_id: str) -> str:
    """Return what a stream's cursors lie below."""
    return f"{stream_path(stream_id)}/cursors"


def pattern_cursors_path(namespace_id: str) -> str:
    """Return what the cursors of patterns of a namespace's streams lie below."""
    return _by_id(CURSORS, namespace_id)


def coordination_path(namespace_id: str) -> str:
    """Return what a namespace's records of coordination lie below; the record here counts them."""
    return _by_id(COORDINATION, namespace_id)


def drafts_path(stream_id: str) -> str:
    """Return what the drafts lie below: ledgers that are to be attached to a stream."""
    return f"{stream_path(stream_id)}/drafts"


# --- objects --------------------------------------------------------------------------------------


def object_counts_path(namespace_id: str) -> str:
    """Return where the counts of a namespace's objects are; the parts of their names lie directly below."""
    return _by_id(OBJECTS, namespace_id)


def object_part_path(namespace_id: str, part: str) -> str:
    """Return what a part of the names of a namespace's objects lies below."""
    return f"{object_counts_path(namespace_id)}/{part}"


def object_path(namespace_id: str, name: str) -> str:
    """Return where an object's record is."""
    last = encode(name)
    return f"{object_part_path(namespace_id, f'{zlib.crc32(last.encode()) % OBJECT_PARTS:03d}')}/{last}"


def uploads_path(namespace_id: str) -> str:
    """Return what the uploads of a namespace's objects lie below."""
    return _by_id(UPLOADS, namespace_id)


def upload_path(namespace_id: str, upload_id: str) -> str:
    """Return where an upload's record is."""
    return f"{uploads_path(namespace_id)}/{upload_id}"


# --- write services -------------------------------------------------------------------------------


def service_path(service_id: str) -> str:
    """Return where a write service's record is."""
    return f"{SERVICES}/{encode(service_id)}"


_KINDS = {
    re.compile(pattern): kind
    for pattern, kind in (
        (rf"{NAMESPACES}/[^/]+/[^/]+", "namespace"),
        (rf"{NAMESPACES}/[^/]+/[^/]+/[^/]+/[^/]+", "entry"),
        (rf"{USAGE}/[^/]+/[^/]+", "usage"),
        (rf"{STORED}/[^/]+/[^/]+", "stored"),
        (rf"{CURSORS}/[^/]+/[^/]+/[^/]+", "pattern cursor"),
        (rf"{COORDINATION}/[^/]+/[^/]+", "count of coordination"),
        (rf"{COORDINATION}/[^/]+/[^/]+/[^/]+", "coordination"),
        (rf"{STREAMS}/[^/]+/[^/]+", "stream"),
        (rf"{STREAMS}/[^/]+/[^/]+/chain", "chain"),
        (rf"{STREAMS}/[^/]+/[^/]+/pages/[^/]+", "page"),
        (rf"{STREAMS}/[^/]+/[^/]+/producers/[^/]+", "page of producers"),
        (rf"{STREAMS}/[^/]+/[^/]+/cursors/[^/]+", "cursor"),
        (rf"{STREAMS}/[^/]+/[^/]+/drafts/[^/]+", "draft"),
        (rf"{OBJECTS}/[^/]+/[^/]+", "counts of objects"),
        (rf"{OBJECTS}/[^/]+/[^/]+/[^/]+/[^/]+", "object"),
        (rf"{UPLOADS}/[^/]+/[^/]+/[^/]+", "upload"),
        (rf"{SERVICES}/[^/]+", "write service"),
    )
}


def kind_at(path: str) -> str:
    """Return what kind of record is at a path; "": none of a stream or namespace."""
    return next((kind for pattern, kind in _KINDS.items() if pattern.fullmatch(path)), "")


NAME_BYTES_MAX = 255
"""Maximum bytes of a name as it is written in a path: UTF-8, with three characters for each byte that paths do not
take.
"""
SHOWN_MAX = 80
_PLAIN = "@:+=~"  # beside letters, digits and _.-
_FORBIDDEN = {"Cc", "Cs", "Zl", "Zp"}


def check_name(name: str) -> str:
    """Return `name` if a namespace or stream may have it. Raises ConfigError with the rule that it breaks."""
    if not isinstance(name, str):
        raise WrongType(f"{name!r} is no name of a namespace or stream: a name is text")
    if not name:
        raise ConfigError("a name is empty: between slashes there has to be one")
    if name[0] in ".<":
        raise ConfigError(f"{_shown(name)}: a name does not begin with {name[0]!r}")
    if "/" in name:
        raise ConfigError(f"{_shown(name)}: slashes are for paths of namespaces, not for names")
    if any(unicodedata.category(one) in _FORBIDDEN for one in name):
        raise ConfigError(f"{_shown(name)}: a name has no control characters and no line ends")
    if len(encode(name)) > NAME_BYTES_MAX:
        raise ConfigError(
            f"{_shown(name)}: a name has at most {NAME_BYTES_MAX} bytes, as it is written in metadata"
        )
    return name


def check_object_name(name: str) -> str:
    """Return `name` if an object may have it, such as checkpoints/17. Raises ConfigError with the rule that it breaks.

    Slashes are part of the name: there are no folders.
    """
    if not isinstance(name, str):
        raise WrongType(f"{name!r} is no name of an object: a name is text")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ConfigError(
            f"{_shown(name)}: between the slashes of an object's name there is a part, not . or .., and it neither"
            " begins nor ends with a slash"
        )
    if any(unicodedata.category(one) in _FORBIDDEN for one in name):
        raise ConfigError(f"{_shown(name)}: a name has no control characters and no line ends")
    if len(encode(name)) > NAME_BYTES_MAX:
        raise ConfigError(
            f"{_shown(name)}: a name has at most {NAME_BYTES_MAX} bytes, as it is written in metadata; a slash counts 3"
        )
    return name


def _shown(name: str) -> str:
    """Return a name for a message: it may be of any length."""
    return repr(name) if len(name) <= SHOWN_MAX else f"{name[:SHOWN_MAX]!r}…"


def encode(name: str) -> str:
    """Return a name as one part of a path of metadata."""
    return quote(name, safe=_PLAIN)


def decode(part: str) -> str:
    """Return the name that `encode` wrote."""
    return unquote(part)


def split_path(path: str) -> tuple[str, ...]:
    """Return the names of a path of namespaces, such as tenant/app; none for the root, "". Raises ConfigError."""
    if not isinstance(path, str):
        raise WrongType(f"{path!r} is no path of namespaces: write text, such as tenant/app")
    return tuple(check_name(name) for name in path.split("/")) if path else ()


def split_stream_path(path: str) -> tuple[str, str]:
    """Return namespace and name of a stream's path, such as tenant/app/orders. Raises ConfigError."""
    namespace, _, name = path.strip("/").rpartition("/")
    if not name:
        raise ConfigError(
            f"{_shown(path)} is no stream: write namespace and name, such as shop/orders"
        )
    return namespace, name
