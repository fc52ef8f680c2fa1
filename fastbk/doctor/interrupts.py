"""Which processors a disk interrupts: a commit's answer begins there, and whoever waits for it is nearest there."""

from __future__ import annotations

import os
import re
from pathlib import Path


def disk_of(directory: str, sys_: Path = Path("/sys")) -> tuple[str, str] | None:
    """Return the disk under a directory and how the names of its interrupts begin; None where that is not known.

    Known are disks of virtio (`vda`, `virtio1-req`) and NVMe (`nvme0n1`, `nvme0q`), whole or in partitions.
    """
    device = os.stat(directory).st_dev
    block = (sys_ / "dev/block" / f"{os.major(device)}:{os.minor(device)}").resolve()
    if (block / "partition").exists():
        block = block.parent
    if found := re.fullmatch(r"(nvme\d+)n\d+", block.name):
        return block.name, f"{found[1]}q"
    bus = (block / "device").resolve().name
    return (block.name, f"{bus}-req") if re.fullmatch(r"virtio\d+", bus) else None


def interrupts_of(text: str, beginning: str) -> dict[int, int]:
    """Return processor → interrupts so far, of those in `/proc/interrupts` whose name begins so; only those above 0."""
    header, *lines = text.splitlines()
    processors = [int(name.removeprefix("CPU")) for name in header.split()]
    found: dict[int, int] = {}
    for line in lines:
        words = line.split()
        if words and words[-1].startswith(beginning):
            for processor, count in zip(processors, words[1:], strict=False):
                if count.isdigit() and int(count):
                    found[processor] = found.get(processor, 0) + int(count)
    return found
