"""Write services with real bookies: open, produce, fence; another one after a crash, a freeze and a planned stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fastbk
from fastbk.devcluster import DevTls
from fastbk.errors import Unauthorized
from fastbk.native.client_codec import PRODUCE_REPLY
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from fastbk.security.tokens import TokenKey
from fastbk.stream.services import read_services
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.pages import page_at
from tests.fixtures.wait import wait_until_async
from tests.fixtures.write_services import (
    ServiceProcess,
    hand_producer,
    refusal_of,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Bookies without a write service: each test has its own."""
    with LocalCluster(write_services=0) as running:
        yield running


@pytest.fixture
def services(
    cluster: LocalCluster, own_name: str, tmp_path: Path
) -> Iterator[list[ServiceProcess]]:
    names = (f"{own_name}-one"[-60:], f"{own_name}-two"[-60:])
    made = [ServiceProcess(tmp_path, cluster.metadata_uri, name) for name in names]
    yield made
    for service in made:
        service.kill()


async def make_stream(cluster: LocalCluster, name: str) -> str:
    async with fastbk.connect(cluster.metadata_uri) as client:
        namespace = client.namespace("shop")
        await namespace.create(exist_ok=True)
        await namespace.create_stream(name)
    return f"shop/{name}"


async def contents(cluster: LocalCluster, path: str, count: int) -> list[bytes]:
    """Return the first records, so many; and see that there are no more."""
    namespace, _, name = path.rpartition("/")
    found: list[bytes] = []
    async with fastbk.connect(cluster.metadata_uri) as client:
        stream = client.namespace(namespace).stream(name)
        async with stream.reader() as reader:
            while len(found) < count:
                chunk = await reader.read(timeout=20.0)
                assert chunk is not None, found
                found += [bytes(record.payload) for record in chunk]
            more = await reader.read(timeout=0.3)
    assert more is None
    return found


async def test_producers_open_append_and_fence(
    cluster: LocalCluster, services: list[ServiceProcess]
) -> None:
    path = await make_stream(cluster, "first")
    one, _ = services
    one.start()
    async with hand_producer(one) as hand, hand_producer(one) as other:
        first = await hand.open(path, b"till-1")
        assert (first.last_number, first.producer) == (-1, 1)
        second = await other.open(path, b"till-2")
        answers = await asyncio.gather(
            hand.produce(first.producer, [b"a0", b"a1"], 0),
            hand.produce(first.producer, [b"a2"], 2),
            other.produce(second.producer, [b"b0"], 5, follows=-1),
            other.produce(second.producer, [b"b1", b"b2"], 7, follows=5, numbers=[7, 10]),
        )
        assert [answer.status for answer in answers] == [Status.OK] * 4
        assert all(answer.kind == PRODUCE_REPLY and answer.segment for answer in answers)
        again = await hand.produce(first.producer, [b"a1", b"a2"], 1)
        assert (again.status, again.segment) == (Status.OK, 0)
        hole = await hand.produce(first.producer, [b"a9"], 9)
        assert hole.status == Status.NOT_NEXT
        reopened = await other.open(path, b"till-1")
        assert reopened.last_number == 2
        assert reopened.incarnation > first.incarnation
        fenced = await hand.produce(first.producer, [b"a3"], 3)
        assert fenced.status == Status.PRODUCER_FENCED
        assert (await other.close_producer(second.producer)).status == Status.OK
        gone = await other.produce(second.producer, [b"b3"], 11)
        assert gone.status == Status.BAD_REQUEST
    found = await contents(cluster, path, 6)
    assert [record for record in found if record[:1] == b"a"] == [b"a0", b"a1", b"a2"]
    assert [record for record in found if record[:1] == b"b"] == [b"b0", b"b1", b"b2"]


