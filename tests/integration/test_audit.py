"""The audit log of a bookie: who was let in, refused, fenced, recovered and changed the bookie."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import fastbk
from fastbk.auth.credentials import Credentials
from fastbk.observe.audit_chain import Chain, faults
from fastbk.private_files import write_text
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async

USERS = 'Bookie { a.B required user_writer="w" user_reader="r"; };'


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_what_clients_and_operators_do_is_on_record(tmp_path: Path) -> None:
    write_text(tmp_path / "users", USERS)
    for name in ("w", "r", "wrong"):
        write_text(tmp_path / name, name)
    log = tmp_path / "audit.log"
    settings: dict[str, dict[str, object]] = {
        "audit": {"file": str(log)},
        "authentication": {"methods": ["sasl"], "users_file": str(tmp_path / "users"), "sasl_without_tls": True},
        "authorization": {"writers": ["user:writer"], "readers": ["user:reader"]},
    }

    def as_user(name: str, password: str) -> Credentials:
        return Credentials(user=name, password_file=str(tmp_path / password), sasl_without_tls=True)

    async with LocalCluster(1, settings=settings) as cluster:
        uri, bookie = cluster.metadata_uri, cluster.bookies[0]
        async with fastbk.connect(uri, credentials=as_user("writer", "w")) as client:
            writer = await client.create_ledger(1, 1, 1, password=b"secret")
            await writer.append(b"x")
            ledger_id = writer.ledger_id
            async with fastbk.connect(uri, credentials=as_user("writer", "w")) as other:
                await other.open_ledger(ledger_id, password=b"secret")  # fences and recovers
            for credentials in (as_user("reader", "wrong"), as_user("reader", "r")):
                async with fastbk.connect(uri, credentials=credentials) as reader:
                    try:
                        await (await reader.create_ledger(1, 1, 1)).append(b"x")
                    except fastbk.Error:
                        continue
                raise AssertionError("a reader must not write")
        request = urllib.request.Request(
            f"http://127.0.0.1:{bookie.http_port}/api/v1/bookie/state/readonly", b'{"readOnly": true}', method="PUT"
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

        def found(event: str, **values: object) -> bool:
            return any(
                one["event"] == event and values.items() <= one.items() for one in records(log)
            )

        expected: list[tuple[str, dict[str, object]]] = [
            ("client.authenticated", {"principal": "user:writer", "method": "sasl", "address": "127.0.0.1"}),
            ("client.refused", {"reason": "the user or the password is wrong", "principal": ""}),
            ("request.allowed", {"operation": "fence", "ledger": ledger_id, "principal": "user:writer"}),
            ("request.denied", {"operation": "add", "principal": "user:reader", "verdict": "no right"}),
            ("admin.changed", {"operation": "PUT /api/v1/bookie/state/readonly", "verdict": 200}),
        ]
        for event, values in expected:
            await wait_until_async(lambda e=event, v=values: found(e, **v), f"{event} {values}")
    assert records(log)[-1]["event"] == "audit.ended"
    assert list(faults(log.read_bytes().splitlines(keepends=True), Chain())) == []
    text = log.read_text()
    for secret in ("secret", '"w"', '"r"'):
        assert secret not in text
