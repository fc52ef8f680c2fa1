"""The audit log of a bookie: who was let in, refused, fenced, recovered and changed the bookie."""

from __future__ import annotations

from pathlib import Path

import fastbk
from fastbk.security.audit_log import Chain, faults
from fastbk.testing import LocalCluster
from tests.fixtures.logs import json_lines
from tests.fixtures.pages import page
from tests.fixtures.users import as_user, sasl_section
from tests.fixtures.wait import wait_until_async


async def test_what_clients_and_operators_do_is_on_record(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    settings: dict[str, dict[str, object]] = {
        "audit": {"file": str(log)},
        "authentication": sasl_section(tmp_path, "writer", "reader"),
        "authorization": {"writers": ["user:writer"], "readers": ["user:reader"]},
    }

    async with LocalCluster(1, settings=settings) as cluster:
        uri, bookie = cluster.metadata_uri, cluster.bookies[0]
        async with fastbk.connect(uri, credentials=as_user(tmp_path, "writer")) as client:
            writer = await client.create_ledger(1, 1, 1, password=b"secret")
            await writer.append(b"x")
            ledger_id = writer.ledger_id
            async with fastbk.connect(uri, credentials=as_user(tmp_path, "writer")) as other:
                await other.open_ledger(ledger_id, password=b"secret")  # fences and recovers
            for credentials in (as_user(tmp_path, "reader", "wrong"), as_user(tmp_path, "reader")):
                async with fastbk.connect(uri, credentials=credentials) as reader:
                    try:
                        await (await reader.create_ledger(1, 1, 1)).append(b"x")
                    except fastbk.Error:
                        continue
                raise AssertionError("a reader must not write")
        assert page(bookie, "/api/v1/bookie/state/readonly", "PUT", '{"readOnly": true}')[0] == 200

        def found(event: str, **values: object) -> bool:
            return any(
                one["event"] == event and values.items() <= one.items() for one in json_lines(log)
            )

        expected: list[tuple[str, dict[str, object]]] = [
            (
                "client.authenticated",
                {"principal": "user:writer", "method": "sasl", "address": "127.0.0.1"},
            ),
            ("client.refused", {"reason": "the user or the password is wrong", "principal": ""}),
            (
                "request.allowed",
                {"operation": "fence", "ledger": ledger_id, "principal": "user:writer"},
            ),
            (
                "request.denied",
                {"operation": "add", "principal": "user:reader", "verdict": "no right"},
            ),
            ("admin.changed", {"operation": "PUT /api/v1/bookie/state/readonly", "verdict": 200}),
        ]
        for event, values in expected:
            await wait_until_async(lambda e=event, v=values: found(e, **v), f"{event} {values}")
    assert json_lines(log)[-1]["event"] == "audit.ended"
    assert list(faults(log.read_bytes().splitlines(keepends=True), Chain())) == []
    text = log.read_text()
    for secret in ("secret", "of writer", "of reader"):
        assert secret not in text