async def test_what_is_no_stream_of_producers_is_refused(
    cluster: LocalCluster, services: list[ServiceProcess]
) -> None:
    path = await make_stream(cluster, "written")
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        client.namespace("shop").stream("written").writer() as writer,
    ):
        await writer.append(b"x")
    services[0].start()
    async with hand_producer(services[0]) as hand:
        status, text = refusal_of(await hand.ask(path, b"till-1"))
        assert status == Status.WRONG_KIND
        assert "fastbk stream kind" in text
        assert refusal_of(await hand.ask("shop/none", b"t"))[0] == Status.NO_STREAM
        assert refusal_of(await hand.ask("none", b"t"))[0] in (Status.NO_STREAM, Status.BAD_REQUEST)
        assert refusal_of(await hand.ask(path, bytes(65)))[0] == Status.BAD_REQUEST


async def test_another_service_goes_on_after_a_crash(
    cluster: LocalCluster, services: list[ServiceProcess]
) -> None:
    path = await make_stream(cluster, "crashed")
    one, two = services
    one.start()
    two.start()
    async with hand_producer(one) as hand:
        opened = await hand.open(path, b"till-1")
        assert (await hand.produce(opened.producer, [b"0", b"1"], 0)).status == Status.OK
        async with hand_producer(two) as other:
            assert refusal_of(await other.ask(path, b"till-1")) == (Status.MOVED, one.address)
    one.kill()
    async with hand_producer(two) as hand:
        again = await hand.open(path, b"till-1", opened.incarnation)
        assert (again.incarnation, again.last_number) == (opened.incarnation, 1)
        repeat = await hand.produce(again.producer, [b"1", b"2"], 1)
        assert repeat.status == Status.OK and repeat.segment
    assert await contents(cluster, path, 3) == [b"0", b"1", b"2"]
    one.start()  # its former life's record is its own
    async with hand_producer(one) as hand:
        assert refusal_of(await hand.ask(path, b"till-1")) == (Status.MOVED, two.address)


async def test_another_service_goes_on_while_one_is_frozen(
    cluster: LocalCluster, services: list[ServiceProcess]
) -> None:
    path = await make_stream(cluster, "frozen")
    one, two = services
    one.start()
    two.start()
    async with hand_producer(one) as hand:
        opened = await hand.open(path, b"till-1")
        assert (await hand.produce(opened.producer, [b"0"], 0)).status == Status.OK
        one.freeze()
        try:
            async with hand_producer(two) as other:
                again = await other.open(path, b"till-1", opened.incarnation)
                answer = await other.produce(again.producer, [b"1"], 1)
                assert answer.status == Status.OK
        finally:
            one.thaw()
        late = await hand.produce(opened.producer, [b"late"], 1)
        assert late.status == Status.NOT_READY
        assert refusal_of(await hand.ask(path, b"till-1")) == (Status.MOVED, two.address)
    assert await contents(cluster, path, 2) == [b"0", b"1"]


async def test_a_planned_stop_hands_over(
    cluster: LocalCluster, services: list[ServiceProcess]
) -> None:
    path = await make_stream(cluster, "planned")
    one, two = services
    one.start()
    two.start()
    async with hand_producer(one) as hand:
        opened = await hand.open(path, b"till-1")
        assert (await hand.produce(opened.producer, [b"0"], 0)).status == Status.OK
        one.terminate()
        number, status, text = 1, Status.OK, ""
        while status == Status.OK:
            answer = await hand.produce(opened.producer, [b"%d" % number], number)
            status, text = refusal_of(answer)
            number += status == Status.OK
        assert (status, text) == (Status.MOVED, two.address), one.log
    assert await asyncio.to_thread(one.ended) == 0
    async with hand_producer(two) as other:
        again = await other.open(path, b"till-1", opened.incarnation)
        answer = await other.produce(again.producer, [b"%d" % number], number)
        assert answer.status == Status.OK
    everything = [b"%d" % i for i in range(number + 1)]
    assert await contents(cluster, path, len(everything)) == everything
    async with fastbk.connect(cluster.metadata_uri) as client:
        names = {found.service.service_id for found in await read_services(client.records)}
        assert two.name in names and one.name not in names


