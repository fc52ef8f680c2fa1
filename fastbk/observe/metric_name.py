"""A metric's name, unit and kind, from the name of its slot by fixed rules; `names.py` has all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
_ROLES = ("WORKER", "JOURNAL", "INDEX", "GC")
_TIMES = {"_NS": 1e-9, "_US": 1e-6, "_MS": 1e-3}


@dataclass(frozen=True)
class Name:
    """One metric.

    Attributes:
        slot_name: its constant in C.
        slot: its number among the counters, or the histograms, of its role's segment.
        role: whose segment it lies in.
        kind: counters only rise while a process lives; gauges go both ways.
        metric: its Prometheus name.
        scale: what a stored value is multiplied with to be in the metric's unit.
        text: its help.
        is_own: False: only Apache's name shows it (`fastbk.observe.apache_names`): series are paid for.
    """

    slot_name: str
    slot: int
    role: str
    kind: Kind
    metric: str
    scale: float
    text: str
    is_own: bool = True
    is_limit: bool = False
    """Whether it has a series only from the first time on: most limits are never reached, and series are paid for."""

    @property
    def is_of_apaches_clients(self) -> bool:
        """Whether it stays 0 until a client speaks one of Apache's protocols."""
        return self.slot_name.split("_")[3] in ("V2", "V3")


def describe(slot_name: str, slot: int, text: str, *, is_gauge: bool = False) -> Name:
    """Return the metric of a slot by the rules of this module. Raises ValueError for a name without a role."""
    _, letter, role, rest = slot_name.split("_", 3)
    if role not in _ROLES or letter not in ("C", "H"):
        raise ValueError(f"{slot_name} is not FBK_C_<ROLE>_... or FBK_H_<ROLE>_...")
    base, scale = rest, 1.0
    for ending, factor in _TIMES.items():
        if rest.endswith(ending):
            base, scale = rest.removesuffix(ending) + "_SECONDS", factor
    kind: Kind = "histogram" if letter == "H" else "gauge" if is_gauge else "counter"
    metric = f"fastbk_{role}_{base}{'_total' if kind == 'counter' else ''}".lower()
    return Name(slot_name, slot, role.lower(), kind, metric, scale, text)
