"""Which requests a client may make, by its role, in all three protocols.

INV-N2: each request needs its right, and nothing of a refused one reaches a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fastbk.security.settings import (
    AuthenticationSettings,
    AuthorizationSettings,
)
from fastbk.wire.messages import encode_info
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.apache_wire import EOK, EUA, hear_v2, hear_v3
from tests.fixtures.counters import counted
from tests.fixtures.frames import answer_of
from tests.fixtures.logins import in_v3, log_in
from tests.fixtures.users import sasl_settings
from tests.fixtures.worker_harness import WorkerHarness, served

OK, FORBIDDEN, V2_EUA = 0, 28, 102
ROLES = {
    "reader": {"read"},
    "writer": {"read", "add", "recover"},
    "healer": {"read", "recover"},
    "admin": {"read", "add", "recover"},
}
"""The rights of each role."""
OURS: list[tuple[str, Callable[[int], bytes]]] = [
    ("add", lambda n: frames.add(n, 0)),
    ("add", lambda n: frames.add_batch(n, 0, [frames.entry_bytes(0), frames.entry_bytes(1)])),
    ("recover", lambda n: frames.add(n, 0, flags=1)),
    ("recover", lambda n: frames.add_batch(n, 0, [frames.entry_bytes(0)], flags=1)),
    ("read", lambda n: frames.read(n, 0)),
    ("recover", lambda n: frames.read(n, 0, flags=1, key=frames.KEY)),
    ("read", lambda n: frames.read_batch(n, 0, 9)),
    ("read", lambda n: frames.read_lac(n, -1)),
    ("read", lambda n: frames.list_entries(n, 0, 10)),
    ("add", lambda n: frames.force(n)),
]
APACHES: list[tuple[str, Callable[[int], bytes]]] = [
    ("add", lambda n: apache.v3_add(n, 0)),
    ("read", lambda n: apache.v3_read(n, 0)),
    ("read", lambda n: apache.v3_read_lac(n)),
    ("add", lambda n: apache.v3_force(n)),
    ("read", lambda n: apache.v3_list(n)),
]


@pytest.fixture
def users(tmp_path: Path) -> AuthenticationSettings:
    """One user for each role, and one without any. SASL in the clear."""
    return sasl_settings(tmp_path, *ROLES, "other")


BY_ROLE = AuthorizationSettings(
    readers=("user:reader",),
    writers=("user:wri*",),
    healers=("user:healer",),
    admins=("user:admin",),
)


@pytest.mark.parametrize("role", ROLES)
async def test_each_request_needs_its_right(role: str, users: AuthenticationSettings) -> None:
    """INV-N2, in our protocol. Nothing of a refused request reaches a ring."""
    with WorkerHarness() as harness:
        async with served(harness, authentication=users, authorization=BY_ROLE) as bookie:
            client = await bookie.connect()
            assert await log_in(client, role, f"of {role}") == (OK, "")
            refused = 0
            for number, (right, make) in enumerate(OURS, 10):
                client.send(make(number))
                if right in ROLES[role]:
                    is_read = right == "read"
                    await (bookie.take_request() if is_read else bookie.take(1))
                else:
                    assert answer_of(await client.frame()) == (number, FORBIDDEN)
                    refused += 1
            assert harness.take_all() == []
            client.send(frames.ping(99) + encode_info(100))
            harness.publish()
            while True:  # behind those that the journal has answered
                request_id, status = answer_of(await client.frame())
                assert status == OK
                if request_id == 100:
                    break
            assert counted(harness, "REFUSED_RIGHTS") == refused
            await client.close()


@pytest.mark.parametrize("role", ROLES)
async def test_the_same_of_apaches_clients(role: str, users: AuthenticationSettings) -> None:
    """INV-N2, in Apache's protocols: AUTH may be of version 3, and the requests of either."""
    with WorkerHarness() as harness:
        async with served(harness, authentication=users, authorization=BY_ROLE) as bookie:
            client = await bookie.connect()
            assert await in_v3(client, role, f"of {role}") == EOK
            client.send(apache.v3_auth(3, b""))  # Java sends one more
            assert (await hear_v3(client)).fields[1] == "AuthDisabledPlugin"
            for number, (right, make) in enumerate(APACHES, 10):
                client.send(make(number))
                if right in ROLES[role]:
                    await (bookie.take_request() if right == "read" else bookie.take(1))
                else:
                    assert (await hear_v3(client)).status == EUA
            client.send(apache.v2_add(7))
            if "add" in ROLES[role]:
                await bookie.take(1)
            else:
                assert (await hear_v2(client)).error == V2_EUA
            client.send(apache.v2_read(0, flags=1, key=apache.KEY))
            if "recover" in ROLES[role]:
                await bookie.take(1)
            else:
                assert (await hear_v2(client)).error == V2_EUA
            assert harness.take_all() == []
            await client.close()
