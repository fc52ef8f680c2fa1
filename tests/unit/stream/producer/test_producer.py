"""The producer against services that answer, refuse, move, lose answers, freeze and come back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import chain as chained

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import fastbk
from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import (
    AppendUnknown,
    BufferFull,
    ClientClosed,
    ConfigError,
    NoWriteService,
    ProducerExpired,
    ProducerFenced,
    QuorumTimeout,
    QuotaExceeded,
    RecordTooLarge,
    StreamNotFound,
    StreamSealed,
    Unauthorized,
    WriterFailed,
    WrongStreamKind,
    WrongType,
)
from fastbk.stream.positions import DLSN
from fastbk.stream.producer import service_links
from fastbk.stream.producer.producer import Producer
from fastbk.stream.services import VersionedService, ranked, read_services
from fastbk.wire.statuses import Status
from tests.fixtures.fake_service import FakeService, FakeStream, fake_services
from tests.fixtures.wait import wait_until_async


def producer_of(client: fastbk.Client, name: str | None = "till-1", **options: int) -> Producer:
    return client.namespace("shop").stream("orders").producer(name, **options)  # type: ignore[arg-type]


def stored(stream: FakeStream, name: str = "till-1") -> list[int]:
    return [number for number, _ in stream.records(name)]


def in_order(fakes: list[FakeService]) -> list[FakeService]:
    """Return the services as a producer asks them."""
    order = ranked("shop/orders", [fake.record for fake in fakes])
    return [next(fake for fake in fakes if fake.bookie_id == one.service_id) for one in order]


async def test_records_are_numbered_packed_and_placed() -> None:
    async with fake_services() as (client, (service,), stream, _):
        async with producer_of(client) as producer:
            assert producer.last_number == -1
            futures = [producer.append_nowait(b"%d" % number) for number in range(5)]
            assert await futures[4] == DLSN(1, 0, 4)
            assert await futures[0] == DLSN(1, 0, 0)
            assert len(stream.log) == 1, "what one turn appends goes together"
            assert producer.last_number == 4
            assert await producer.append(b"x", number=9, key=b"k", headers={"a": b"b"}) == DLSN(
                1, 1, 0
            )
            assert await producer.append_batch([b"y", b"z"], numbers=[20, 30]) == DLSN(1, 2, 0)
            assert await producer.append_many([b"p", b"q"], numbers=[31, 33]) == (
                DLSN(1, 3, 0),
                DLSN(1, 3, 1),
            )
            assert await producer.flush() == producer.last_dlsn == DLSN(1, 3, 1)
            stats = producer.stats()
            assert (stats.records, stats.bytes, stats.bytes_in_flight) == (10, 5 + 2 + 8 + 2 + 2, 0)
        await wait_until_async(lambda: service.closed == 1, "the producer is closed there")
        assert stored(stream) == [0, 1, 2, 3, 4, 9, 20, 30, 31, 33]
        assert [payload for _, payload in stream.records("till-1")][:6] == [
            b"0", b"1", b"2", b"3", b"4", b"x",
        ]  # fmt: skip


async def test_a_name_goes_on_behind_its_last_number() -> None:
    async with fake_services() as (client, _, stream, _):
        async with producer_of(client) as producer:
            await producer.append(b"", number=41)
        async with producer_of(client) as producer:
            assert producer.last_number == 41
            with pytest.raises(ConfigError, match="last_number"):
                producer.append_nowait(b"", number=41)
            await producer.append(b"")
        assert stored(stream) == [41, 42]


async def test_producers_of_one_client_share_a_connection_and_fence_nobody() -> None:
    async with fake_services() as (client, (service,), stream, _):
        one, other = producer_of(client, None), producer_of(client, None)
        assert one.name != other.name and one.name.startswith("~")
        async with one, other:
            await asyncio.gather(
                *(producer.append(b"") for producer in chained(*[(one, other)] * 20))
            )
        assert stored(stream, one.name) == stored(stream, other.name) == list(range(20))
        assert service.connections == 1


async def test_many_producers_that_lose_their_owner_look_for_it_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    async def counted(records: RecordCalls) -> list[VersionedService]:
        nonlocal looks
        looks += 1
        return await read_services(records)

    monkeypatch.setattr(service_links, "read_services", counted)
    async with fake_services() as (client, (service,), stream, _), AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(producer_of(client, f"till-{number}"))
            for number in range(100)
        ]
        before = looks
        service.cut()
        await asyncio.gather(*(producer.append(b"") for producer in producers))
        assert len(stream.log) == 100
        assert looks <= before + 3


async def test_the_second_opening_of_a_name_fences_the_first() -> None:
    async with fake_services() as (client, _, stream, _):
        async with producer_of(client) as first:
            await first.append(b"")
            async with producer_of(client) as second:
                assert second.last_number == 0
                with pytest.raises(ProducerFenced) as told:
                    await first.append(b"")
                assert told.value.outcome == "unknown"
                with pytest.raises(ProducerFenced) as told:
                    first.append_nowait(b"")
                assert told.value.outcome == "not_written"
                await second.append(b"")
        assert stored(stream) == [0, 1]


async def test_an_opening_that_nobody_waits_for_is_closed_again() -> None:
    """A service has a bound of producers for each connection: those that time out would fill it."""
    async with fake_services() as (client, (service,), _, _):
        service.held = asyncio.Event()
        opening = asyncio.ensure_future(producer_of(client).open())
        await wait_until_async(lambda: len(service.asked) == 1, "it is asked")
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        service.held.set()
        await wait_until_async(lambda: service.closed == 1, "the producer is closed there")


async def test_a_name_that_was_forgotten_ends_its_producer() -> None:
    async with fake_services() as (client, _, stream, _):
        producer = producer_of(client)
        await producer.open()
        stream.table.rows.clear()
        with pytest.raises(ProducerExpired):
            await producer.append(b"")
        with pytest.raises(ProducerExpired):
            await producer.close()


async def test_an_answer_that_is_lost_with_its_connection_is_asked_for_again() -> None:
    """What was stored is not stored again; nobody knows where it is."""
    async with fake_services() as (client, (service,), stream, _):
        async with producer_of(client) as producer:
            assert await producer.append(b"") == DLSN(1, 0, 0)
            service.loses_answers = True
            lost = [producer.append_nowait(b"") for _ in range(3)]
            await wait_until_async(lambda: len(stream.log) == 2, "it is stored")
            service.loses_answers = False
            service.cut()
            assert await asyncio.gather(*lost) == [None, None, None]
            assert await producer.append(b"") == DLSN(1, 2, 0)
            assert producer.stats().frames_resent == 1
            assert producer.stats().owner_changes == 1
        assert stored(stream) == [0, 1, 2, 3, 4]
        assert [opening.incarnation != 0 for opening in service.asked] == [False, True]


@pytest.mark.parametrize("refusal", [Status.NOT_NEXT, Status.NOT_READY])
async def test_what_is_refused_is_sent_again_with_all_behind_it(refusal: Status) -> None:
    async with fake_services() as (client, (service,), stream, _):
        async with producer_of(client, batch_bytes=1) as producer:
            service.refusals.extend([None, (refusal, "")])
            futures = [producer.append_nowait(b"") for _ in range(5)]
            await asyncio.gather(*futures)
        assert stored(stream) == [0, 1, 2, 3, 4]


async def test_a_producer_follows_the_owner() -> None:
    async with fake_services(3) as (client, fakes, stream, _):
        first, second, third = in_order(fakes)
        async with producer_of(client) as producer:
            await producer.append(b"")
            assert stream.owner is first
            # A planned stop: it has handed the stream over, and says so.
            stream.take_over(third)
            first.refusals.append((Status.MOVED, third.address))
            assert await producer.append(b"") == DLSN(2, 1, 0)
            assert not second.asked
            # A killed service: the first one is asked, and says who has it, until it has it.
            await third.stop()
            assert await producer.append(b"") == DLSN(3, 2, 0)
            assert stream.owner is first
        assert stored(stream) == [0, 1, 2]


async def test_a_service_that_takes_connections_and_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked whether it lives, and then another one is."""
    monkeypatch.setattr(service_links, "PING_S", 0.05)
    monkeypatch.setattr(service_links, "SILENT_S", 0.15)
    async with fake_services(2, probe_timeout=0.2) as (client, fakes, stream, _):
        first, second = in_order(fakes)
        async with producer_of(client) as producer:
            await producer.append(b"")
            first.faults.silent = True
            appending = producer.append_nowait(b"")
            await wait_until_async(
                lambda: first.requests == 0 and second.asked, "it asks the other"
            )
            stream.owner = None  # the other finds that its beat stands still
            await appending
            assert stream.owner is second
        first.faults.silent = False
        assert stored(stream) == [0, 1]


