"""The test harness itself: a harness that cannot fail proves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.tree import ROOT

CASES = """
import asyncio
import pytest

@pytest.mark.skip(reason="no time today")
def test_skip_without_excuse(): ...

@pytest.mark.skip(reason="needs io_uring: forbidden here")
def test_skip_with_excuse(): ...

async def fail_later():
    raise RuntimeError("nobody asked")

async def test_exception_in_callback():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

async def test_task_left_running():
    test_task_left_running.task = asyncio.create_task(asyncio.Event().wait())

async def test_exception_never_read():
    asyncio.create_task(fail_later())
    await asyncio.sleep(0)

async def test_failing_assertion():
    assert 1 == 2

@pytest.mark.uvloop_too
async def test_good(tmp_path):
    await asyncio.sleep(0)
"""


def run(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest, or our runner of it, on `folder`."""
    words = ["-p", "no:cacheprovider", "--rootdir", str(folder), *arguments, str(folder)]
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with this project's plug-ins."""
    plugins = ["-p", "tests.fixtures.skips", "-p", "tests.fixtures.aio"]
    return run(folder, "pytest", *plugins, "-c", str(ROOT / "pyproject.toml"), *arguments)


@pytest.mark.slow
def test_unexcused_skips_and_faults_of_the_loop_fail(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    result = run_pytest(tmp_path, "-rA")
    for name in (
        "test_skip_without_excuse",
        "test_exception_in_callback",
        "test_task_left_running",
        "test_exception_never_read",
        "test_failing_assertion",
    ):
        refused = [
            line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
        ]
        assert any(name in line for line in refused), f"{name}:\n{result.stdout}{result.stderr}"
    assert "4 failed, 2 passed, 1 skipped, 1 error" in result.stdout


@pytest.mark.slow
def test_skipped_module_fails(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytest.importorskip('there_is_no_such_module')\ndef test_x(): ...\n"
    )
    assert run_pytest(tmp_path).returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("body", ["", "def test_x(): ...\n"])
def test_an_empty_run_fails(tmp_path: Path, body: str) -> None:
    (tmp_path / "test_module.py").write_text(body)
    result = run(tmp_path, "tests", "--confcutdir", str(tmp_path))
    assert (result.returncode == 0) == bool(body), result.stdout
