"""Installs the wheel into new environments of this machine's Pythons and tries it there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fastbk
from tools.wheels.build import Target
from tools.wheels.steps import WORK, new_folder, run, timed

TRIAL = Path(__file__).with_name("trial.py")
OLDEST, NEWEST = 11, 20
MANAGED = (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin")
VERSION = "import ensurepip, sys, venv; print(*sys.version_info[:2])"


def candidates() -> Iterator[Path]:
    """Yield files that may be a Python: of PYTHONS, of PATH, of Debian, of pyenv and uv."""
    for word in os.environ.get("PYTHONS", "").split():
        found = shutil.which(word)
        if found is None:
            raise SystemExit(f"wheels: PYTHONS names {word}, which is not here")
        yield Path(found)
    folders = [Path("/usr/bin"), *map(Path, os.environ.get("PATH", "").split(":"))]
    for pattern in MANAGED:
        folders += sorted(Path.home().glob(pattern))
    for folder in dict.fromkeys(folders):
        for minor in range(OLDEST, NEWEST):
            if (folder / f"python3.{minor}").exists():
                yield folder / f"python3.{minor}"


def pythons() -> dict[tuple[int, int], Path]:
    """Return one working Python, with `venv` and pip, of each version at hand."""
    found: dict[tuple[int, int], Path] = {}
    for path in candidates():
        done = subprocess.run([path, "-c", VERSION], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            major, minor = map(int, done.stdout.split())
            if (major, minor) >= (3, OLDEST):
                found.setdefault((major, minor), path)
    return dict(sorted(found.items()))


def clean_environment(binaries: Path, home: Path) -> dict[str, str]:
    """Return an environment without compilers and without anything of the caller's."""
    return {"PATH": str(binaries), "HOME": str(home), "TMPDIR": "/tmp", "LANG": "C.UTF-8"}


def try_wheel(target: Target, python: Path, version: tuple[int, int]) -> dict[str, object]:
    """Install the wheel for one Python and try it; return the figures."""
    folder = new_folder(WORK / f"python{version[0]}.{version[1]}")
    figures: dict[str, object] = {"interpreter": str(python)}
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    binaries = folder / "venv" / "bin"
    with timed(figures, "install_s"):
        # Only wheels: what needs a compiler would fail here, not on somebody's machine.
        pip = [binaries / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        run(*pip, "--only-binary", ":all:", target.wheel, cwd=folder)
    environment = clean_environment(binaries, folder)
    said = run(binaries / "fastbk", "--version", cwd=folder, environment=environment).split()
    assert said[-1] == fastbk.__version__, said
    said = run(
        binaries / "python", "-I", TRIAL, "3", cwd=folder, environment=environment
    ).splitlines()
    figures |= json.loads(said[-1])
    assert str(figures["package"]).startswith(str(folder)), figures["package"]
    shutil.rmtree(folder)
    return figures