async def test_without_a_service_it_says_what_to_start() -> None:
    async with fake_services(0, append_timeout=0.2) as (client, _, _, _):
        with pytest.raises(NoWriteService, match="fastbk serve"):
            await producer_of(client).open()


async def test_a_producer_waits_for_a_service_that_starts() -> None:
    async with fake_services(0) as (client, _, stream, store):
        service = FakeService("late", stream)
        opening = asyncio.ensure_future(producer_of(client).open())
        try:
            await asyncio.sleep(0)
            await service.start()
            service.register_service(store)
            await opening
        finally:
            await client.close()
            await service.stop()


async def test_a_namespace_that_is_full_ends_a_producer_as_it_ends_a_writer() -> None:
    async with fake_services() as (client, (service,), _, _):
        producer = producer_of(client)
        await producer.open()
        await producer.append(b"")
        service.opening = Status.OVER_QUOTA, "namespace shop has 2 MiB of 1 MiB"
        service.refusals.append((Status.NOT_READY, ""))
        with pytest.raises(QuotaExceeded, match="2 MiB of 1 MiB") as told:
            await producer.append(b"")
        assert told.value.outcome == "unknown"


async def test_a_service_that_is_not_ready_in_time_says_why() -> None:
    async with fake_services(append_timeout=0.2) as (client, (service,), _, _):
        service.opening = Status.NOT_READY, "there are 2 bookies, and 3 are needed"
        with pytest.raises(NoWriteService, match="2 bookies"):
            await producer_of(client).open()


