"""A connection whose token has ended is closed once, however long that takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fastbk.security.rights import ALL_RIGHTS, Principal
from fastbk.server.network.principals import Principals


class FakeConnection:
    """One that says it was closed, and stays."""

    def __init__(self, principal: Principal, done: list[str]) -> None:
        self.client = SimpleNamespace(principal=principal)
        self.address, self.slot, self._done = "here", 3, done

    def close(self) -> None:
        self._done.append("closed")


def test_a_connection_that_takes_long_to_close_ends_once() -> None:
    done: list[str] = []
    worker = SimpleNamespace(
        count=lambda _: done.append("counted"), admit=lambda *_: done.append("admitted")
    )
    admission = SimpleNamespace(
        files=SimpleNamespace(has_changed=lambda: False),
        why_ended=lambda *_: "its token has expired",
    )
    audit = SimpleNamespace(note=lambda *_, **__: done.append("noted"))
    quotas = SimpleNamespace(enter=lambda *_: None, leave=lambda *_: None)
    principals = Principals(
        *cast("tuple[Any, Any, float, Any, Any]", (admission, worker, 10.0, audit, quotas)),
        clock_s=lambda: 0.0, wall_clock_s=lambda: 100.0,
    )  # fmt: skip
    connection = FakeConnection(
        Principal(name="token:app", rights=ALL_RIGHTS, ends_at_s=50.0), done
    )
    principals.admitted(cast("Any", connection))
    for _ in range(3):
        principals.sweep()
    assert done == ["counted", "noted", "admitted", "closed"]
    principals.left(cast("Any", connection))
