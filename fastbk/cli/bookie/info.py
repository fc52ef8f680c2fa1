"""`fastbk bookie info|disk`: how a running bookie and its disks are, by its own word."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastbk.cli.admin_client import add_bookie, admin_client
from fastbk.cli.options import add_json, print_answer, table
from fastbk.cli.running import add_watch
from fastbk.cli.terminal import painted
from fastbk.units import format_age_s, format_size

if TYPE_CHECKING:
    import argparse

WRITABLE = "writable"
WELL = ("ok", "warn")
CAUSES = {"wake_up": "a late wake-up", "ring": "a full ring or no credit"}
"""How a cause of slow commits is called, where its name does not say it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of both."""
    add_bookie(parser)
    add_json(parser)
    add_watch(parser)


def info(options: argparse.Namespace) -> int:
    """Print state, reasons and disks. Returns 1 when the bookie does not take writes."""
    found = admin_client(options).get("/info")
    print_answer(options, found, as_lines=_info_lines)
    return 0 if found["state"] == WRITABLE and not found["not_ready"] else 1


def disk(options: argparse.Namespace) -> int:
    """Print every directory's disk. Returns 1 when one is worse than a warning, or slow."""
    disks = admin_client(options).get("/disks")["disks"]
    print_answer(options, disks, as_lines=_disk_lines)
    is_well = all(each["state"] in WELL and not each["slow"] for each in disks)
    return 0 if is_well and disks else 1


def _info_lines(found: dict[str, Any]) -> list[str]:
    facts = [
        ("bookie", found["bookie_id"]),
        ("software", found["software"]),
        ("state", f"{painted(found['state'])} for {format_age_s(found['state_seconds'])}"),
        ("address", found["address"]),
        ("restarts", f"{found['restarts']} (epoch {found['epoch']})"),
        ("processes", ", ".join(f"{name} {pid}" for name, pid in found["pids"].items())),
    ]
    if found["quarantined"] or found["limbo"]:
        text = (
            f"{found['quarantined']:,} ranges of entries in quarantine, {found['limbo']:,} ledgers in limbo;"
            f" `fastbk bookie repair {found['bookie_id']}` heals them"
        )
        facts.append(("damaged", text))
    if found.get("bad_digests"):
        text = (
            f"{found['bad_digests']:,} ranges of entries came with a wrong digest; readers take other bookies' copies"
            " (GET /scrub names them)"
        )
        facts.append(("digests", text))
    facts += [("because", reason) for reason in found["not_ready"]]
    conditions = found.get("conditions", ())
    facts += [(one["concerns"], one["reason"]) for one in conditions if one["concerns"] != "data"]
    slow = found.get("slow") or {}
    if slow.get("counts"):
        causes = ", ".join(
            f"{CAUSES.get(cause, cause)} {count:,} (longest {slow['longest_ms'][cause]:,.0f} ms)"
            for cause, count in slow["counts"].items()
        )
        last = slow["last"]
        facts.append(("slow", f"over 10 ms because of: {causes}; GET /slow has the stages"))
        facts.append(("", f"last: {last['event']}, {last['took_ms']:,.0f} ms: {last['reason']}"))
    lines = [f"{name + ':' if name else '':<11} {text}" for name, text in facts]
    return lines + _disk_lines(found["disks"])


def _disk_lines(disks: list[dict[str, Any]]) -> list[str]:
    if not disks:
        return ["nothing is known of the disks yet: the bookie is starting"]
    rows = [("directory", "state", "for", "takes", "used", "free", "path")]
    for one in disks:
        lasted, free = (
            format_age_s(time.time() - one["state_since_s"]),
            format_size(one["free_bytes"]),
        )
        used = f"{one['used_ratio']:.0%}"
        which = f"{one['role']} {one['pair']}"
        rows.append(
            (which, painted(one["state"]), lasted, one["takes"], used, free, one["directory"])
        )
    lines: list[str] = []
    for row, one in zip(table(rows, "<<<<>><"), [{}, *disks], strict=True):
        lines.append(row)
        for key, said in (
            ("reason", "because"),
            ("slow", "slow"),
            ("errors", "failed writes since the start"),
        ):
            if one.get(key):
                lines.append(f"{'':<10}  {painted(said, 'slow')}: {one[key]}")
    return lines
