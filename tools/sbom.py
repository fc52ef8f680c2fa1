"""`./dev sbom`: what fastbk consists of that others have written, as CycloneDX. `./dev audit`: its vulnerabilities.

Both are made of `requirements/run.txt` and `console.txt`, the pinned packages that bookies, clients and the console run
with. uPlot is among the console's files (packaging/fetch_uplot.py). liburing is linked
into the native code, into wheels in a pinned version; Debian's packages (Python, OpenSSL, zlib) are the system's, and
its updates count.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tools import ROOT
from tools.environments import ensure_environment
from tools.pins import read_pins
from tools.wheels import liburing

if TYPE_CHECKING:
    from pathlib import Path

SHIPPED = (ROOT / "requirements" / "run.txt", ROOT / "requirements" / "console.txt")
SBOM = ROOT / "build" / "sbom.json"
UPLOT = ROOT / "packaging" / "fetch_uplot.py"
ENVIRONMENT, REQUIREMENTS = ".venv-audit", ROOT / "requirements" / "audit.txt"
WHEELS = ROOT / "requirements" / "wheels.txt"
MIT = [{"license": {"id": "MIT"}}]
NOT_AUDITED = "could not be audited"


def write_sbom() -> int:
    """Write build/sbom.json; return the exit code."""
    SBOM.parent.mkdir(exist_ok=True)
    together = SBOM.with_name("shipped.txt")
    together.write_text("".join(one.read_text() for one in SHIPPED))
    command = [tool("cyclonedx-py"), "requirements", together, "--output-format", "JSON", "--output-reproducible",
               "--pyproject", ROOT / "pyproject.toml"]  # fmt: skip
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return done.returncode
    bom = json.loads(done.stdout)
    bom["components"].append(
        {
            "type": "library",
            "name": "liburing",
            "version": system_version("liburing"),
            "description": "linked into fastbk's native code",
            "bom-ref": "liburing",
            "purl": f"pkg:deb/debian/liburing@{system_version('liburing')}",
            "licenses": MIT,
        }
    )
    bom["components"] += [uplot(), *linked_into_wheels()]
    SBOM.write_text(json.dumps(bom, indent=2) + "\n")
    print(f"{SBOM.relative_to(ROOT)}: {len(bom['components'])} components")
    return 0


def uplot() -> dict[str, object]:
    """Return the library that draws the console's charts, as it is pinned."""
    pinned = re.search(r'(?m)^PACKAGE = "uplot@(\S+)"$', UPLOT.read_text())
    assert pinned is not None
    return {
        "type": "library",
        "name": "uplot",
        "version": pinned[1],
        "description": "draws charts in the console's pages",
        "bom-ref": "uplot",
        "purl": f"pkg:npm/uplot@{pinned[1]}",
        "licenses": MIT,
    }


def linked_into_wheels() -> list[dict[str, object]]:
    """Return what the wheels of `./dev wheels` have linked in: pinned, so not what this machine has."""
    zig = read_pins(WHEELS.read_text())["ziglang"].version
    return [
        {
            "type": "library",
            "name": "liburing",
            "version": liburing.VERSION,
            "description": "linked into the wheels of ./dev wheels",
            "bom-ref": "liburing of wheels",
            "purl": f"pkg:deb/debian/liburing@{liburing.DEBIAN_VERSION}?arch=source",
            "hashes": [{"alg": "SHA-256", "content": liburing.SHA256}],
            "licenses": MIT,
        },
        {
            "type": "library",
            "name": "zig",
            "version": zig,
            "description": "the compiler of ./dev wheels; parts of its runtime library are linked in",
            "bom-ref": "zig of wheels",
            "purl": f"pkg:pypi/ziglang@{zig}",
            "licenses": MIT,
        },
    ]


def tool(name: str) -> Path:
    """Return a program of the tools' own environment."""
    return ensure_environment(ENVIRONMENT, REQUIREMENTS).with_name(name)


def system_version(library: str) -> str:
    """Return a library's version as pkg-config has it."""
    found = subprocess.run(
        ["pkg-config", "--modversion", library], check=False, stdout=subprocess.PIPE, text=True
    )
    return found.stdout.strip() or "unknown"


def audit() -> int:
    """Ask the package index about each pinned package; return the exit code."""
    files = [word for one in SHIPPED for word in ("--requirement", one)]
    command = [tool("pip-audit"), "--no-deps", "--disable-pip", *files, "--format", "json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(done.stderr, file=sys.stderr)
        return done.returncode or 1
    text, code = audited(packages)
    print(text)
    return code


def audited(packages: list[dict[str, Any]]) -> tuple[str, int]:
    """Return what to print of pip-audit's findings, and the exit code.

    It is 0 only if the index said of every package that it has no known vulnerability.
    """
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    bad = [one for one in packages if one.get("vulns")]
    lines = []
    for one in bad:
        for found in one["vulns"]:
            fixed = ", ".join(found.get("fix_versions", [])) or "no version"
            lines.append(f"{one['name']} {one['version']}: {found['id']}, fixed in {fixed}")
    lines.append(
        f"{len(packages) - len(unknown)} packages audited, {len(bad)} with known vulnerabilities"
    )
    if unknown:
        lines.append(
            f"{len(unknown)} {NOT_AUDITED}, since this package index does not say: {', '.join(unknown)}. "
            "Run this where pip uses an index that publishes vulnerabilities."
        )
    return "\n".join(lines), 1 if bad or unknown or not packages else 0


if __name__ == "__main__":
    sys.exit(audit() if sys.argv[1:] == ["audit"] else write_sbom())
