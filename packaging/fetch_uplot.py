"""`./dev uplot`: puts uPlot into the console's static files: from npm's registry, pinned, and checked by its hashes.

uPlot (MIT) draws the console's charts. It is another project's code, so it is in no commit of ours: wheels and Debian
packages carry it with its license. A console without it draws its charts as SVG images.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "fastbk" / "console" / "static" / "uplot"
PACKAGE = "uplot@1.6.32"
FILES = {
    "package/dist/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "package/dist/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "package/LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
FILE_BYTES_MAX = 1 << 20


def main() -> int:
    """Fetch what is missing or different; return the exit code."""
    if all(_is_there(name, digest) for name, digest in FILES.items()):
        return 0
    with tempfile.TemporaryDirectory() as folder:
        words = ["npm", "pack", "--silent", "--pack-destination", folder, PACKAGE]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=300, check=False, cwd=folder
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"uplot: npm cannot fetch {PACKAGE}: {error}; is npm installed?", file=sys.stderr)
            return 1
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            print(
                f"uplot: npm cannot fetch {PACKAGE}: {done.stderr.strip()[-500:]}", file=sys.stderr
            )
            return 1
        contents = _contents(archives[0])
    wrong = [name for name, digest in FILES.items() if _digest(contents.get(name, b"")) != digest]
    if wrong:
        print(
            f"uplot: {', '.join(wrong)} of {PACKAGE} is not what was pinned here: nothing was taken",
            file=sys.stderr,
        )
        return 1
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (TARGET / Path(name).name).write_bytes(contents[name])
    print(f"uplot: {PACKAGE} is in {TARGET.relative_to(ROOT)}")
    return 0


def _is_there(name: str, digest: str) -> bool:
    path = TARGET / Path(name).name
    return path.is_file() and _digest(path.read_bytes()) == digest


def _contents(archive: Path) -> dict[str, bytes]:
    """Return the wanted files; nothing is unpacked by a path of the archive's."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as members:
        for member in members:
            if member.name in FILES and member.isfile() and member.size <= FILE_BYTES_MAX:
                file = members.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
