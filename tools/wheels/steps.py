"""What the steps of `./dev wheels` share: where files go, how commands run, how a step says that it cannot be done."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools import ROOT
from tools.environments import ensure_environment

WHEELS = ROOT / "build" / "wheels"
WORK = WHEELS / "work"
"""Everything but the wheels and the report. Removing it makes the next run begin from nothing."""
ENVIRONMENT, REQUIREMENTS = ".venv-wheels", ROOT / "requirements" / "wheels.txt"


class Missing(Exception):
    """Something that a step needs is not on this machine; the message says what."""


def tools_python() -> Path:
    """Return the python of the tools' own environment."""
    return ensure_environment(ENVIRONMENT, REQUIREMENTS)


def run(
    *command: str | Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    timeout_s: float = 600,
) -> str:
    """Run a command and return its output, which also goes to `log`; exit with its end if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout_s,
    )
    if log is not None:
        log.write_text(done.stdout)
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-40:])
        raise SystemExit(f"{last}\nwheels: {' '.join(words)[:300]} failed ({done.returncode})")
    return done.stdout


def new_folder(folder: Path) -> Path:
    """Return this folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tarball into a folder."""
    run("tar", "-xf", archive, "-C", folder, cwd=folder)


@contextmanager
def timed(figures: dict[str, object], name: str) -> Iterator[None]:
    """Put the seconds that the block takes into `figures`."""
    started = time.monotonic()
    yield
    figures[name] = round(time.monotonic() - started, 2)
