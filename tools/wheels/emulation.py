"""Tries the aarch64 wheel on an x86-64 machine: QEMU emulates the processor, this machine's kernel does the rest.

Only the processor differs, so nothing is shown of kernels on aarch64: `NOT_SHOWN` lists what remains open. QEMU and
Debian's Python for aarch64 are unpacked into a folder. Nothing is installed, and root is not needed. binfmt_misc is not
used: the Python is a script that starts QEMU, and its child processes start by the same script.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tools import ROOT, pins
from tools.wheels.build import GLIBC, Target
from tools.wheels.debian import SUITE, Apt
from tools.wheels.environments import TRIAL
from tools.wheels.steps import WORK, Missing, new_folder, run, timed

PACKAGES = ["python3.11", "libssl3", "libsqlite3-0"]
PYTHON = (3, 11)
NOT_SHOWN = (
    "io_uring: QEMU does not have it, so the journal falls back to pwritev2",
    "confinement: neither Landlock nor system call filters work under QEMU",
    "memory order: x86-64 keeps an order of loads and stores that aarch64 does not",
    "kernels with pages of 16 or 64 KiB",
    "speed",
)
TESTED_PACKAGES = ("pytest", "pytest-timeout", "hypothesis", "setuptools", "protobuf")
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "tests.fixtures.without_fake_disk")
UNIT_TESTS = (
    "tests/unit/wire/test_golden_frames.py",
    "tests/unit/wire/test_messages.py",
    *(
        f"tests/unit/native/test_{name}.py"
        for name in (
            "apache",
            "client_codec",
            "decide",
            "ffi",
            "hashes",
            "index_answers",
            "index_apply",
            "index_ledgers",
            "index_read",
            "process",
            "segment",
        )
    ),
    "tests/unit/stream/test_records.py",
)
"""Files of tests of C code that need neither io_uring nor a compiler; those of their tests that need the tests' own
extension are skipped."""
WRAPPER = """#!/bin/sh
export PYTHONHOME={root}/usr PYTHONPATH={site} PYTHONDONTWRITEBYTECODE=1
exec {qemu} -L {root} -0 {wrapper} {root}/usr/bin/python3.11 "$@"
"""


class Emulation:
    """Debian's Python for aarch64 under QEMU."""

    def __init__(self, folder: Path) -> None:
        """Nothing is downloaded yet."""
        self._folder = folder
        self._root = folder / "root"
        self._site = folder / "site"
        self.python = folder / "python"

    def prepare(self) -> None:
        """Download and unpack what is missing; raise Missing if that cannot be."""
        if platform.machine() != "x86_64":
            raise Missing(
                f"this emulates aarch64 on x86-64 only, and this machine is {platform.machine()}"
            )
        key = f"{SUITE} {PACKAGES} {WRAPPER}"
        stamp = self._folder / "key"
        if stamp.exists() and stamp.read_text() == key:
            return
        print("unpacking QEMU and a Python for aarch64", file=sys.stderr)
        self._folder.mkdir(parents=True, exist_ok=True)
        Apt(new_folder(self._folder / "apt-arm64"), "arm64").unpack(
            PACKAGES, self._root, with_dependencies=True
        )
        emulator = self._folder / "qemu"
        Apt(new_folder(self._folder / "apt-amd64"), "amd64").unpack(
            ["qemu-user-static"], emulator, with_dependencies=False
        )
        qemu = self._folder / "qemu-aarch64"
        shutil.move(emulator / "usr/bin/qemu-aarch64-static", qemu)
        for used in (emulator, self._folder / "apt-arm64", self._folder / "apt-amd64"):
            shutil.rmtree(used)
        words = {"root": self._root, "site": self._site, "qemu": qemu, "wrapper": self.python}
        self.python.write_text(
            WRAPPER.format(**{name: shlex.quote(str(path)) for name, path in words.items()})
        )
        self.python.chmod(0o755)
        stamp.write_text(key)

    def install(self, wheel: Path) -> None:
        """Install the wheel and what it needs, as pip chooses on the oldest aarch64 system that is served."""
        new_folder(self._site)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        pip += ["--root-user-action=ignore", "--only-binary", ":all:", "--target", str(self._site)]
        pip += ["--implementation", "cp", "--python-version", f"{PYTHON[0]}.{PYTHON[1]}"]
        for minor in range(GLIBC[1], 16, -1):
            pip += ["--platform", f"manylinux_2_{minor}_aarch64"]
        pip += ["--platform", "manylinux2014_aarch64"]
        # The versions without the hashes: with one hash pip wants one of the wheel, too.
        constraints = self._folder / "constraints.txt"
        files = (ROOT / "requirements" / f"{name}.txt" for name in ("run", "test", "build"))
        constraints.write_text(
            "".join(pins.wanted(pins.read_pins(one.read_text()), set()) for one in files)
        )
        run(*pip, "--constraint", constraints, wheel, *TESTED_PACKAGES, cwd=self._folder)

    def run(self, *arguments: str | Path, cwd: Path, timeout_s: float = 300) -> str:
        """Run the emulated Python; return its output."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self._folder), "LANG": "C.UTF-8"}
        return run(self.python, *arguments, cwd=cwd, environment=environment, timeout_s=timeout_s)

    def version(self) -> str:
        """Return which QEMU it is."""
        command = [str(self._folder / "qemu-aarch64"), "--version"]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return said.splitlines()[0]


def try_emulated(target: Target) -> dict[str, object]:
    """Install and try the aarch64 wheel under QEMU; return the figures."""
    figures: dict[str, object] = {}
    emulation = Emulation(WORK / "emulation")
    with timed(figures, "prepare_s"):
        emulation.prepare()
    figures["interpreter"] = emulation.version()
    with timed(figures, "install_s"):
        emulation.install(target.wheel)
    folder = new_folder(WORK / "emulation" / "run")
    said = emulation.run("-P", "-m", "fastbk.cli", "--version", cwd=folder)
    assert said.split()[-1] in target.wheel.name, said
    figures |= json.loads(emulation.run("-P", TRIAL, "1", cwd=folder).splitlines()[-1])
    assert figures["machine"] == "aarch64", figures
    shutil.copytree(
        ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", folder)
    with timed(figures, "unit_tests_s"):
        options = [*OPTIONS, "--timeout", "300"]
        said = emulation.run("-m", "pytest", *options, *UNIT_TESTS, cwd=folder, timeout_s=600)
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    figures["unit_tests"] = int(passed[1])
    shutil.rmtree(folder)
    return figures


def wanted() -> bool:
    """Return whether the caller wants emulation at all."""
    return os.environ.get("EMULATE") != "0"