async def test_what_a_service_refuses_for_good_is_said_at_once() -> None:
    async with fake_services() as (client, (service,), _, _):
        service.opening = Status.WRONG_KIND, "shop/orders has a writer: fastbk stream kind"
        with pytest.raises(WrongStreamKind, match="fastbk stream kind"):
            await producer_of(client).open()
        service.opening = Status.OVER_QUOTA, "namespace shop has 2 MiB of 1 MiB"
        with pytest.raises(QuotaExceeded, match="2 MiB of 1 MiB"):
            await producer_of(client).open()
        service.opening = Status.SEALED, "shop/orders has ended"
        with pytest.raises(StreamSealed, match="shop/orders has ended"):
            await producer_of(client).open()
        service.opening = Status.NO_STREAM, ""
        with pytest.raises(StreamNotFound):
            await producer_of(client).open()
        with pytest.raises(StreamNotFound):
            await client.namespace("shop").stream("other").producer().open()
        service.opening = None
        made = client.namespace("shop").stream("other").producer(create=True)
        async with made:
            await made.append(b"")


async def test_an_append_that_is_not_acknowledged_in_time_ends_the_producer() -> None:
    async with fake_services(append_timeout=0.3) as (client, (service,), stream, _):
        producer = producer_of(client, batch_bytes=1)
        await producer.open()
        service.opening = Status.NOT_READY, "its disk is asleep"
        await producer.append(b"")
        service.refusals.append((Status.NOT_READY, ""))
        sent = producer.append_nowait(b"")
        with pytest.raises(AppendUnknown, match=r"asleep.*last_number"):
            await sent
        with pytest.raises(WriterFailed, match="asleep") as told:
            await producer.append(b"")
        assert told.value.outcome == "not_written"
        with pytest.raises(WriterFailed):
            await producer.close()
        assert stored(stream) == [0]


