"""`./dev deb`: build/fastbk_VERSION_ARCHITECTURE.deb, with an environment of Python packages of its own.

Debian's python3-cffi is older than what fastbk needs. So the package brings all that it imports, in /usr/lib/fastbk,
for the Python of the release that it is built on. Nothing outside of build/ is changed.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "deb"
HOME = "usr/lib/fastbk"
REVISION = 1
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM_PYTHON = f"/usr/bin/{PYTHON}"
COMMAND = f"""#!/bin/sh
exec /{HOME}/bin/python -I -m fastbk.cli "$@"
"""
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/fastbk",
    "zsh": "usr/share/zsh/vendor-completions/_fastbk",
}
CONTROL = """Package: fastbk
Version: {version}
Architecture: {architecture}
Maintainer: the fastbk team <fastbk@localhost>
Installed-Size: {size_kib}
Depends: python3 (>= {minor}), python3 (<< {next_minor}), libc6 (>= {libc}),
 systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles
Section: net
Priority: optional
Description: distributed log store with Apache BookKeeper's model
 Bookies store ledgers, which are replicated by quorum writes. Streams are built
 on ledgers. This package has the bookie, the janitor, AutoRecovery, the
 command fastbk, and units of systemd for them. It starts nothing by itself.
"""
POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    systemd-sysusers fastbk.conf
    # In a chroot without /proc systemd-tmpfiles fails; then the same is made here.
    systemd-tmpfiles --create fastbk.conf || {
        install -d -m 0750 -g fastbk /etc/fastbk
        install -d -m 0700 -o fastbk -g fastbk /var/lib/fastbk /var/log/fastbk
    }
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
    # Bookies are restarted by their operator, one after the other: a cluster must not lose several at once.
    [ -z "$2" ] || echo "fastbk: running services have the version before until they are restarted"
fi
"""
PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop 'fastbk-bookie@*.service' fastbk-janitor.service fastbk-autorecovery.service \
        fastbk-gateway.service fastbk-serve.service fastbk-console.service
fi
"""
POSTRM = """#!/bin/sh
set -e
# Data, configuration and logs stay, also where the package is purged.
[ ! -d /run/systemd/system ] || systemctl daemon-reload
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: the fastbk team
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
Comment: The packages below /usr/lib/fastbk have licenses of their own, in their *.dist-info folders.
 liburing, which is linked in, is under MIT or LGPL-2.1. uPlot, in the console's static files, is under MIT.
