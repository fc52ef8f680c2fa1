"""Python environments of their own, for tools whose packages do not belong beside fastbk's."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tools import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def ensure_environment(name: str, *requirements: Path) -> Path:
    """Return the python of the folder `name`, made or brought up to date when its requirements changed.

    It gets what they pin and nothing else, by hash: what a source package would fetch for its build has none.
    """
    folder = ROOT / name
    python, stamp = folder / "bin/python", folder / "stamp"
    key = "\n".join(path.read_text() for path in requirements)
    if not (python.exists() and stamp.exists() and stamp.read_text() == key):
        print(f"making {name}", file=sys.stderr)
        # Without a pip of its own, which would take five seconds: ours fills it.
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True
        )
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        files = [part for path in requirements for part in ("-r", str(path))]
        # Most modules of large packages are never imported; the others are compiled when they are.
        words = ["--no-input", "install", "-q", "--require-hashes", "--no-compile"]
        words += ["--only-binary", ":all:"]
        subprocess.run([*pip, *words, *files], check=True)
        stamp.write_text(key)
    return python
