"""Debian packages and sources of any architecture, downloaded by an apt of its own and installed nowhere.

That apt has its lists, its cache and its status in one folder, so it needs no root, and this machine's packages stay as
they are. It uses the mirrors of this machine's apt, and always the release `SUITE`: what is built and tried is the same
on every later Debian.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tools.wheels.steps import Missing

SUITE = "bookworm"
KEYRINGS = Path("/usr/share/keyrings")
FIELDS = "$(REPO_URI) $(RELEASE) $(COMPONENT)"

CONFIGURATION = """
APT::Architecture "{architecture}";
APT::Architectures "{architecture}";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Dir::State "{folder}";
Dir::State::Lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}";
Dir::Cache::Archives "{folder}/archives";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
"""


class Apt:
    """An apt for packages of one architecture, in a folder of its own."""

    def __init__(self, folder: Path, architecture: str) -> None:
        """Nothing is downloaded yet."""
        self._folder = folder
        self._architecture = architecture
        self._environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}

    def download_source(self, name: str, version: str, file: str, sha256: str) -> Path:
        """Return a file of a source package; raise Missing if its content is not the expected one."""
        target = self._folder / file
        if not target.exists():
            self._prepare()
            self._run("source", "--download-only", f"{name}={version}")
        found = hashlib.sha256(target.read_bytes()).hexdigest()
        if found != sha256:
            raise Missing(
                f"{target} has the SHA-256 {found}, not {sha256}; remove it to download it again"
            )
        return target

    def unpack(self, packages: list[str], root: Path, with_dependencies: bool) -> None:
        """Unpack packages below `root`, which holds nothing else afterwards; no script of theirs runs."""
        self._prepare()
        archives = self._folder / "archives"
        if with_dependencies:
            self._run("install", "--download-only", "--yes", *packages)
        else:
            self._run("download", *packages, cwd=archives)
        shutil.rmtree(root, ignore_errors=True)
        for archive in sorted(archives.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(archive), str(root)], check=True)
            archive.unlink()

    def _prepare(self) -> None:
        """Write the configuration and fetch the lists, once."""
        if (self._folder / "prepared").exists():
            return
        lines = source_lines()
        (self._folder / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        (self._folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (self._folder / "status").touch()
        (self._folder / "sources.list").write_text("".join(lines))
        text = CONFIGURATION.format(architecture=self._architecture, folder=self._folder)
        (self._folder / "apt.conf").write_text(text)
        self._run("update")
        (self._folder / "prepared").touch()

    def _run(self, *arguments: str, cwd: Path | None = None) -> None:
        done = subprocess.run(
            ["apt-get", "-q", *arguments],
            cwd=cwd or self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode != 0:
            last = "\n".join(done.stdout.splitlines()[-5:])
            raise Missing(f"apt-get {' '.join(arguments)} failed:\n{last}")


def source_lines() -> list[str]:
    """Return the lines of a sources.list for `SUITE`, with the mirrors of this machine's own apt."""
    if shutil.which("apt-get") is None:
        raise Missing("Debian's apt-get is not here")
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    codename = release.get("VERSION_CODENAME", "").strip('"')
    command = ["apt-get", "indextargets", "--format", FIELDS, "Created-By: Packages"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    keys = [str(path) for path in sorted(KEYRINGS.glob("debian-archive-keyring.*"))]
    signed = f" [signed-by={keys[0]}]" if keys else ""
    lines = {}
    for line in listed.splitlines():
        uri, suite, component = line.split()
        if component == "main" and suite in (
            codename,
            f"{codename}-updates",
            f"{codename}-security",
        ):
            suite = suite.replace(codename, SUITE, 1)
            for kind in ("deb", "deb-src"):
                lines[f"{kind}{signed} {uri} {suite} main\n"] = None
    if not lines:
        raise Missing(f"this machine's apt has no mirror of Debian's {codename or 'packages'}")
    return list(lines)
