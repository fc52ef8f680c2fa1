"""Python packages are taken by hash, or not at all; and an audit that says nothing is no good one."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools.environments import ensure_environment
from tools.pins import BESIDE, FOLDER, PYTHONS, Pin, is_needed, read_pins, wanted
from tools.sbom import audited

HASH = "--hash=sha256:" + "0" * 64


def test_every_requirement_has_one_version_and_hashes() -> None:
    """And no option: no index, no link, no other file."""
    files = {path.stem: read_pins(path.read_text()) for path in FOLDER.glob("*.txt")}
    assert set(files) == set(BESIDE)
    assert [
        f"{name}: {pin.name}"
        for name, pins in files.items()
        for pin in pins.values()
        if not pin.hashes
    ] == []
    for name, beside in BESIDE.items():
        for other in beside:
            assert set(files[name]) & set(files[other]) == set(), (
                f"{name}.txt repeats packages of {other}.txt"
            )


def test_the_oldest_python_of_the_pins_is_that_of_the_package() -> None:
    assert f'requires-python = ">={PYTHONS[0]}"' in (FOLDER.parent / "pyproject.toml").read_text()


def test_pins_are_read_as_they_are_written() -> None:
    pins = (
        Pin("one", "1.0", "", ()),
        Pin("two", "2!0", "python_full_version < '3.12'", (f"sha256:{'1' * 64}",) * 2),
    )
    assert list(read_pins("# what for\n" + "".join(pin.text() for pin in pins)).values()) == list(
        pins
    )
    assert (
        wanted({pin.name: pin for pin in pins}, set())
        == "one==1.0\ntwo==2!0 ; python_full_version < '3.12'\n"
    )
    assert wanted({pin.name: pin for pin in pins}, {"one"}).startswith("one\ntwo==2!0")
    assert wanted({pin.name: pin for pin in pins}, {"all"}).startswith("one\ntwo ;")


@pytest.mark.parametrize(
    "line",
    [
        f"one>=1 {HASH}",
        "--index-url x",
        "-r run.txt",
        "one==1 --hash=sha256:0",
        "one @ file:///x",
        "a==1\nA==2",
    ],
)
def test_what_is_no_pin_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not name==version|pinned twice"):
        read_pins(line)


@pytest.mark.parametrize(
    ("marker", "needed"),
    [
        ("", True),
        ("sys_platform == 'win32'", False),
        ("os_name == 'nt' or python_full_version >= '3.13'", True),
        ("python_full_version < '3.11'", False),
        ("platform_machine == 'aarch64'", True),
    ],
)
def test_what_no_system_of_the_set_up_needs_is_left_out(marker: str, needed: bool) -> None:
    assert is_needed(Pin("one", "1", marker, ())) is needed


def wheel(folder: Path) -> Path:
    """Write a package without contents; return its file."""
    path = folder / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n"
        )
        archive.writestr(
            "tiny-1.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny-1.dist-info/RECORD", "")
        archive.writestr("tiny.py", "")
    return path


@pytest.mark.slow
def test_an_environment_takes_files_with_the_right_hash_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    requirements = tmp_path / "tiny.txt"
    folder = tmp_path / "environment"
    for line in ("tiny==1", f"tiny==1 {HASH}"):
        requirements.write_text(line)
        with pytest.raises(subprocess.CalledProcessError):
            ensure_environment(str(folder), requirements)
        assert not list(folder.rglob("tiny.py")), line
    requirements.write_text(f"tiny==1 --hash=sha256:{digest}")
    assert ensure_environment(str(folder), requirements).exists()
    assert list(folder.rglob("tiny.py"))


GOOD = {"name": "one", "version": "1", "vulns": []}
BAD = {"name": "two", "version": "2", "vulns": [{"id": "X-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "three", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "text"),
    [
        ([GOOD], 0, "1 packages audited, 0 with"),
        ([GOOD, BAD], 1, "two 2: X-1, fixed in 3"),
        ([GOOD, UNKNOWN], 1, "1 could not be audited"),
        ([UNKNOWN, UNKNOWN], 1, "0 packages audited"),
        ([], 1, "0 packages audited"),
    ],
)
def test_an_audit_is_good_only_if_it_knows_every_package(
    packages: list[dict[str, Any]], code: int, text: str
) -> None:
    said, ended = audited(packages)
    assert ended == code
    assert text in said
