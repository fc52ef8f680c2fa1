"""`./dev load`: locust, headless, against a three-bookie cluster of its own.

Environment: SECONDS=30, USERS=10. Locust lives in `.venv-load`, made here on first use from requirements/load.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fastbk.errors import StorageError
from fastbk.testing import LocalCluster
from tests.style.tree import ROOT

VENV = ROOT / ".venv-load"
REQUIREMENTS = (ROOT / "requirements/load.txt", ROOT / "requirements/run.txt")


def ensure_venv() -> Path:
    """Return the python of `.venv-load`, made or brought up to date when its requirements changed."""
    python = VENV / "bin/python"
    stamp = VENV / "stamp"
    key = "\n".join(path.read_text() for path in REQUIREMENTS)
    if not (python.exists() and stamp.exists() and stamp.read_text() == key):
        print("making .venv-load", file=sys.stderr)
        # Without a pip of its own, which would take five seconds: ours fills it.
        venv = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)]
        subprocess.run(venv, check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        files = [part for path in REQUIREMENTS for part in ("-r", str(path))]
        subprocess.run([*pip, "--no-input", "install", "-q", *files], check=True)
        stamp.write_text(key)
    return python


def run_locust(metadata_uri: str, seconds: int, users: int, out: Path) -> dict[str, dict[str, int]]:
    """Run locust for `seconds` and return the exact percentiles. Raises StorageError when any request failed."""
    python = ensure_venv()
    command = [str(python), "-m", "locust", "-f", str(ROOT / "loadtest/locustfile.py")]
    command += ["--headless", "--only-summary"]
    command += ["-u", str(users), "-r", str(users), "-t", f"{seconds}s"]
    environment = {
        **os.environ,
        "FASTBK_METADATA": metadata_uri,
        "FASTBK_LOAD_OUT": str(out),
        "PYTHONPATH": str(ROOT),
    }
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False, timeout=seconds + 120
    )
    if ended.returncode:
        raise StorageError(
            f"locust ended with {ended.returncode}: a request failed or none was made, as it says above"
        )
    summary: dict[str, dict[str, int]] = json.loads(out.read_text())
    return summary


def main() -> int:
    (ROOT / "build").mkdir(exist_ok=True)
    out = ROOT / "build" / "load.json"
    seconds = int(os.environ.get("SECONDS", "30"))
    users = int(os.environ.get("USERS", "10"))
    with LocalCluster(bookies=3) as cluster:
        try:
            summary = run_locust(cluster.metadata_uri, seconds, users, out)
        except StorageError as error:
            print(f"load: {error}", file=sys.stderr)
            return 1
    for name, figures in summary.items():
        print(f"{name:8} " + "  ".join(f"{key} {value:,}" for key, value in figures.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
