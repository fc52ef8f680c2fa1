"""`./dev wheels`: what it asks of a wheel's name, metadata and files; ALL tier: the whole command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

import fastbk
from tests.style.tree import ROOT
from tools import sbom
from tools.wheels import build, emulation, environments, liburing
from tools.wheels.audit import LICENSES, check_consistent, faults_of
from tools.wheels.debian import SUITE, source_lines
from tools.wheels.steps import WHEELS, Missing

X86_64, AARCH64 = build.TARGETS
INFO = f"fastbk-{fastbk.__version__}.dist-info"
EXTENSIONS = [f"fastbk/native/{name}.abi3.so" for name in ("_client", "_bookie", "_bench")]


def elf(machine: int) -> bytes:
    """The beginning of a file of 64-bit ELF."""
    return (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + (3).to_bytes(2, "little")
        + machine.to_bytes(2, "little")
    )


def files_of_a_wheel(target: build.Target) -> dict[str, bytes]:
    tag = f"cp311-abi3-manylinux_2_28_{target.machine}"
    metadata = ["Metadata-Version: 2.4", "Name: fastbk", f"Version: {fastbk.__version__}"]
    metadata += [f"License-File: {name}" for name in LICENSES]
    return {
        **{name: elf(target.elf_machine) for name in EXTENSIONS},
        f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        f"{INFO}/METADATA": "\n".join([*metadata, "", "text"]).encode(),
        **{f"{INFO}/licenses/{name}": b"text" for name in LICENSES},
    }


def wheel_of(files: dict[str, bytes], folder: Path, name: str) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    return path


@pytest.mark.parametrize("target", build.TARGETS, ids=lambda target: target.machine)
def test_a_wheel_as_it_should_be_has_no_faults(target: build.Target, tmp_path: Path) -> None:
    name = f"fastbk-{fastbk.__version__}-cp311-abi3-manylinux_2_28_{target.machine}.whl"
    assert target.wheel == WHEELS / name
    assert list(faults_of(wheel_of(files_of_a_wheel(target), tmp_path, name), target)) == []


@pytest.mark.parametrize(
    ("member", "content", "fault"),
    [
        (EXTENSIONS[0], None, "has the extensions"),
        (EXTENSIONS[0], elf(183), "another machine"),
        (EXTENSIONS[1], elf(62) + b"liburing.so.2", "shared liburing"),
        (f"{INFO}/licenses/LICENSE-liburing", None, "has no licence"),
        (
            f"{INFO}/WHEEL",
            b"Root-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
            "has the tags",
        ),
        ("fastbk/native/src/base/base.h", b"", "has C sources"),
    ],
)
def test_a_fault_of_a_wheel_is_found(
    member: str, content: bytes | None, fault: str, tmp_path: Path
) -> None:
    files = files_of_a_wheel(X86_64)
    if content is None:
        del files[member]
    else:
        files[member] = content
    (found,) = faults_of(wheel_of(files, tmp_path, X86_64.wheel.name), X86_64)
    assert fault in found


@pytest.mark.parametrize("version", ["2_17", "2_27", "2_28"])
def test_an_older_platform_than_the_tag_is_consistent(version: str) -> None:
    shown = f'x.whl is consistent with\nthe following platform tag: "manylinux_{version}_x86_64".'
    assert check_consistent(shown, X86_64) == f"manylinux_{version}"


@pytest.mark.parametrize("tag", ["manylinux_2_34_x86_64", "manylinux_2_27_aarch64", "linux_x86_64"])
def test_a_newer_platform_or_another_machine_is_not(tag: str) -> None:
    with pytest.raises(SystemExit, match="wheels: "):
        check_consistent(f'consistent with the following platform tag: "{tag}".', X86_64)


def test_apt_gets_this_machines_mirrors_and_one_release() -> None:
    if shutil.which("apt-get") is None:
        with pytest.raises(Missing, match="apt-get"):
            source_lines()
        return
    lines = source_lines()
    assert all(line.split()[-2].startswith(SUITE) for line in lines)
    assert {line.split()[0] for line in lines} == {"deb", "deb-src"}


def test_the_tree_has_the_tests_that_run_under_emulation() -> None:
    assert [name for name in emulation.UNIT_TESTS if not (ROOT / name).exists()] == []


def test_a_python_at_hand_is_found() -> None:
    found = environments.pythons()
    assert found
    assert min(found) >= (3, 11)


def test_the_bill_of_materials_names_what_is_linked_into_wheels() -> None:
    (linked,) = (one for one in sbom.linked_into_wheels() if one["name"] == "liburing")
    assert linked["version"] == liburing.VERSION
    assert liburing.SHA256 in json.dumps(linked)
    assert {f"LICENSE-{one['name']}" for one in sbom.linked_into_wheels()} <= set(LICENSES)


def dev_wheels(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [str(ROOT / "dev"), "wheels", *arguments]
    return subprocess.run(
        command, cwd="/", env=environment, stdin=subprocess.DEVNULL, check=False, timeout=900
    )


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_both_wheels_are_built_and_work() -> None:
    assert dev_wheels().returncode == 0
    report = json.loads((WHEELS / "report.json").read_text())
    assert [one["wheel"] for one in report["wheels"]] == [
        target.wheel.name for target in build.TARGETS
    ]
    assert all(target.wheel.exists() for target in build.TARGETS)
    assert report["tried"]
    assert dev_wheels("EMULATE=0").returncode == 0
    again = json.loads((WHEELS / "report.json").read_text())
    assert again["built"] == []
    assert "aarch64: EMULATE=0" in again["skipped"]
