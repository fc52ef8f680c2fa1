"""What the main job streams: FILE=, else apt's package index, else files under /usr/share.

Names of files in apt's lists contain host names; they are never shown.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES = 4096
"""Entry size where the source has no records of its own."""


@dataclass
class Dataset:
    """What is streamed: `entries()` begins anew each time."""

    title: str
    records: list[bytes] = field(default_factory=list)
    file: Path | None = None
    is_repeated: bool = True

    def entries(self) -> Iterator[bytes]:
        """Yield the entries of one pass."""
        if self.file is None:
            yield from self.records
            return
        with open(self.file, "rb") as opened:
            while piece := opened.read(PIECE_BYTES):
                yield piece

    @property
    def pass_bytes(self) -> int:
        """Bytes of one pass."""
        if self.file is not None:
            return self.file.stat().st_size
        return sum(map(len, self.records))


def find_source() -> Dataset:
    """Return FILE= if it is given, else the package index, else files under /usr/share."""
    given = os.environ.get("FILE", "")
    if given:
        path = Path(given)
        if not path.is_file():
            raise ConfigError(f"FILE={given}: no such file")
        return Dataset(f"{path.name}, once", file=path, is_repeated=False)
    text = package_index()
    if text:
        records = [record + b"\n\n" for record in text.split(b"\n\n") if record.strip()]
        return Dataset(f"apt's package index, {len(records):,} records", records)
    pieces = list(shared_files(200 * 10**6))
    if not pieces:
        raise StorageError("no package index and nothing under /usr/share: give FILE=path")
    return Dataset("files under /usr/share", pieces)


def package_index() -> bytes:
    """Return the text of all package lists that apt has here, empty if there is none."""
    helper = "/usr/lib/apt/apt-helper"
    lists = sorted(Path("/var/lib/apt/lists").glob("*_Packages*"))
    texts = []
    for path in lists:
        if path.suffix == "" or path.name.endswith("_Packages"):
            texts.append(path.read_bytes())
        elif os.access(helper, os.X_OK):
            texts.append(_output([helper, "cat-file", str(path)]))
    found = b"\n".join(text for text in texts if text)
    return found or _output(["apt-cache", "dumpavail"])


def _output(command: list[str]) -> bytes:
    with suppress(OSError):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        if done.returncode == 0:
            return done.stdout
    return b""


def shared_files(size_bytes_max: int) -> Iterator[bytes]:
    """Yield pieces of the regular files under /usr/share, up to `size_bytes_max` together."""
    total = 0
    for folder, _, names in os.walk("/usr/share"):
        for name in sorted(names):
            path = Path(folder, name)
            try:
                if not path.is_file() or path.is_symlink():
                    continue
                data = path.read_bytes()
            except OSError:
                continue
            for at in range(0, len(data), PIECE_BYTES):
                yield data[at : at + PIECE_BYTES]
            total += len(data)
            if total >= size_bytes_max:
                return