async def test_pages_have_its_figures(
    cluster: LocalCluster, services: list[ServiceProcess]
) -> None:
    path = await make_stream(cluster, "figures")
    one, _ = services
    one.start()
    async with hand_producer(one) as hand:
        opened = await hand.open(path, b"till-1")
        assert (await hand.produce(opened.producer, [b"0", b"1"], 0)).status == Status.OK
        _, text = page_at(one.http_port, "/metrics")
        lines = text.splitlines()
        for line in (
            "fastbk_serve_streams 1",
            "fastbk_serve_producers 1",
            "fastbk_serve_connections 1",
            "fastbk_serve_frames_total 1",
            "fastbk_serve_records_total 2",
            "fastbk_serve_takeovers_total 1",
            "fastbk_serve_append_seconds_count 1",
        ):
            assert line in lines
        assert page_at(one.http_port, "/livez")[0] == 200
        assert page_at(one.http_port, "/readyz")[0] == 200


async def test_a_token_without_add_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    """INV-S42, over TLS: who may only read, who is of another namespace, and who is revoked later."""
    path = await make_stream(cluster, "guarded")
    key = TokenKey.generate("k1")
    files = DevTls(tmp_path / "tls")
    (tmp_path / "keys.json").write_text(key.public_text())
    (tmp_path / "revoked").write_text("")
    service = ServiceProcess(
        tmp_path,
        cluster.metadata_uri,
        "guarded",
        f'[tls]\nmode = "require"\ncertificate_file = "{tmp_path}/tls/bookie/tls.crt"\n'
        f'key_file = "{tmp_path}/tls/bookie/tls.key"\n[authentication]\nmethods = ["token"]\n'
        f'token_keys_file = "{tmp_path}/keys.json"\nrevoked_file = "{tmp_path}/revoked"\n'
        'refresh_interval = "1s"',
    )
    async with fastbk.connect(cluster.metadata_uri) as client:
        audience = await client.call_store(lambda store: store.instance_id())

    def credentials(name: str, operation: str, namespace: str) -> Credentials:
        token = key.sign(name, [operation], audience, lifetime_s=600, namespaces=(namespace,))
        write_text(tmp_path / f"{name}.token", token)
        return Credentials(token_file=str(tmp_path / f"{name}.token"))

    tls = replace(files.options, certificate_file="", key_file="")
    service.start()
    try:
        with pytest.raises(Unauthorized, match="authenticated clients only"):
            async with hand_producer(service, tls=tls):
                pass
        for number, (operation, namespace) in enumerate((("read", "shop"), ("add", "bank"))):
            other = credentials(f"other-{number}", operation, namespace)
            async with hand_producer(service, tls=tls, credentials=other) as hand:
                status, text = refusal_of(await hand.ask(path, b"till-1"))
                assert status == Status.FORBIDDEN
                assert "needs the operation add" in text
        own = credentials("till", "add", "shop")
        async with hand_producer(service, tls=tls, credentials=own) as hand:
            opened = await hand.open(path, b"till-1")
            assert (await hand.produce(opened.producer, [b"0"], 0)).status == Status.OK
            async with (
                fastbk.connect(cluster.metadata_uri, tls=tls, credentials=own) as client,
                client.namespace("shop").stream("guarded").producer("till-2") as producer,
            ):
                await producer.append(b"1")
            (tmp_path / "revoked").write_text("token:till\n")
            await wait_until_async(lambda: not hand.connection.is_open, "the client is sent away")
        assert await contents(cluster, path, 2) == [b"0", b"1"]
        lines = service.audit_file.read_text()
        for event in ("client.refused", "request.denied", "client.authenticated", "client.ended"):
            assert f'"{event}"' in lines
    finally:
        service.kill()
