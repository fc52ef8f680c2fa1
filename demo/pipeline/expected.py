"""The same figures without any of our code: Python's own parser of mail headers over the files that dpkg keeps.

Nothing here is shared with what writes, reads or counts elsewhere: it is what all of that is held against.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path


@dataclass(slots=True)
class Totals:
    """Of all records.

    Attributes:
        digest: SHA-256 over the ascending SHA-256s, in hex and a line each, of all records' fields with tabs between.
        sections: by section: packages, their installed size in KiB, files.
    """

    packages: int = 0
    files: int = 0
    installed_kib: int = 0
    digest: str = ""
    sections: dict[str, tuple[int, int, int]] = field(default_factory=dict)


def totals(folder: Path | None = None) -> Totals:
    """Read what dpkg knows (in /var/lib/dpkg, or DPKG), and count."""
    folder = Path(os.environ.get("DPKG", "/var/lib/dpkg")) if folder is None else folder
    found = Totals()
    hashes: list[str] = []
    section_of: dict[str, str] = {}
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    text = (folder / "status").read_text("utf-8", "backslashreplace")
    for stanza in filter(str.strip, text.split("\n\n")):
        fields = HeaderParser().parsestr(stanza.lstrip("\n"))
        section, size = fields.get("Section") or "none", fields.get("Installed-Size") or "0"
        summary = fields.get("Description", "").split("\n")[0].strip()
        words = (
            "packages",
            fields["Package"],
            fields.get("Architecture", ""),
            fields.get("Version", ""),
        )
        hashes.append(_hash(*words, section, size, summary))
        section_of[fields["Package"]] = section
        counts[section][0] += 1
        counts[section][1] += int(size)
        found.packages += 1
        found.installed_kib += int(size)
    for path in (folder / "info").glob("*.md5sums"):
        package = path.name.removesuffix(".md5sums").split(":")[0]
        section = section_of.get(package, "none")
        for line in path.read_bytes().split(b"\n"):
            if line:
                md5, name = line.decode("utf-8", "backslashreplace").split(None, 1)
                hashes.append(_hash("files", package, section, name, md5))
                counts[section][2] += 1
                found.files += 1
    found.digest = hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()
    found.sections = {name: (one[0], one[1], one[2]) for name, one in counts.items()}
    return found


def _hash(*words: str) -> str:
    return hashlib.sha256("\t".join(words).encode()).hexdigest()
