"""What the error of a procedure says of bookies that refused it."""

from __future__ import annotations

import pytest

from fastbk.errors import Unauthorized
from fastbk.model.ids import BookieId
from fastbk.replication.procedure import Reply
from fastbk.replication.replicas import Replicas
from fastbk.wire.statuses import Status


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (Status.UNAUTHORIZED, "the password is not the ledger's"),
        (Status.FORBIDDEN, "this client's role or token does not allow it"),
    ],
)
def test_a_refusal_names_what_was_wrong(status: Status, why: str) -> None:
    replicas = Replicas()
    replicas.record_reply(BookieId("a"), Reply(status))
    error = replicas.error("ledger 1 was not fenced", ledger_id=1)
    assert isinstance(error, Unauthorized)
    assert error.message == f"ledger 1 was not fenced: {why}"
