"""A run as text that can be read: one column a node, one line an event, time going down."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.plan import Plan
from tests.simulation.world import Result

COLUMN = 20


def head_of(plan: Plan) -> str:
    return (
        f"seed {plan.seed}: E={plan.ensemble} Qw={plan.write_quorum} Qa={plan.ack_quorum}"
        f" of {' '.join(plan.bookies)}, {plan.duration_s:g} s, {', '.join(plan.classes) or 'no faults'}"
        f"{', deferred sync' if plan.is_deferred else ''}"
    )


def items_of(plan: Plan) -> Iterator[str]:
    for item in sorted([*plan.faults, *plan.work], key=lambda item: item.at_s):
        yield str(item)


def columns(result: Result) -> Iterator[str]:
    """Yield the lines of a traced run; columns of nodes to which nothing happened are left out."""
    lines = result.lines or []
    shown = sorted({index for _, index, _ in lines})
    place = {index: number for number, index in enumerate(shown)}
    yield " " * 12 + "".join(result.names[index].ljust(COLUMN) for index in shown)
    for at_s, index, text in lines:
        yield f"{at_s:10.5f}  {' ' * COLUMN * place[index]}{text}"
    yield f"{result.events} events, {result.text.strip() or 'no violation'}"
