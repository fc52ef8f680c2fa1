"""`./dev image`: build/fastbk_VERSION_ARCHITECTURE.oci.tar, an image of Debian's packages and ours, from no registry.

And build/seccomp.json: what containers are allowed by default here, and io_uring, which most defaults leave out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "image"
SECCOMP_DEFAULT = Path("/usr/share/containers/seccomp.json")
IO_URING = ["io_uring_setup", "io_uring_enter", "io_uring_register"]
WITHOUT = ("man", "info", "locale", "doc")
"""Folders of /usr/share that an image has no use for."""
PORTS = (3181, 8000)


def run(*command: str | Path, **environment: str) -> str:
    """Run a command, end with its output where it fails, return what it printed."""
    found = subprocess.run(
        [str(one) for one in command], cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    if found.returncode:
        sys.exit(
            f"image: {' '.join(map(str, command))} failed:\n{found.stdout[-2000:]}{found.stderr[-4000:]}"
        )
    return found.stdout


def make_tree(package: Path) -> Path:
    """Return a tar of a Debian with the package and no more than that needs."""
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    lists = (
        Path("/etc/apt/sources.list"),
        *Path("/etc/apt/sources.list.d").glob("debian*.sources"),
    )
    tree = BUILD / "tree.tar"
    run(
        "unshare", "--mount",  # its mounts end with it, also where it is killed
        "mmdebstrap", "--variant=essential",
        "--include=python3,systemd-standalone-sysusers,systemd-standalone-tmpfiles",
        *(f"--dpkgopt=path-exclude=/usr/share/{one}/*" for one in WITHOUT),
        f"--customize-hook=upload {package} /fastbk.deb",
        '--customize-hook=chroot "$1" dpkg -i /fastbk.deb',
        '--customize-hook=rm "$1/fastbk.deb"',
        f"--customize-hook=copy-out /etc/passwd {BUILD}",
        release["VERSION_CODENAME"].strip('"'), tree, *(one for one in lists if one.exists()),
        SOURCE_DATE_EPOCH=run("git", "log", "-1", "--format=%ct").strip(),
    )  # fmt: skip
    return tree


def make_image(tree: Path, version: str, out: Path) -> None:
    """Write the image: a user that is not root, no shell needed, data in a volume."""
    lines = (BUILD / "passwd").read_text().splitlines()
    user = ":".join(next(line.split(":")[2:4] for line in lines if line.startswith("fastbk:")))
    container = run("buildah", "from", "scratch").strip()
    try:
        run("buildah", "add", "-q", container, tree, "/")
        run(
            "buildah", "config", "--user", user, "--workingdir", "/var/lib/fastbk", "--stop-signal", "SIGTERM",
            "--entrypoint", '["/usr/bin/fastbk"]', "--cmd", "bookie --config /etc/fastbk/bookie.toml",
            "--volume", "/var/lib/fastbk", *(f"--port={one}" for one in PORTS),
            "--label", f"org.opencontainers.image.version={version}",
            "--label", "org.opencontainers.image.title=fastbk",
            container,
        )  # fmt: skip
        out.unlink(missing_ok=True)
        stamp = run("git", "log", "-1", "--format=%ct").strip()
        name = f"oci-archive:{out}:fastbk:{version}"
        run(
            "buildah",
            "commit",
            "-q",
            "--disable-compression=false",
            "--timestamp",
            stamp,
            container,
            name,
        )
    finally:
        run("buildah", "rm", container)


def make_seccomp(out: Path) -> None:
    """Write the profile."""
    profile = json.loads(SECCOMP_DEFAULT.read_text())
    profile["syscalls"].append(
        {"names": IO_URING, "action": "SCMP_ACT_ALLOW", "args": [], "comment": "the journal"}
    )
    out.write_text(json.dumps(profile, indent=1) + "\n")


def main() -> int:
    """Build all of it and print where it is."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    printed = run(sys.executable, "packaging/debian/build_deb.py")
    package = ROOT / printed.partition(":")[0]
    _, version, architecture = package.stem.split("_")
    out = ROOT / "build" / f"fastbk_{version}_{architecture}.oci.tar"
    make_image(make_tree(package), version, out)
    make_seccomp(ROOT / "build" / "seccomp.json")
    shutil.rmtree(BUILD)
    print(f"{out.relative_to(ROOT)}: {out.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
