"""What operators may ask of gc over HTTP, and what is left of it when gc's process ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastbk.errors import ConfigError
from fastbk.server.process_table import GC, INDEX
from fastbk.server.supervision.gc_admin import GcDesk, GcGone


def boot(sent: list[dict[str, Any]], *, is_alive: bool = True) -> Any:
    def send(message: dict[str, Any]) -> bool:
        sent.append(message)
        return is_alive

    return cast("Any", SimpleNamespace(children={GC: SimpleNamespace(send=send)}))


def answer(what: Any) -> dict[str, Any]:
    found: dict[str, Any] = asyncio.run(what)
    return found


def test_orders_reach_the_process_and_its_word_is_shown() -> None:
    desk, sent = GcDesk(), []  # type: ignore[var-annotated]
    desk.attach(boot(sent))
    assert answer(desk.run({}))["number"] == 1
    assert answer(desk.run({"what": ["minor"], "force": True}))["number"] == 2
    assert sent == [
        {"type": "gc_run", "what": ["ledgers"], "force": False, "number": 1},
        {"type": "gc_run", "what": ["minor"], "force": True, "number": 2},
    ]
    desk.told({"type": "gc_status", "status": {"run_done": 1, "doing": "x"}})
    status = answer(desk.status({}))
    assert (status["running"], status["runs_asked"], status["run_done"], status["runs_lost"]) == (
        True,
        2,
        1,
        0,
    )


def test_a_suspension_outlives_the_process() -> None:
    desk, sent = GcDesk(), []  # type: ignore[var-annotated]
    desk.attach(boot(sent))
    assert answer(desk.suspend({}))["suspended"] == ["ledgers", "major", "minor"]
    assert answer(desk.resume({"what": ["minor"]}))["suspended"] == ["ledgers", "major"]
    answer(desk.run({}))
    desk.detach()
    again: list[dict[str, Any]] = []
    desk.attach(boot(again))
    assert again == [{"type": "gc_suspend", "what": ["ledgers", "major"]}]
    assert answer(desk.status({}))["runs_lost"] == 1, "nobody will do that run"


def test_without_a_process_orders_are_refused() -> None:
    desk = GcDesk()
    with pytest.raises(GcGone):
        answer(desk.run({}))
    desk.attach(cast("Any", SimpleNamespace(children={INDEX: None})))
    assert answer(desk.status({}))["running"] is False
    desk.attach(boot([], is_alive=False))
    with pytest.raises(GcGone):
        answer(desk.suspend({}))
    assert answer(desk.status({}))["suspended"] != [], "and the next process hears of it"


@pytest.mark.parametrize(
    "asked", [{"what": ["all"]}, {"what": "minor"}, {"what": [1]}, {"force": "yes"}]
)
def test_what_there_is_not_is_refused(asked: dict[str, Any]) -> None:
    desk = GcDesk()
    desk.attach(boot([]))
    with pytest.raises(ConfigError):
        answer(desk.run(asked))
