"""`./dev wheels`: build both wheels, check them, and try them where this machine can.

PYTHONS="name path": these Pythons besides those that are found. EMULATE=0: without aarch64 under QEMU.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

from tools.wheels import build, emulation, environments
from tools.wheels.audit import audit
from tools.wheels.steps import WHEELS, Missing, timed

REPORT = WHEELS / "report.json"


def main() -> int:
    """Return the exit code."""
    report: dict[str, object] = {}
    with timed(report, "seconds"):
        try:
            build.build_all(report)
        except Missing as reason:
            print(f"wheels: not built: {reason}", file=sys.stderr)
            return 1
        report["wheels"] = [audit(target) for target in build.TARGETS]
        tried, skipped = try_all()
    report |= {"tried": tried, "skipped": skipped, "not_shown_by_emulation": emulation.NOT_SHOWN}
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    print_report(report, tried, skipped)
    return 0


def try_all() -> tuple[list[dict[str, object]], list[str]]:
    """Return the figures of every environment in which a wheel was tried, and what was not tried, with the reasons."""
    tried, skipped = [], []
    native = [target for target in build.TARGETS if target.machine == platform.machine()]
    for target in native:
        for version, python in environments.pythons().items():
            print(f"trying {target.machine} with {python}", file=sys.stderr)
            tried.append(environments.try_wheel(target, python, version))
    if not native:
        skipped.append(f"{platform.machine()}: there is no wheel for it")
    for target in build.TARGETS:
        if target in native:
            continue
        try:
            if target.machine != "aarch64":
                raise Missing("no emulation of it is set up")
            if not emulation.wanted():
                raise Missing("EMULATE=0")
            print(f"trying {target.machine} under QEMU", file=sys.stderr)
            tried.append(emulation.try_emulated(target))
        except Missing as reason:
            skipped.append(f"{target.machine}: {reason}")
    return tried, skipped


def print_report(
    report: dict[str, object], tried: list[dict[str, object]], skipped: list[str]
) -> None:
    """Print what was built and what was seen."""
    wheels = report["wheels"]
    assert isinstance(wheels, list)
    for one in wheels:
        sizes = (
            f"{one['bytes'] / 1e6:.1f} MB, native part {one['native_bytes'] / 1e6:.1f} MB unpacked"
        )
        print(f"build/wheels/{one['wheel']}: {sizes}")
        print(f"  auditwheel: consistent with {one['auditwheel']}; abi3audit: {one['abi3audit']}")
    for one in tried:
        print(f"{one['machine']}, Python {one['python']} ({one['interpreter']})")
        first = f"first append {one['first_append_s']} s after Python's start"
        print(
            f"  installed in {one['install_s']} s; {first}, {one['cluster_s']} s of them for bookies"
        )
        print(f"  further appends {one['append_us']} µs; journal: {one['journal']}")
        if "unit_tests" in one:
            print(f"  {one['unit_tests']} unit tests passed in {one['unit_tests_s']} s")
            print("".join(f"  not shown: {what}\n" for what in emulation.NOT_SHOWN), end="")
    for reason in skipped:
        print(f"not tried: {reason}")
    print(f"{report['seconds']} s; all figures: {REPORT.relative_to(Path.cwd())}")


if __name__ == "__main__":
    sys.exit(main())
