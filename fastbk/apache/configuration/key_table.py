"""All of Apache's keys that are known, by name, and what becomes of the rest."""

from __future__ import annotations

import difflib

from fastbk.apache.configuration import keys_ignored, keys_settings
from fastbk.apache.configuration.keys import Key, Kind, Verdict

UNKNOWN = "not a key of Apache's bookies"
PREFIXES = {
    "dlog": "streams are not part of a bookie here",
    "storage.": "streams and their storage are not part of a bookie here",
    "storageserver.": "streams and their storage are not part of a bookie here",
    "codahaleStats": "metrics are for Prometheus",
    "dbStorage_": "locations lie in files of our own, there is no RocksDB",
    "client": "it is a key of clients",
}
"""What begins so is ignored for this reason when it has no row of its own."""


def _all() -> dict[str, Key]:
    rows = [*keys_settings.KEYS, *keys_ignored.REFUSED]
    for reason, names in keys_ignored.IGNORED:
        for each in names.split():
            name, _, default = each.partition("=")
            text = default.replace("~", " ").strip()
            rows.append(Key(name, text, Verdict.IGNORED, kind=Kind.TEXT, note=reason))
    found = {row.name: row for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


KEYS = _all()
"""By name."""


def key_of(name: str) -> Key:
    """Return what becomes of a key, whether it is known or not."""
    if (known := KEYS.get(name)) is not None:
        return known
    for prefix, reason in PREFIXES.items():
        if name.startswith(prefix):
            return Key(name, "", Verdict.IGNORED, kind=Kind.TEXT, note=reason)
    return Key(name, "", Verdict.IGNORED, kind=Kind.TEXT, note=UNKNOWN + nearest(name))


def is_unknown(key: Key) -> bool:
    """Return whether a key of this name was never heard of."""
    return key.note.startswith(UNKNOWN)


def nearest(name: str) -> str:
    """Return `: did you mean ...?` where some key's name is near, else nothing."""
    lower = {known.lower(): known for known in KEYS}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.8)
    return f": did you mean {lower[close[0]]}?" if close else ""