async def test_a_token_that_has_ended_is_waited_for() -> None:
    """It was good when the producer was opened: the application has a new one in a moment."""
    async with fake_services() as (client, (service,), stream, _):
        async with producer_of(client) as producer:
            service.opening = Status.FORBIDDEN, "the token has ended"
            service.cut()
            appending = producer.append_nowait(b"")
            asked = len(service.asked)
            await wait_until_async(lambda: len(service.asked) > asked + 1, "it is refused")
            service.opening = None
            await appending
        assert stored(stream) == [0]
        service.opening = Status.FORBIDDEN, "no right to add"
        with pytest.raises(Unauthorized, match="no right to add"):
            await producer_of(client).open()


async def test_a_caller_may_stop_waiting() -> None:
    """QuorumTimeout of one call, or a cancelled one: the record is stored all the same, in its place."""
    async with fake_services() as (client, (service,), stream, _):
        async with producer_of(client) as producer:
            service.faults.silent = True
            with pytest.raises(QuorumTimeout):
                await producer.append(b"", timeout=0.01)
            waiting = asyncio.ensure_future(producer.append(b""))
            await asyncio.sleep(0)
            waiting.cancel()
            service.faults.silent = False
            service.cut()
            await producer.append(b"")
        assert stored(stream) == [0, 1, 2]


async def test_back_pressure_reaches_the_application() -> None:
    async with fake_services() as (client, (service,), stream, _):
        async with producer_of(client, unacked_bytes_max=1000) as producer:
            service.faults.silent = True
            with pytest.raises(BufferFull):
                for _ in range(100):
                    producer.append_nowait(bytes(100))
            taken = producer.stats().appends_in_flight
            assert producer.unacked_bytes <= 2000
            waiting = asyncio.ensure_future(producer.ready())
            await asyncio.sleep(0)
            assert not waiting.done()
            with pytest.raises(RecordTooLarge):
                producer.append_nowait(bytes(70_000))
            service.faults.silent = False
            service.cut()
            await waiting
            await producer.append_many([bytes(100)] * 50)
        assert stored(stream) == list(range(taken + 50))


async def test_names() -> None:
    async with fake_services() as (client, _, _, _):
        for wrong in ("", "é" * 33, "a\nb", "~x", "\ud800"):
            with pytest.raises(ConfigError):
                producer_of(client, wrong)
        with pytest.raises(WrongType):
            producer_of(client, b"x")  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            producer_of(client, linger=3)
        async with producer_of(client, "é" * 32) as producer:
            await producer.append(b"")


async def test_the_end_of_a_block() -> None:
    async with fake_services() as (client, (service,), stream, _):
        with pytest.raises(ZeroDivisionError):
            async with producer_of(client) as producer:
                service.faults.silent = True
                future = producer.append_nowait(b"")
                raise ZeroDivisionError
        with pytest.raises(WriterFailed, match="aborted"):
            future.result()
        with pytest.raises(ClientClosed):
            await producer_of(client).append(b"")
        service.faults.silent = False
        service.cut()
        producer = producer_of(client)
        await producer.open()
        await producer.append(b"")
        await client.close()
        with pytest.raises(ClientClosed):
            producer.append_nowait(b"")
        assert stored(stream) == [0]


async def test_traced_appends_have_spans() -> None:
    """Also where nobody knows the place."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = fastbk.Tracing(ratio=1.0, tracer_provider=provider)
    async with fake_services(tracing=tracing) as (client, (service,), stream, _):
        async with producer_of(client) as producer:
            assert await producer.append(b"x") == DLSN(1, 0, 0)
            service.loses_answers = True
            lost = producer.append_batch_nowait([b"y", b"z"])
            await wait_until_async(lambda: len(stream.log) == 2, "it is stored")
            service.loses_answers = False
            service.cut()
            assert await lost is None
        spans = [span for span in exporter.get_finished_spans() if span.name == "send shop/orders"]
    known, unknown = (span.attributes or {} for span in spans)
    assert (known["fastbk.segment"], known["fastbk.entry.id"], known["fastbk.slot"]) == (1, 0, 0)
    assert unknown["messaging.batch.message_count"] == 2 and "fastbk.segment" not in unknown
    assert all(span.status.is_ok or span.status.is_unset for span in spans)
