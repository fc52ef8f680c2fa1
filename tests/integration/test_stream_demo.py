"""The streams' demo on a small source: it kills, takes over, truncates, compares; all digests are the source's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_every_digest_is_the_sources_though_a_writer_and_a_cursor_were_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "info").mkdir()
    records = []
    for number in range(200):
        records.append(f"Package: p{number}\nDescription: {'x' * 2000}\n")
        lines = "".join(f"{at:032x}  usr/share/p{number}/{at}\n" for at in range(40))
        (tmp_path / "info" / f"p{number}.md5sums").write_text(lines)
    (tmp_path / "status").write_text("\n".join(records))
    done = subprocess.run(
        [sys.executable, "-m", "demo.streams"], cwd=tmp_path, text=True, timeout=100,
        env={**os.environ, "DPKG": str(tmp_path)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines_out = done.stdout.splitlines()
    assert lines_out[-1] == "OK: every digest is the source's"
    assert sum(line.endswith("as the source") for line in lines_out) == 4
    assert any(line.startswith("killed the writer of checksums (SIGKILL)") for line in lines_out)
    assert any(line.startswith("killed the cursor's holder (SIGKILL)") for line in lines_out)
    assert any("the younger half of the source" in line for line in lines_out)
