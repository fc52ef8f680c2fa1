"""`fastbk doctor --config FILE`: what is wrong with a machine and a bookie's settings and directories, and the cure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_json, need_linux, print_json
from fastbk.cli.terminal import painted
from fastbk.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the bookie's TOML file; without: the machine only",
    )
    parser.add_argument("--problems", action="store_true", help="leave out what is well")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look, print as it goes, and return 1 if something has to be mended, or is not well by `cluster status`, too."""
    need_linux("fastbk doctor")
    from fastbk.doctor import Status
    from fastbk.doctor.examine import examine
    from fastbk.model.health import Verdict

    counts: Counter[Status] = Counter()
    is_well = True
    for finding in examine(options.config):
        counts[finding.status] += 1
        is_well &= finding.status is not Status.FAIL and finding.verdict in ("", Verdict.WELL.text)
        if options.problems and finding.status is Status.OK:
            continue
        if options.json:
            print_json(asdict(finding))
            continue
        print(f"{painted(f'{finding.status.upper():<5}')} {finding.name}: {finding.why}")
        if finding.fix:
            print(f"      -> {finding.fix}")
    if not options.json:
        said = ", ".join(
            painted(f"{counts[status]} {status.upper()}", status if counts[status] else "")
            for status in Status
        )
        print(f"{counts.total()} checks: {said}")
    return DONE if is_well else FAILED
