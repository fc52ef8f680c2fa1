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


def build(folder: Path, *options: str) -> dict[str, Path]:
    """Build a copy of this tree once a test run, for all its processes; return the files made, and "tree", the copy.

    `./dev` has compiled the same files with optimisation, so this build does without.
    """
    folder.mkdir(exist_ok=True)
    copy, made = folder / "tree", folder / "made"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for relative, path in walk():
                target = copy / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
            command = (sys.executable, "-m", "build", "--no-isolation", *options)
            run(*command, "--outdir", folder / "dist", copy, cwd=folder, FASTBK_BUILD="debug")
            made.touch()
    return {"tree": copy, **{path.suffix: path for path in (folder / "dist").iterdir()}}


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run have."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder


@pytest.fixture(scope="session")
def sdist(run_folder: Path) -> dict[str, Path]:
    """The sdist alone, for which nothing is compiled."""
    return build(run_folder / "sdist", "--sdist")


@pytest.fixture(scope="session")
def distributions(run_folder: Path) -> dict[str, Path]:
    """The sdist of this tree and the wheel built from that sdist, by their suffix.

    Without options `build` makes the wheel out of the sdist: what MANIFEST.in forgot is missed here.
    """
    return build(run_folder / "distributions")


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


@pytest.mark.long
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


def carried(tree: Path) -> list[str]:
    """Return what a wheel has to have: all code in Python, its types, the schema."""
    stubs = [f"fastbk/native/{name}.pyi" for name in LINUX_MODULES]
    return ["fastbk/py.typed", *stubs, *files_of(tree, ".fbs", ".py")]


def test_the_sdist_carries_types_schema_sources_in_c_and_licence(sdist: dict[str, Path]) -> None:
    with tarfile.open(sdist[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = [*carried(sdist["tree"]), *files_of(sdist["tree"], ".h", ".c"), "LICENSE"]
    assert [name for name in wanted if name not in names] == []


@pytest.mark.long
def test_the_wheel_carries_types_schema_and_licence_and_serves_every_later_python(
    distributions: dict[str, Path],
) -> None:
    assert "-cp311-abi3-" in distributions[".whl"].name
    with zipfile.ZipFile(distributions[".whl"]) as wheel:
        names = wheel.namelist()
    assert [name for name in carried(distributions["tree"]) if name not in names] == []
    assert any(name.endswith("LICENSE") for name in names)
    assert [name for name in names if name.startswith(("tests/", "loadtest/"))] == []


@pytest.mark.parametrize("name", LINUX_MODULES)
def test_extensions_need_no_shared_liburing(name: str) -> None:
    path = ROOT / "fastbk" / "native" / f"{name}.abi3.so"
    assert "liburing" not in run("readelf", "-d", path, cwd=ROOT)
    if name == "_client":
        assert "io_uring" not in run("nm", path, cwd=ROOT)
