"""liburing for the wheels: one pinned version, compiled for each target from Debian's source package.

Debian's own archive would tie a wheel to the C library that it was compiled against, and exists for one architecture.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from tools.wheels.debian import Apt
from tools.wheels.steps import WORK, Missing, new_folder, run, unpack

VERSION = "2.3"
DEBIAN_VERSION = "2.3-3"
SHA256 = "2eac26f880125d83f75ba8641fde5d88226dd352d3cee95d45a9128758a8f1be"
TARBALL = f"liburing_{VERSION}.orig.tar.gz"
SOURCES = ("setup", "queue", "register", "syscall")
FLAGS = ["-O2", "-fPIC", "-fno-stack-protector", "-D_GNU_SOURCE", "-DLIBURING_INTERNAL", "-w"]
# Its names are hidden in the archive, so that another liburing in the process keeps its own.
FLAGS += ["-fvisibility=hidden", "-Iinclude/", "-include", "../config-host.h"]


def fetch_liburing() -> Path:
    """Return the pinned tarball."""
    folder = WORK / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return Apt(folder, "amd64").download_source("liburing", DEBIAN_VERSION, TARBALL, SHA256)
    except Missing as reason:
        raise Missing(f"{reason}\nDebian's {TARBALL} in {folder} will do, too") from None


def build_liburing(folder: Path, compiler: list[str], environment: dict[str, str]) -> Path:
    """Return the `src` folder of a liburing built in `folder`, with liburing.a in it and headers in `include`."""
    new_folder(folder)
    unpack(fetch_liburing(), folder)
    top = folder / f"liburing-{VERSION}"
    run("sh", "./configure", f"--cc={shlex.join(compiler)}", cwd=top, environment=environment)
    source = top / "src"
    for name in SOURCES:
        run(
            *compiler,
            *FLAGS,
            "-c",
            f"{name}.c",
            "-o",
            f"{name}.o",
            cwd=source,
            environment=environment,
        )
    objects = [f"{name}.o" for name in SOURCES]
    archiver = [*compiler[:3], "ar", "rcs"]
    run(*archiver, "liburing.a", *objects, cwd=source, environment=environment)
    return source
