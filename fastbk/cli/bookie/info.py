"""`fastbk bookie info|disk`: how a running bookie and its disks are, by its own word."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastbk.cli.admin_client import add_bookie, admin_client
from fastbk.cli.options import add_json, print_json
from fastbk.units import format_size

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


def info(options: argparse.Namespace) -> int:
    """Print state, reasons and disks. Returns 1 when the bookie does not take writes."""
    found = admin_client(options).get("/info")
    if options.json:
        print_json(found)
    else:
        _print_info(found)
    return 0 if found["state"] == WRITABLE and not found["not_ready"] else 1


def disk(options: argparse.Namespace) -> int:
    """Print every directory's disk. Returns 1 when one is worse than a warning, or slow."""
    disks = admin_client(options).get("/disks")["disks"]
    if options.json:
        print_json(disks)
    else:
        _print_disks(disks)
    is_well = all(each["state"] in WELL and not each["slow"] for each in disks)
    return 0 if is_well and disks else 1


def _print_info(found: dict[str, Any]) -> None:
    lines = {
        "bookie": found["bookie_id"],
        "software": found["software"],
        "state": f"{found['state']} for {_duration(found['state_seconds'])}",
        "address": found["address"],
        "restarts": f"{found['restarts']} (epoch {found['epoch']})",
        "processes": ", ".join(f"{name} {pid}" for name, pid in found["pids"].items()),
    }
    for name, text in lines.items():
        print(f"{name + ':':<11} {text}")
    if found["quarantined"] or found["limbo"]:
        print(
            f"{'damaged:':<11} {found['quarantined']:,} ranges of entries in quarantine, {found['limbo']:,} ledgers in"
            f" limbo; `fastbk bookie repair {found['bookie_id']}` heals them"
        )
    if found.get("bad_digests"):
        print(
            f"{'digests:':<11} {found['bad_digests']:,} ranges of entries came with a wrong digest; readers take other"
            " bookies' copies (GET /scrub names them)"
        )
    for reason in found["not_ready"]:
        print(f"{'because:':<11} {reason}")
    for one in found.get("conditions", ()):
        if one["concerns"] != "data":
            print(f"{one['concerns'] + ':':<11} {one['reason']}")
    _print_slow(found.get("slow") or {})
    _print_disks(found["disks"])


def _print_slow(slow: dict[str, Any]) -> None:
    """Print what slowed commits and answers since the bookie started; nothing if all were quick."""
    if not slow.get("counts"):
        return
    causes = ", ".join(
        f"{CAUSES.get(cause, cause)} {count:,} (longest {slow['longest_ms'][cause]:,.0f} ms)"
        for cause, count in slow["counts"].items()
    )
    last = slow["last"]
    print(f"{'slow:':<11} over 10 ms because of: {causes}; GET /slow has the stages")
    print(f"{'':<11} last: {last['event']}, {last['took_ms']:,.0f} ms: {last['reason']}")


def _print_disks(disks: list[dict[str, Any]]) -> None:
    if not disks:
        print("nothing is known of the disks yet: the bookie is starting")
        return
    print(
        f"{'directory':<10}  {'state':<10}  {'for':<8}  {'takes':<8}  {'used':>5}  {'free':>10}  path"
    )
    for each in disks:
        lasted_s = time.time() - each["state_since_s"]
        print(
            f"{each['role'] + ' ' + str(each['pair']):<10}  {each['state']:<10}  {_duration(lasted_s):<8} "
            f" {each['takes']:<8}  {each['used_ratio']:>5.0%}  {format_size(each['free_bytes']):>10} "
            f" {each['directory']}"
        )
        for key in ("reason", "slow"):
            if each[key]:
                print(f"{'':<10}  {key if key == 'slow' else 'because'}: {each[key]}")
        if each["errors"]:
            print(f"{'':<10}  failed writes since the start: {each['errors']}")


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
