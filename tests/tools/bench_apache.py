"""`./dev bench apache`: what an entry costs a bookie, and how many there are a second, through our protocol and through
versions 2 and 3 of Apache's, in turns.

SECONDS=3 ROUNDS=3 WINDOW=1000 SIZE=1024 change the load.
"""

from __future__ import annotations

import statistics

from tests.style.tree import ROOT
from tests.tools.bench import load_of
from tests.tools.part import setting

PROTOCOLS = ("fastbk", "v2", "v3")
WINDOW = setting("WINDOW", "1000")
CASES = {
    "append": ("--window", WINDOW),
    "read": ("--window", WINDOW),
    "read in batches": ("--window", "10", "--entries-a-read", "64"),
}


def main() -> None:
    seconds, rounds = setting("SECONDS", 3.0), setting("ROUNDS", 3)
    size = ("--size", setting("SIZE", "1024"))
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for name, more in CASES.items():
            for protocol in PROTOCOLS:
                if protocol == "v3" and "--entries-a-read" in more:
                    continue  # it has none
                arguments = (name.split()[0], "--protocol", protocol, *size, *more)
                figures = load_of(ROOT, arguments, seconds)
                found.setdefault((name, protocol), []).append((figures["bookie_us"], figures["per_s"]))
    print(f"{'':18} {'':7} {'bookie CPU µs/entry':>20} {'entries/s':>12}   (medians of {rounds})")
    for (name, protocol), figures_of_rounds in found.items():
        cpu, rate_found = (statistics.median(column) for column in zip(*figures_of_rounds, strict=True))
        print(f"{name:18} {protocol:7} {cpu:20.2f} {rate_found:12,.0f}")
