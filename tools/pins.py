"""`./dev pins`: the files of `requirements/` anew: a version of each package, and hashes of that version's files.

pip installs by them with `--require-hashes`: nothing that is not in them, and no file with another hash. To change a
version, or to add a package, edit `name==version` and run this, which adds the packages that it needs and the hashes.
`UPGRADE=name,name` gives these packages their newest versions that fit, `UPGRADE=all` every package.

uv chooses, by the package index that `UV_DEFAULT_INDEX` names (uv's own if it is not set), for every Python and machine
that `./dev setup` is for. No file names an index, so that each machine installs from its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tools import ROOT
from tools.environments import ensure_environment

FOLDER = ROOT / "requirements"
ENVIRONMENT, REQUIREMENTS = ".venv-pins", FOLDER / "pins.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The oldest one is what pyproject.toml asks for."""
MACHINES = ("x86_64", "aarch64")
BESIDE: dict[str, tuple[str, ...]] = {
    "run": (),
    "build": ("run",),
    "console": ("run", "build"),
    "spark": ("run", "build"),
    "test": ("run", "build", "console", "spark"),
    "load": ("run",),
    "audit": (),
    "wheels": (),
    "kubernetes": (),
    "pulsar": (),
    "pins": (),
}
"""Each file, and those that are installed into the same environment before it or with it: it repeats nothing of them.

They come before it here: what they pin holds for it."""
EXTRAS = {"run": (), "console": ("console",), "spark": ("arrow", "spark", "charts")}
"""Files of what fastbk itself needs, with its extras there: the ranges of pyproject.toml hold."""


@dataclass(frozen=True)
class Pin:
    """One version of one package."""

    name: str
    """Name as package indexes compare names."""
    version: str
    marker: str
    """Where it is needed; empty: everywhere."""
    hashes: tuple[str, ...]
    """`sha256:...`, in order."""

    def text(self) -> str:
        """Return it as pip reads it."""
        first = f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")
        return " \\\n".join([first, *(f"    --hash={one}" for one in self.hashes)]) + "\n"


def read_pins(text: str) -> dict[str, Pin]:
    """Return the pins of a requirements file, by name. Raises ValueError on a line that is none."""
    pins: dict[str, Pin] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        found = re.fullmatch(
            r"([\w.-]+)==([^\s;]+)(?:\s*;\s*(.*?))?((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*", line
        )
        if found is None:
            raise ValueError(f"not name==version, a marker and hashes: {line}")
        name = canonicalize_name(found[1])
        if name in pins:
            raise ValueError(f"{name} is pinned twice")
        pins[name] = Pin(
            name, found[2], found[3] or "", tuple(re.findall(r"--hash=(\S+)", found[4]))
        )
    return pins


def is_needed(pin: Pin) -> bool:
    """Return whether some system that `./dev setup` is for needs it: Linux, with one of the Pythons."""
    linux = {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux"}
    return not pin.marker or any(
        Marker(pin.marker).evaluate(
            {
                **linux,
                "python_version": one,
                "python_full_version": f"{one}.0",
                "platform_machine": machine,
            }
        )
        for one in PYTHONS
        for machine in MACHINES
    )


def wanted(pins: dict[str, Pin], upgraded: set[str]) -> str:
    """Return what to ask uv for: these versions, and any of those that are to be upgraded."""
    lines = []
    for pin in pins.values():
        version = "" if pin.name in upgraded or "all" in upgraded else f"=={pin.version}"
        lines.append(f"{pin.name}{version}" + (f" ; {pin.marker}" if pin.marker else ""))
    return "\n".join(lines) + "\n"


def resolved(name: str, upgraded: set[str]) -> dict[str, Pin]:
    """Return the pins that the file `name` should have."""
    uv = ensure_environment(ENVIRONMENT, REQUIREMENTS).with_name("uv")
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own.txt"
        own.write_text(wanted(read_pins((FOLDER / f"{name}.txt").read_text()), upgraded))
        beside: dict[str, Pin] = {}
        for other in BESIDE[name]:
            beside |= read_pins((FOLDER / f"{other}.txt").read_text())
        (Path(folder) / "beside.txt").write_text(wanted(beside, set()))
        command = [
            uv, "pip", "compile", "--quiet", "--universal", "--python-version", PYTHONS[0], "--generate-hashes",
            "--no-annotate", "--no-header", "--no-cache", own, "--constraint", Path(folder) / "beside.txt",
        ]  # fmt: skip
        if name in EXTRAS:
            command += [
                ROOT / "pyproject.toml",
                *(word for one in EXTRAS[name] for word in ("--extra", one)),
            ]
        environment = {**os.environ, "UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment, cwd=folder
        )
    if done.returncode != 0:
        raise SystemExit(f"pins: {name}.txt cannot be resolved:\n{done.stderr.strip()}")
    pins = read_pins(done.stdout)
    return {one.name: one for one in pins.values() if one.name not in beside and is_needed(one)}


def main() -> int:
    """Write every file that changes; return the exit code."""
    upgraded = {
        str(canonicalize_name(one)) for one in os.environ.get("UPGRADE", "").split(",") if one
    }
    known = {name for file in BESIDE for name in read_pins((FOLDER / f"{file}.txt").read_text())}
    if unknown := upgraded - known - {"all"}:
        print(f"pins: no file of requirements/ has {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for name in BESIDE:
        path = FOLDER / f"{name}.txt"
        before = path.read_text()
        comment = "".join(line for line in before.splitlines(keepends=True) if line.startswith("#"))
        pins = resolved(name, upgraded)
        text = comment + "".join(pins[one].text() for one in sorted(pins))
        if text != before:
            path.write_text(text)
            old = read_pins(before)
            for one in sorted({*old, *pins}):
                versions = [pin.version if pin else "none" for pin in (old.get(one), pins.get(one))]
                if versions[0] != versions[1]:
                    print(f"{path.name}: {one} {versions[0]} -> {versions[1]}")
        print(f"{path.name}: {len(pins)} packages, {'changed' if text != before else 'as it was'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
