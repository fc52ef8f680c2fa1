"""Which requests a client may make, by its role, in all three protocols.

INV-N2: each request needs its right, and nothing of a refused one reaches a ring.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from fastbk.security.rights import NO_RIGHTS, Right
from fastbk.security.settings import AuthenticationSettings, AuthorizationSettings
from fastbk.wire.generated.RequestBody import RequestBody
from fastbk.wire.messages import Hello, encode_hello, encode_info
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.apache_messages import OPERATION
from tests.fixtures.apache_wire import EOK, EUA, hear_v2, hear_v3
from tests.fixtures.counters import counted
from tests.fixtures.frames import answer_of
from tests.fixtures.logins import in_v3, log_in
from tests.fixtures.users import sasl_settings
from tests.fixtures.worker_harness import Client, Served, one_client, until

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
    async with one_client(authentication=users, authorization=BY_ROLE) as (harness, bookie, client):
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


@pytest.mark.parametrize("role", ROLES)
async def test_the_same_of_apaches_clients(role: str, users: AuthenticationSettings) -> None:
    """INV-N2, in Apache's protocols: AUTH may be of version 3, and the requests of either."""
    async with one_client(authentication=users, authorization=BY_ROLE) as (harness, bookie, client):
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


# --- each kind of request, beside the page that operators read ----------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "authentication.md"
KINDS: dict[str, Callable[[], bytes]] = {
    "Hello": lambda: encode_hello(1, Hello()),
    "Add": lambda: frames.add(1, 0),
    "AddBatch": lambda: frames.add_batch(1, 0, [frames.entry_bytes(0)]),
    "Read": lambda: frames.read(1, 0),
    "ReadBatch": lambda: frames.read_batch(1, 0, 9),
    "ReadLac": lambda: frames.read_lac(1, -1, flags=1),
    "WriteLac": lambda: frames.write_lac(1, 0, LAC_BODY),
    "Force": lambda: frames.force(1),
    "ListEntries": lambda: frames.list_entries(1, 0, 10),
    "Info": lambda: encode_info(1),
    "Ping": lambda: frames.ping(1),
}
LAC_BODY = struct.pack(">qq", frames.LEDGER, 0)
TAKEOVERS: dict[str, Callable[[], bytes]] = {
    "Add": lambda: frames.add(1, 0, flags=1),
    "AddBatch": lambda: frames.add_batch(1, 0, [frames.entry_bytes(0)], flags=1),
    "Read": lambda: frames.read(1, 0, flags=1, key=frames.KEY),
}
APACHE_KINDS: dict[str, Callable[[], bytes]] = {
    "READ_ENTRY": lambda: apache.v3_read(1, 0),
    "ADD_ENTRY": lambda: apache.v3_add(1, 0),
    "RANGE_READ_ENTRY": lambda: apache.v3(3, 1),
    "RANGE_ADD_ENTRY": lambda: apache.v3(4, 1),
    "AUTH": lambda: apache.v3_auth(1),
    "WRITE_LAC": lambda: apache.v3_write_lac(1, 0),
    "READ_LAC": lambda: apache.v3_read_lac(1),
    "GET_BOOKIE_INFO": lambda: apache.v3_info(1, 3),
    "START_TLS": lambda: apache.v3_start_tls(1),
    "FORCE_LEDGER": lambda: apache.v3_force(1),
    "GET_LIST_OF_ENTRIES_OF_LEDGER": lambda: apache.v3_list(1),
    "BATCH_READ_ENTRY": lambda: apache.v2_batch(1, 0, 5),
}
APACHE_TAKEOVERS: dict[str, Callable[[], bytes]] = {
    "ADD_ENTRY": lambda: apache.v3_add(1, 0, recovery=True),
    "READ_ENTRY": lambda: apache.v3_read(1, 0, flag=1, key=apache.KEY),
    "BATCH_READ_ENTRY": lambda: apache.v2_batch(1, 0, 5, flags=1, key=apache.KEY),
}
UNKNOWN = {"RANGE_READ_ENTRY", "RANGE_ADD_ENTRY"}
"""Operations that no bookie has: EBADREQ for everybody."""
ALONE = {"read": Right.READ, "add": Right.ADD, "recover": Right.RECOVER}
BITS = (NO_RIGHTS, Right.ENTER, *ALONE.values())


def documented(column: int) -> dict[str, set[str]]:
    """Return the kinds of requests by the right that the page says they need: 1 ours, 2 Apache's."""
    text = PAGE.read_text().partition("Each request to a bookie needs one right:")[2]
    rows = [line.split("|")[1:-1] for line in text.strip().split("\n\n")[0].splitlines()[2:]]
    return {cells[0].strip(): set(re.findall(r"`(\w+)`", cells[column])) for cells in rows}


def allowing(page: dict[str, set[str]], kind: str) -> set[Right]:
    """Return which of BITS, alone, allow a request that takes nothing over."""
    for name, right in ALONE.items():
        if kind in page[name] and name != "recover":
            return {right}
    return set(BITS) if kind in page["none"] | UNKNOWN else {Right.ENTER}


def test_the_page_names_each_kind_of_request() -> None:
    ours, apaches = documented(1), documented(2)
    known = {name for name in vars(RequestBody) if name[0].isalpha()} - {"NONE"}
    # what a write service gets, and no bookie
    assert set(KINDS) == known - {"OpenProducer", "Produce", "CloseProducer"}
    assert set().union(*ours.values()) == set(KINDS)
    assert set(APACHE_KINDS) == set(OPERATION)
    assert set().union(*apaches.values()) == set(OPERATION) - UNKNOWN
    assert ours["recover"] == set(TAKEOVERS)
    assert apaches["recover"] == set(APACHE_TAKEOVERS)


async def is_refused(bookie: Served, client: Client, right: Right, frame: bytes) -> bool:
    """Make a request with one right; return whether it is answered that this right is missing."""
    (slot,) = bookie.network.connections
    is_apache = bookie.worker.is_apache(slot)
    bookie.worker.admit(slot, right)
    client.send(frame)
    reply = asyncio.create_task(client.frame("big" if is_apache else "little"))
    harness = bookie.worker_harness
    await until(lambda: reply.done() or bool(harness.next() or harness.next_request()))
    if not reply.done():
        reply.cancel()
        return False
    if not is_apache:
        return answer_of(reply.result())[1] == FORBIDDEN
    body = reply.result()[4:]
    if body[0] == 2:
        return apache.v2_reply(body).error == V2_EUA
    return apache.v3_reply(body).status == EUA


PROTOCOLS = {"ours": (1, KINDS, TAKEOVERS), "Apache's": (2, APACHE_KINDS, APACHE_TAKEOVERS)}


@pytest.mark.parametrize("right", BITS, ids=repr)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_each_kind_needs_the_right_that_the_page_says(protocol: str, right: Right) -> None:
    """INV-N2: in both protocols, with one right alone."""
    column, makers, takeovers = PROTOCOLS[protocol]
    page = documented(column)
    async with one_client() as (_, bookie, client):
        if protocol == "ours":
            client.send(frames.hello())
            assert answer_of(await client.frame()) == (1, OK)
        else:
            client.send(apache.v3_info(1, 3))
            await client.frame("big")
        found, expected = {}, {}
        for kind, make in makers.items():
            found[kind] = await is_refused(bookie, client, right, make())
            expected[kind] = right not in allowing(page, kind)
        for kind, make in takeovers.items():
            found[f"{kind}, taking over"] = await is_refused(bookie, client, right, make())
            expected[f"{kind}, taking over"] = right is not Right.RECOVER
        assert found == expected
