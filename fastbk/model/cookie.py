"""Apache's cookie: who a bookie is and which directories are its own, in the bytes that Apache's tools read.

The same bytes lie in the metadata store under the bookie's id and in every directory as `current/VERSION`. Directories
stand there by their ids instead of their paths: a disk may be mounted elsewhere, and a wrong disk under the right path
is what has to be found. No I/O.
"""

from __future__ import annotations

import msgspec

from fastbk.errors import StorageError
from fastbk.model import protobuf

VERSION = 5
_READABLE_VERSIONS = (4, VERSION)
"""4 is without `indexDirs`; older ones are no protobuf text and were gone before Apache's 4.3."""


class CookieError(StorageError):
    """Bytes that are no cookie, a damaged one, or one of a version that is not known."""


class Cookie(msgspec.Struct, frozen=True):
    """One bookie's cookie.

    Attributes:
        bookie_id: as ledgers name it.
        journals, ledgers: its directories: ids in fastbk's cookies, paths in Apache's.
        instance_id: of the cluster; empty where the cluster has none.
    """

    bookie_id: str
    journals: tuple[str, ...]
    ledgers: tuple[str, ...]
    instance_id: str = ""


def encode(cookie: Cookie, indexes: tuple[str, ...] | None = None) -> bytes:
    """Return a cookie's bytes; without an instance id that field is left out, as Apache does.

    `indexes`: directories of indexes; None: those of ledgers, as bookies say it, () leaves the field out.
    """
    counted = _list(cookie.ledgers)
    fields = [
        ("bookieHost", cookie.bookie_id),
        ("journalDir", ",".join(cookie.journals)),
        ("ledgerDirs", counted),
    ]
    if cookie.instance_id:
        fields.append(("instanceId", cookie.instance_id))
    if indexes != ():
        fields.append(("indexDirs", counted if indexes is None else _list(indexes)))
    lines = [f'{name}: "{protobuf.quoted(value.encode())}"\n' for name, value in fields]
    return f"{VERSION}\n{''.join(lines)}".encode()


def decode(raw: bytes, name: str = "cookie") -> Cookie:
    """Return the cookie in `raw`. Raises CookieError, which begins with `name`."""
    first, _, rest = raw.partition(b"\n")
    if not first.strip().isdigit() or len(first) > 9:
        raise CookieError(f"{name}: not a cookie, or damaged")
    if int(first) not in _READABLE_VERSIONS:
        raise CookieError(f"{name}: a cookie of version {int(first)}, {VERSION} is known")
    try:
        message = protobuf.parse_text(rest)
        texts = {
            field: (message.content(field) or b"").decode()
            for field in ("bookieHost", "journalDir", "ledgerDirs", "instanceId")
        }
        ledgers = _counted(texts["ledgerDirs"])
    except ValueError as error:
        raise CookieError(f"{name}: a damaged cookie: {error}") from None
    if not texts["bookieHost"]:
        raise CookieError(f"{name}: a damaged cookie: it names no bookie")
    journals = tuple(filter(None, texts["journalDir"].split(",")))
    return Cookie(texts["bookieHost"], journals, ledgers, texts["instanceId"])


def _list(items: tuple[str, ...]) -> str:
    return "\t".join([str(len(items)), *items])


def _counted(text: str) -> tuple[str, ...]:
    """Return the items of a list that begins with its length; raise ValueError if it does not."""
    count, *items = text.split("\t")
    if not count.isdigit() or int(count) != len(items):
        raise ValueError(f"{len(items)} directories under a count of {count!r}")
    return tuple(items)
