"""Which file system a directory lies on, from `/proc/self/mountinfo`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fastbk.errors import StorageError


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: `device` is major:minor, `source` what was mounted, `options` of mount and file system together."""

    device: str
    point: str
    kind: str
    source: str
    options: frozenset[str]


def parse(text: str) -> list[Mount]:
    """Return the mounts that a mountinfo file lists; lines that make no sense are passed over."""
    found = []
    for line in text.splitlines():
        front, separator, back = line.partition(" - ")
        fields, rest = front.split(), back.split()
        if not separator or len(fields) < 6 or len(rest) < 2:
            continue
        options = {*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
        found.append(
            Mount(
                fields[2], _unescaped(fields[4]), rest[0], _unescaped(rest[1]), frozenset(options)
            )
        )
    return found


def mount_of(directory: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> Mount:
    """Return the mount that `directory`, or the nearest folder above it that exists, lies on. Raises StorageError."""
    path = os.path.realpath(directory)
    best: Mount | None = None
    for mount in parse(mountinfo.read_text()):
        is_above = mount.point == "/" or path == mount.point or path.startswith(f"{mount.point}/")
        # Of several at one point the last one is on top.
        if is_above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        raise StorageError(f"{directory} lies on no mount that {mountinfo} lists")
    return best


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
