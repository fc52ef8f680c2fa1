"""Builds the wheels: the sdist of this tree, compiled for each target by the C compiler of zig.

zig has the C library's headers and symbol versions of every target with it, so one machine builds all wheels.

Decision 123.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import fastbk
from tools import ROOT
from tools.wheels.liburing import build_liburing
from tools.wheels.steps import (
    REQUIREMENTS,
    WHEELS,
    WORK,
    new_folder,
    run,
    timed,
    tools_python,
    unpack,
)

GLIBC = (2, 28)
"""The oldest C library that a wheel runs with: that of Debian 10, Ubuntu 20.04 and RHEL 8."""
DISTRIBUTED = ("fastbk", "pyspark_fastbk", "requirements")
IGNORED = shutil.ignore_patterns("*.so", "*.o", "__pycache__", "slots.h")
BACKEND = (
    "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
)
AUDITWHEEL = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""
"""auditwheel, which otherwise repairs wheels of this machine's architecture only; nothing of the wheel is run."""


@dataclass(frozen=True)
class Target:
    """A processor architecture that gets a wheel."""

    machine: str
    elf_machine: int
    """`e_machine` of its ELF files."""

    @property
    def platform(self) -> str:
        """The wheel's platform tag."""
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.machine}"

    @property
    def wheel(self) -> Path:
        """The wheel, whether or not it is there."""
        return WHEELS / f"fastbk-{fastbk.__version__}-cp311-abi3-{self.platform}.whl"

    @property
    def folder(self) -> Path:
        """What is made on the way to it."""
        return WORK / self.machine


TARGETS = (Target("x86_64", 62), Target("aarch64", 183))


def tree_key() -> str:
    """Return a hash of everything that a wheel is made of."""
    files = [path for name in DISTRIBUTED for path in (ROOT / name).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    files += [Path(__file__), Path(__file__).with_name("liburing.py")]
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(files):
        if path.suffix not in (".so", ".o", ".pyc") and path.name != "slots.h":
            digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def is_built(target: Target, key: str) -> bool:
    """Return whether the wheel of this tree is there."""
    stamp = target.folder / "key"
    return target.wheel.exists() and stamp.exists() and stamp.read_text() == key


def make_sdist() -> Path:
    """Return the sdist of this tree: what MANIFEST.in forgot is missed by the wheels, too."""
    copy = new_folder(WORK / "tree")
    for name in DISTRIBUTED:
        shutil.copytree(ROOT / name, copy / name, ignore=IGNORED)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, copy)
    target = new_folder(WORK / "sdist")
    run(sys.executable, "-c", BACKEND, "build_sdist", target, cwd=copy, log=WORK / "sdist.log")
    (made,) = target.iterdir()
    return made


def headers() -> Path:
    """Return a folder with Python's headers and pyconfig.h beside them.

    Those of this machine serve every target, since all are 64-bit Linux. Debian's pyconfig.h of x86-64 and of aarch64
    differ in four lines, and either one makes the same bytes of the aarch64 extensions.
    """
    folder = WORK / "include"
    if not folder.exists():
        shutil.copytree(sysconfig.get_path("include"), folder)
        machine = sysconfig.get_config_var("MULTIARCH") or ""
        name = Path(sysconfig.get_path("include")).name
        for candidate in (
            Path("/usr/include") / machine / name,
            Path(sysconfig.get_path("platinclude")),
        ):
            if (candidate / "pyconfig.h").exists():
                shutil.copy2(candidate / "pyconfig.h", folder)
                break
    return folder


def build_wheel(target: Target, sdist: Path) -> None:
    """Build the target's wheel and put it in its place under its final name."""
    new_folder(target.folder)
    compiler = [str(tools_python()), "-m", "ziglang", "cc"]
    compiler += ["-target", f"{target.machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(target.folder),
        "ZIG_GLOBAL_CACHE_DIR": str(WORK / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(WORK / "zig"),
    }
    liburing = build_liburing(target.folder / "liburing", compiler, environment)
    unpack(sdist, target.folder)
    source = target.folder / sdist.name.removesuffix(".tar.gz")
    add_licenses(source, liburing)
    command = shlex.join(compiler)
    include = shlex.join([f"-I{headers()}", "-isystem", str(liburing / "include")])
    environment |= {
        "CC": command,
        "LDSHARED": f"{command} -shared",
        "CFLAGS": include,
        "FASTBK_LIBURING": str(liburing / "liburing.a"),
        "FASTBK_BUILD": "wheel",
        "_PYTHON_HOST_PLATFORM": f"linux-{target.machine}",
        # The same tree makes the same bytes.
        "SOURCE_DATE_EPOCH": "315532800",
        "PYTHONHASHSEED": "0",
    }
    raw = new_folder(target.folder / "raw")
    log = target.folder / "build.log"
    run(
        sys.executable,
        "-c",
        BACKEND,
        "build_wheel",
        raw,
        cwd=source,
        environment=environment,
        log=log,
    )
    (made,) = raw.glob("*.whl")
    repaired = new_folder(target.folder / "repaired")
    auditwheel(target, "repair", "--plat", target.platform, "--only-plat", "-w", repaired, made)
    (final,) = repaired.glob("*.whl")
    for old in WHEELS.glob(f"fastbk-*_{target.machine}.whl"):
        old.unlink()
    final.replace(WHEELS / final.name)


def add_licenses(source: Path, liburing: Path) -> None:
    """Put the licences of what is linked in beside ours, as liburing and zig themselves have them."""
    shutil.copy(liburing.parent / "LICENSE", source / "LICENSE-liburing")
    (zig,) = tools_python().parent.parent.glob("lib/*/site-packages/ziglang/LICENSE")
    shutil.copy(zig, source / "LICENSE-zig")


def auditwheel(target: Target, *arguments: str | Path) -> str:
    """Run auditwheel as if on a machine of the target's architecture; return its output."""
    python = tools_python()
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "SOURCE_DATE_EPOCH": "315532800",
    }
    return run(
        python, "-c", AUDITWHEEL, target.machine, *arguments, cwd=WORK, environment=environment
    )


def build_all(figures: dict[str, object]) -> list[Target]:
    """Build the wheels that are missing or of another tree; return their targets."""
    WORK.mkdir(parents=True, exist_ok=True)
    key = tree_key() + hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    stale = [target for target in TARGETS if not is_built(target, key)]
    if stale:
        shutil.rmtree(WORK / "include", ignore_errors=True)
        sdist = make_sdist()
        for target in stale:
            print(f"building {target.wheel.name}", file=sys.stderr)
            with timed(figures, f"build_{target.machine}_s"):
                build_wheel(target, sdist)
            (target.folder / "key").write_text(key)
    figures["built"] = [target.machine for target in stale]
    return stale
