"""What operators may ask of gc over HTTP, and what is left of it when gc's process ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastbk.errors import ConfigError
from fastbk.server.process_table import GC, INDEX
from fastbk.server.supervision.operator_requests import GcAdmin, GcGone


def boot(sent: list[dict[str, Any]], *, is_alive: bool = True) -> Any:
    def send(message: dict[str, Any]) -> bool:
        sent.append(message)
        return is_alive

    return cast("Any", SimpleNamespace(children={GC: SimpleNamespace(send=send)}))


@dataclass
class Boots:
    """The boot under way, if there is one."""

    now: Any = None

    def begin(self, admin: GcAdmin, boot: Any) -> None:
        self.now = boot
        admin.boot_is_ready()


def admin_of() -> tuple[GcAdmin, Boots]:
    boots = Boots()
    return GcAdmin(lambda: boots.now), boots


def answer(what: Any) -> dict[str, Any]:
    found: dict[str, Any] = asyncio.run(what)
    return found


def test_orders_reach_the_process_and_its_word_is_shown() -> None:
    admin, boots = admin_of()
    sent: list[dict[str, Any]] = []
    boots.begin(admin, boot(sent))
    assert answer(admin.run({}))["number"] == 1
    assert answer(admin.run({"what": ["minor"], "force": True}))["number"] == 2
    assert sent == [
        {"type": "gc_run", "what": ["ledgers"], "force": False, "number": 1},
        {"type": "gc_run", "what": ["minor"], "force": True, "number": 2},
    ]
    admin.take_status({"type": "gc_status", "status": {"run_done": 1, "doing": "x"}})
    status = answer(admin.status({}))
    assert (status["running"], status["runs_asked"], status["run_done"], status["runs_lost"]) == (
        True,
        2,
        1,
        0,
    )


def test_a_suspension_outlives_the_process() -> None:
    admin, boots = admin_of()
    sent: list[dict[str, Any]] = []
    boots.begin(admin, boot(sent))
    assert answer(admin.suspend({}))["suspended"] == ["ledgers", "major", "minor"]
    assert answer(admin.resume({"what": ["minor"]}))["suspended"] == ["ledgers", "major"]
    answer(admin.run({}))
    boots.now = None
    again: list[dict[str, Any]] = []
    boots.begin(admin, boot(again))
    assert again == [{"type": "gc_suspend", "what": ["ledgers", "major"]}]
    assert answer(admin.status({}))["runs_lost"] == 1, "nobody will do that run"


def test_without_a_process_orders_are_refused() -> None:
    admin, boots = admin_of()
    with pytest.raises(GcGone):
        answer(admin.run({}))
    boots.begin(admin, cast("Any", SimpleNamespace(children={INDEX: None})))
    assert answer(admin.status({}))["running"] is False
    boots.begin(admin, boot([], is_alive=False))
    with pytest.raises(GcGone):
        answer(admin.suspend({}))
    assert answer(admin.status({}))["suspended"] != [], "and the next process hears of it"


@pytest.mark.parametrize(
    "asked", [{"what": ["all"]}, {"what": "minor"}, {"what": [1]}, {"force": "yes"}]
)
def test_what_there_is_not_is_refused(asked: dict[str, Any]) -> None:
    admin, boots = admin_of()
    boots.begin(admin, boot([]))
    with pytest.raises(ConfigError):
        answer(admin.run(asked))
