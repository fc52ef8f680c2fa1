"""What a finished wheel must say of itself and hold; and the same asked of abi3audit and auditwheel."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import fastbk
from fastbk.native.build_native import MODULES
from tools.wheels.build import GLIBC, Target, auditwheel
from tools.wheels.steps import WORK, run, tools_python

LICENSES = ("LICENSE", "LICENSE-liburing", "LICENSE-zig")
CONSISTENT = re.compile(r'platform\s+tag:\s+"manylinux_(\d+)_(\d+)_(\w+)"')


def faults_of(wheel: Path, target: Target) -> Iterator[str]:
    """Yield what is wrong with the wheel's name, metadata and files."""
    if wheel.name != target.wheel.name:
        yield f"is named {wheel.name}, not {target.wheel.name}"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"fastbk-{fastbk.__version__}.dist-info"
        said = Parser().parsestr(archive.read(f"{info}/WHEEL").decode())
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        extensions = {name: archive.read(name) for name in names if name.endswith(".so")}
    if said.get_all("Tag") != [f"cp311-abi3-{target.platform}"]:
        yield f"has the tags {said.get_all('Tag')}"
    if said["Root-Is-Purelib"] != "false":
        yield "says that it has no native code"
    if metadata["Version"] != fastbk.__version__:
        yield f"has the version {metadata['Version']}"
    for name in LICENSES:
        if (
            name not in (metadata.get_all("License-File") or [])
            or f"{info}/licenses/{name}" not in names
        ):
            yield f"has no licence {name}"
    wanted = {f"{module.package.replace('.', '/')}/{module.name}.abi3.so" for module in MODULES}
    if set(extensions) != wanted:
        yield f"has the extensions {sorted(extensions)}, not {sorted(wanted)}"
    for name, content in sorted(extensions.items()):
        machine = int.from_bytes(content[18:20], "little")
        if content[:4] != b"\x7fELF" or machine != target.elf_machine:
            yield f"has {name} for another machine ({machine})"
        if b"liburing.so" in content:
            yield f"has {name}, which needs a shared liburing"
    if any(name.endswith((".c", ".h")) or name.startswith("tests/") for name in names):
        yield "has C sources or tests"


def check_consistent(shown: str, target: Target) -> str:
    """Return the platform that auditwheel finds a wheel consistent with; exit if it is newer than the wheel's tag."""
    found = CONSISTENT.search(shown)
    if found is None:
        raise SystemExit(f"wheels: auditwheel names no platform:\n{shown}")
    version = (int(found[1]), int(found[2]))
    if version > GLIBC or found[3] != target.machine:
        raise SystemExit(
            f"wheels: {target.wheel.name} needs manylinux_{found[1]}_{found[2]}_{found[3]}"
        )
    return f"manylinux_{found[1]}_{found[2]}"


def audit(target: Target) -> dict[str, object]:
    """Check the target's wheel; return its figures, or exit with what is wrong."""
    faults = list(faults_of(target.wheel, target))
    if faults:
        raise SystemExit("".join(f"wheels: {target.wheel.name} {fault}\n" for fault in faults))
    platform = check_consistent(auditwheel(target, "show", target.wheel), target)
    abi3audit = tools_python().with_name("abi3audit")
    said = run(abi3audit, "--strict", "--summary", target.wheel, cwd=WORK)
    with zipfile.ZipFile(target.wheel) as archive:
        native = sum(one.file_size for one in archive.infolist() if one.filename.endswith(".so"))
    return {
        "wheel": target.wheel.name,
        "bytes": target.wheel.stat().st_size,
        "native_bytes": native,
        "auditwheel": platform,
        "abi3audit": " ".join(said.split()).partition(": ")[2],
    }
