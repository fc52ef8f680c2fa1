"""What the pipeline appends: packages and files as `fastbk stream append --json-lines` takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.packages import checksums, packages

NAMES = ("packages", "files")
"""The streams, by their last names."""
NO_SECTION = "none"
_FIELD = re.compile(r"^([A-Za-z][\w-]*):[ \t]*(.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WrittenLines:
    """A file of lines, and how many."""

    path: Path
    lines: int


def write_lines(folder: Path) -> dict[str, WrittenLines]:
    """Write the lines of each stream to a file in this folder. Raises StorageError where dpkg has nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    described = list(_packages())
    sections = {str(one["package"]): str(one["section"]) for one in described}
    return {
        "packages": _write(folder / "packages.jsonl", described),
        "files": _write(folder / "files.jsonl", _files(sections)),
    }


def _packages() -> Iterator[dict[str, object]]:
    for item in packages():
        fields = dict(_FIELD.findall(item.payload.decode("utf-8", "backslashreplace")))
        yield {
            "package": fields["Package"],
            "architecture": fields.get("Architecture", ""),
            "version": fields.get("Version", ""),
            "section": fields.get("Section") or NO_SECTION,
            "installed_kib": int(fields.get("Installed-Size") or 0),
            "summary": fields.get("Description", ""),
        }


def _files(sections: dict[str, str]) -> Iterator[dict[str, object]]:
    for item in checksums():
        package = item.key.decode().partition(":")[0]
        md5, path = item.payload.decode("utf-8", "backslashreplace").split(maxsplit=1)
        section = sections.get(package, NO_SECTION)
        yield {"package": package, "section": section, "path": path, "md5": md5}


def _write(path: Path, records: Iterable[dict[str, object]]) -> WrittenLines:
    lines = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            lines += 1
            line = {
                # What --resume goes by: given again, the lines that are there are passed over.
                "txid": lines,
                "key": record["package"],
                "headers": [{"name": "source", "value": "dpkg"}],
                "payload": json.dumps(record, ensure_ascii=False),
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return WrittenLines(path, lines)