"""


def run(*command: str | Path, **environment: str) -> str:
    """Run a command, end with its output where it fails, return its output."""
    found = subprocess.run(
        [str(one) for one in command], cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if found.returncode:
        sys.exit(f"deb: {' '.join(map(str, command))} failed:\n{found.stdout[-4000:]}")
    return found.stdout


def write(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)


def install_packages(tree: Path) -> None:
    """Fill /usr/lib/fastbk: fastbk and all that it imports, compiled for the place where they will be."""
    shutil.rmtree(BUILD / "wheels", ignore_errors=True)
    # what users build, without what tests need
    run(sys.executable, "setup.py", "-q", "sdist", "-d", BUILD / "wheels")
    (sources,) = (BUILD / "wheels").glob("fastbk-*.tar.gz")
    wheel_words = (
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        BUILD / "wheels",
        sources,
    )
    run(sys.executable, "-m", *wheel_words)
    (wheel,) = (BUILD / "wheels").glob("fastbk-*.whl")
    home = tree / HOME
    run(SYSTEM_PYTHON, "-m", "venv", "--without-pip", "--symlinks", home)
    target = home / "lib" / PYTHON / "site-packages"
    install = ("pip", "install", "-q", "--no-compile", "--no-deps", "--target", target)
    for name in ("run.txt", "console.txt"):
        run(sys.executable, "-m", *install, "--require-hashes", "-r", ROOT / "requirements" / name)
    run(sys.executable, "-m", *install, wheel)
    for surplus in (target / "bin", home / "bin" / "activate", home / "include"):
        shutil.rmtree(surplus, ignore_errors=True) if surplus.is_dir() else surplus.unlink(
            missing_ok=True
        )
    for script in (home / "bin").iterdir():
        script.unlink()
    for name in ("python", "python3"):
        (home / "bin" / name).symlink_to(SYSTEM_PYTHON)
    (home / "lib64").unlink(missing_ok=True)
    write(home / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    run("strip", "--strip-debug", *target.rglob("*.so"))
    # A service cannot write there, and time stamps differ from machine to machine.
    run(
        SYSTEM_PYTHON, "-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash",
        "-s", tree, "-p", "/", target,
    )  # fmt: skip


def install_rest(tree: Path, version: str) -> None:
    """Write the command, units, and what belongs to a Debian package."""
    write(tree / "usr/bin/fastbk", COMMAND, 0o755)
    units = ROOT / "packaging" / "systemd"
    for unit in units.glob("*.service"):
        write(tree / "usr/lib/systemd/system" / unit.name, unit.read_bytes())
    write(tree / "usr/lib/sysusers.d/fastbk.conf", (units / "fastbk.sysusers").read_bytes())
    write(tree / "usr/lib/tmpfiles.d/fastbk.conf", (units / "fastbk.tmpfiles").read_bytes())
    documents = tree / "usr/share/doc/fastbk"
    write(documents / "copyright", COPYRIGHT)
    for page in ("README.md", "ARCHITECTURE.md", "SECURITY.md", *ROOT.glob("docs/*.md")):
        source = ROOT / page
        write(documents / source.relative_to(ROOT), source.read_bytes())
    log = f"fastbk ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n"
    log += f" -- the fastbk team <fastbk@localhost>  {run('date', '-R', '-d', '@' + epoch()).strip()}\n"
    write(documents / "changelog.Debian.gz", gzip.compress(log.encode(), mtime=0))
    write(
        documents / "CHANGELOG.md.gz", gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), mtime=0)
    )
    write(
        documents / "examples/bookie.toml",
        run(sys.executable, "-m", "fastbk.cli", "bookie", "--example"),
    )
    for shell, place in COMPLETIONS.items():
        write(tree / place, run(sys.executable, "-m", "fastbk.cli", "completion", shell))
    run(sys.executable, ROOT / "packaging/debian/man_pages.py")
    for page in sorted((ROOT / "build" / "man").glob("*.1")):
        write(
            tree / "usr/share/man/man1" / f"{page.name}.gz",
            gzip.compress(page.read_bytes(), mtime=0),
        )


def epoch() -> str:
    """Return the time of all files: the commit's."""
    return os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()


def main() -> int:
    """Build the package and print where it is."""
    if not Path(SYSTEM_PYTHON).exists():
        sys.exit(f"deb: {SYSTEM_PYTHON} is missing: build with the Python of the release")
    import fastbk

    version = f"{fastbk.__version__}-{REVISION}"
    architecture = run("dpkg", "--print-architecture").strip()
    tree = BUILD / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    install_packages(tree)
    install_rest(tree, version)
    size_kib = sum(one.lstat().st_size for one in tree.rglob("*") if one.is_file()) // 1024
    minor = sys.version_info.minor
    control = CONTROL.format(
        version=version, architecture=architecture, size_kib=size_kib, minor=f"3.{minor}", next_minor=f"3.{minor + 1}",
        libc=os.confstr("CS_GNU_LIBC_VERSION").split()[-1],
    )  # fmt: skip
    write(tree / "DEBIAN/control", control)
    for name, text in (("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)):
        write(tree / "DEBIAN" / name, text, 0o755)
    for folder in (one for one in tree.rglob("*") if one.is_dir()):
        folder.chmod(0o755)
    out = ROOT / "build" / f"fastbk_{version}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, out, SOURCE_DATE_EPOCH=epoch())
    shutil.rmtree(tree)
    print(
        f"{out.relative_to(ROOT)}: {out.stat().st_size / 1e6:.1f} MB, installed {size_kib / 1024:.0f} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
