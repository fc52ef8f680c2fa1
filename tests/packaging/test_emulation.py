"""The list of tests that run under emulation: they are to be had with what is installed there, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tools import ROOT
from tools.wheels.emulation import OPTIONS, TESTED_PACKAGES, UNIT_TESTS


def installed_with(names: tuple[str, ...]) -> set[str]:
    """Return the packages that are installed with these."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            requirements = [Requirement(line) for line in distribution(name).requires or ()]
        except PackageNotFoundError:
            continue  # not for this Python
        found.add(name)
        left += [
            one.name
            for one in requirements
            if one.marker is None or one.marker.evaluate({"extra": ""})
        ]
    return found


def link_packages(names: set[str], folder: Path) -> None:
    """Have these packages in a folder for PYTHONPATH."""
    for name in names:
        made = distribution(name)
        for top in {file.parts[0] for file in made.files or () if file.parts[0] != ".."}:
            place = folder / top
            if not place.exists() and top != "__pycache__":
                place.symlink_to(Path(str(made.locate_file(top))))


def test_the_tests_under_emulation_are_collected_with_what_is_installed_there(
    tmp_path: Path,
) -> None:
    """Files that were merged had brought imports that these tests do without: five of them failed there."""
    names = installed_with(("fastbk", *TESTED_PACKAGES)) - {"fastbk"}
    assert {"msgspec", "hypothesis"} <= names
    link_packages(names, tmp_path)
    command = [sys.executable, "-S", "-m", "pytest", *OPTIONS, "--collect-only", *UNIT_TESTS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for one in UNIT_TESTS:
        assert f"{one}::" in done.stdout
    missing = subprocess.run(
        [sys.executable, "-S", "-c", "import grpc, pyarrow"], env=environment, capture_output=True
    )
    assert missing.returncode, "packages that are not installed there are not to be had here"
