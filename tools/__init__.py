"""What makes, measures and draws: benchmarks, simulation, fuzzers, fault rigs, wheels, pins, pages and pictures.

Each module is a command of `./dev`; nobody runs it in another way.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The root of the checkout."""
