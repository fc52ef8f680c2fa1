"""The wheel built from the sdist works in an empty environment, and so does the sdist's client."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import fastbk
from tests.style.tree import ROOT, walk

pytestmark = pytest.mark.slow

LINUX_MODULES = ("_client", "_bookie", "_bench")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command, fail with its output, return its output."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "FASTBK_BUILD")}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist of this tree and the wheel built from that sdist, by their suffix; and "tree", what they are of.

    Made once a test run, for all its processes.
    """
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent
    folder /= "packaging"
    folder.mkdir(exist_ok=True)
    copy, made = folder / "tree", folder / "made"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for relative, path in walk():
                target = copy / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
            # Without options `build` makes the wheel out of the sdist: what MANIFEST.in forgot is missed here.
            # `./dev` has compiled the same files with optimisation, so this build does without.
            run(
                sys.executable,
                "-m",
                "build",
                "--no-isolation",
                "--outdir",
                folder / "dist",
                copy,
                cwd=folder,
                FASTBK_BUILD="debug",
            )
            made.touch()
    return {"tree": copy, **{path.suffix: path for path in (folder / "dist").iterdir()}}


def fresh_environment(folder: Path) -> Path:
    """Return the python of a new virtual environment, in which there is not even pip."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    return folder / "bin" / "python"


def install(python: Path, distribution: Path, *options: str, **environment: str) -> None:
    """Install an sdist or a wheel for this python; what is imported later is compiled then."""
    command = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile")
    run(*command, *options, distribution, cwd=python.parent, FASTBK_BUILD="debug", **environment)


CHECK = """
import fastbk, importlib, sys
from pathlib import Path
assert Path(fastbk.__file__).is_relative_to(sys.prefix), fastbk.__file__
for name in sys.argv[1:]:
    importlib.import_module(f"fastbk.native.{name}")
print(fastbk.__version__)
"""

# Without the extras everything else is there, and who wants more is told what to install.
WITHOUT_EXTRAS = """
import fastbk.arrow, fastbk.spark
for name in ("opentelemetry", "pyarrow", "pyspark"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} came with fastbk itself")
try:
    fastbk.spark.FastbkSource
except ImportError as error:
    print(error)
"""


def files_of(tree: Path, *suffixes: str) -> list[str]:
    """Return the files of the packages in `tree` with these suffixes, as paths from its root."""
    folders = (tree / "fastbk", tree / "pyspark_fastbk")
    found = (path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes)
    return [path.relative_to(tree).as_posix() for path in found]


@pytest.mark.timeout(400)
def test_it_installs_and_runs(distributions: dict[str, Path], tmp_path: Path) -> None:
    """First the wheel with all that it needs; then in its place the client alone, out of the sdist.

    The sdist is built in an environment of its own, with what pyproject.toml names for that.
    FASTBK_CLIENT_ONLY=1 builds `_client` and nothing that includes liburing's headers.
    """
    python = fresh_environment(tmp_path / "venv")
    install(python, distributions[".whl"])
    assert run(python, "-c", CHECK, *LINUX_MODULES, cwd=tmp_path).strip() == fastbk.__version__
    command = python.parent / "fastbk"
    assert run(command, "--version", cwd=tmp_path).split()[-1] == fastbk.__version__
    assert "usage" in run(command, "--help", cwd=tmp_path).lower()
    assert "pip install 'fastbk[spark]'" in run(python, "-c", WITHOUT_EXTRAS, cwd=tmp_path)

    install(python, distributions[".gz"], "--no-deps", "--force-reinstall", FASTBK_CLIENT_ONLY="1")
    run(python, "-c", CHECK, "_client", cwd=tmp_path)
    installed = python.parent.parent.glob("lib/python*/site-packages/fastbk/native/*.so")
    assert [path.name for path in installed] == ["_client.abi3.so"]


def test_the_wheel_serves_every_later_python(distributions: dict[str, Path]) -> None:
    assert "-cp311-abi3-" in distributions[".whl"].name


def test_distributions_carry_types_schema_and_licence(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions[".whl"]) as wheel:
        names = wheel.namelist()
    with tarfile.open(distributions[".gz"]) as sdist:
        sources = [name.partition("/")[2] for name in sdist.getnames()]
    wanted = ["fastbk/py.typed", *(f"fastbk/native/{name}.pyi" for name in LINUX_MODULES)]
    wanted += files_of(distributions["tree"], ".fbs", ".py")
    assert [name for name in wanted if name not in names] == []
    assert any(name.endswith("LICENSE") for name in names)
    assert [name for name in names if name.startswith(("tests/", "loadtest/"))] == []
    needed = files_of(distributions["tree"], ".h", ".c")
    assert [name for name in needed if name not in sources] == []


@pytest.mark.parametrize("name", LINUX_MODULES)
def test_extensions_need_no_shared_liburing(name: str) -> None:
    path = ROOT / "fastbk" / "native" / f"{name}.abi3.so"
    assert "liburing" not in run("readelf", "-d", path, cwd=ROOT)
    if name == "_client":
        assert "io_uring" not in run("nm", path, cwd=ROOT)
