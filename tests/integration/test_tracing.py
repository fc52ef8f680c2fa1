"""Spans of appends, of the copies that bookies are sent, and of records that readers get; OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Span, StatusCode

import fastbk
import fastbk.sync
from fastbk.client.add_pipe import TRACED_MAX
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until, wait_until_async

QUICK = {"bookie_timeout": 0.3, "replace_after": 0.3}
TO_LEDGER, TO_BOOKIE = "append to ledger", "add to bookie"


@dataclass
class Traces:
    """An application's SDK, whose spans stay in memory."""

    exporter: InMemorySpanExporter
    provider: TracerProvider

    def options(self, ratio: float = 0.0) -> fastbk.Tracing:
        return fastbk.Tracing(ratio=ratio, tracer_provider=self.provider)

    def span(self, name: str) -> Iterator[Span]:
        return self.provider.get_tracer("application").start_as_current_span(name)  # type: ignore[return-value]

    def find(self, name: str, parent: ReadableSpan | None = None) -> list[ReadableSpan]:
        return [
            one
            for one in self.exporter.get_finished_spans()
            if one.name == name
            and (
                parent is None
                or (one.parent is not None and one.parent.span_id == parent.context.span_id)
            )
        ]

    def one(self, name: str, parent: ReadableSpan | None = None) -> ReadableSpan:
        (found,) = self.find(name, parent)
        return found


@pytest.fixture
def traces() -> Traces:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Traces(exporter, provider)


@pytest.fixture(scope="module")
def four() -> Iterator[LocalCluster]:
    """Four bookies, to freeze."""
    with LocalCluster(4) as made:
        yield made


@pytest.fixture(scope="module")
def single() -> Iterator[LocalCluster]:
    """One bookie, to freeze."""
    with LocalCluster(1) as made:
        yield made


async def test_an_append_in_a_span_has_one_and_so_has_each_copy(
    cluster: LocalCluster, traces: Traces
) -> None:
    async with (
        fastbk.connect(cluster.metadata_uri, tracing=traces.options()) as client,
        await client.create_ledger(3, 3, 2) as writer,
    ):
        await writer.append(b"outside of any span")
        with traces.span("order"):
            entry_id = await writer.append(b"twelve bytes")
            await writer.append_many([b"three", b"more", b"entries"])
        order = traces.one("order")
        one, many = traces.find(TO_LEDGER)
        assert one.parent.span_id == many.parent.span_id == order.context.span_id
        assert one.attributes == {
            "fastbk.ledger.id": writer.ledger_id,
            "fastbk.entry.id": entry_id,
            "fastbk.entry.count": 1,
            "fastbk.entry.bytes": 12,
        }
        assert many.attributes["fastbk.entry.count"] == 3
        for span in (one, many):
            # The third copy may end after the acknowledgement.
            await wait_until_async(
                lambda span=span: len(traces.find(TO_BOOKIE, span)) == 3, "three copies have ended"
            )
            copies = traces.find(TO_BOOKIE, span)
            assert {copy.attributes["fastbk.bookie.id"] for copy in copies} == {
                "bookie-1",
                "bookie-2",
                "bookie-3",
            }
            answered = sorted(copy.end_time for copy in copies)
            assert answered[1] <= span.end_time, "the ack comes with the second copy"
            assert not [copy for copy in copies if copy.status.status_code is StatusCode.ERROR]
            assert span.start_time <= min(copy.start_time for copy in copies)


async def test_what_an_append_waited_for_is_in_its_span(four: LocalCluster, traces: Traces) -> None:
    async with fastbk.connect(four.metadata_uri, tracing=traces.options(), **QUICK) as client:
        writer = await client.create_ledger(3, 3, 3)
        bookie_id = writer.metadata.fragments[0].ensemble[0]
        async with four.frozen(int(bookie_id.removeprefix("bookie-")) - 1):
            with traces.span("order"):
                await writer.append(b"waits for another bookie")
        await writer.close()
    appended = traces.one(TO_LEDGER)
    (event,) = [event for event in appended.events if event.name == "ensemble changed"]
    assert event.attributes["fastbk.bookie.id"] == bookie_id
    copies = {
        copy.attributes["fastbk.bookie.id"]: copy for copy in traces.find(TO_BOOKIE, appended)
    }
    assert len(copies) == 4
    assert copies[bookie_id].status.status_code is StatusCode.ERROR
    assert copies[bookie_id].status.description.startswith("replaced: ")
    replacement = copies[event.attributes["fastbk.replacement.id"]]
    assert replacement.start_time >= event.timestamp
    assert replacement.status.status_code is StatusCode.UNSET
    assert appended.status.status_code is StatusCode.UNSET


async def test_an_append_that_fails_ends_its_spans_with_the_reason(
    single: LocalCluster, traces: Traces
) -> None:
    async with fastbk.connect(
        single.metadata_uri, tracing=traces.options(), append_timeout=0.5, bookie_timeout=0.2
    ) as client:
        writer = await client.create_ledger(1, 1, 1)
        await writer.append(b"connected")
        async with single.frozen(0):
            with traces.span("order"), pytest.raises(fastbk.Error):
                await writer.append(b"nobody answers")
        with pytest.raises(fastbk.Error):
            await writer.close()
    appended = traces.one(TO_LEDGER)
    assert appended.status.status_code is StatusCode.ERROR
    assert appended.status.description.startswith("NotEnoughBookies: ")
    assert traces.one(TO_BOOKIE, appended).status.status_code is StatusCode.ERROR


async def test_a_share_of_appends_begins_traces_and_the_applications_sampler_decides(
    cluster: LocalCluster, traces: Traces
) -> None:
    async def spans_of(tracing: fastbk.Tracing) -> int:
        before = len(traces.find(TO_LEDGER))
        async with (
            fastbk.connect(cluster.metadata_uri, tracing=tracing) as client,
            await client.create_ledger(1, 1, 1) as writer,
        ):
            for _ in range(300):
                await writer.append(b"x")
        return len(traces.find(TO_LEDGER)) - before

    assert await spans_of(traces.options(1.0)) == 300
    # each outside with a probability below 1e-40
    assert 0 < await spans_of(traces.options(0.3)) < 200
    assert await spans_of(traces.options(0.0)) == 0
    off = fastbk.Tracing(
        ratio=1.0, tracer_provider=TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    )
    assert await spans_of(off) == 0


async def test_traced_appends_in_flight_are_bounded(single: LocalCluster, traces: Traces) -> None:
    async with fastbk.connect(single.metadata_uri, tracing=traces.options(1.0)) as client:
        writer = await client.create_ledger(1, 1, 1)
        await writer.append(b"connected")
        async with single.frozen(0):
            waiting = [writer.append_nowait(b"x") for _ in range(3 * TRACED_MAX)]
        await asyncio.gather(*waiting)
        await writer.append(b"traced again")
        await writer.close()
    assert len(traces.find(TO_LEDGER)) == 1 + TRACED_MAX + 1


async def test_a_records_header_leads_its_readers_to_its_append(
    cluster: LocalCluster, traces: Traces, own_name: str
) -> None:
    async with fastbk.connect(cluster.metadata_uri, tracing=traces.options()) as client:
        namespace = client.namespace(own_name)
        await namespace.create(exist_ok=True)
        stream = namespace.stream("traced")
        async with stream.writer(create=True) as writer:
            await writer.append(b"not traced")
            with traces.span("order"):
                both = [
                    writer.append_nowait(b"a", headers=[("own", b"header")]),
                    writer.append_nowait(b"b", key=b"k"),
                ]
                positions = await asyncio.gather(*both)
            with traces.span("batch"):
                await writer.append_batch([b"c", b"d"], headers=[(), [("own", b"header")]])
            with traces.span("given"):
                await writer.append(b"e", headers=[("traceparent", b"00-of-another-system-01")])
        sent = traces.find(f"send {stream.path}", traces.one("order"))
        assert [tuple(span.attributes[f"fastbk.{name}"] for name in ("segment", "entry.id", "slot"))
                for span in sent] == [tuple(position) for position in positions]  # fmt: skip
        first, second = sorted(sent, key=lambda span: int(span.attributes["fastbk.slot"]))
        assert traces.one(TO_LEDGER, first), "one entry holds both"
        assert not traces.find(TO_LEDGER, second)
        assert [link.context.span_id for link in second.links] == [first.context.span_id]
        assert len(traces.find(TO_LEDGER)) == 3, "segment indexes and other records have none"

        async with stream.reader(tail=False) as reader:
            found = [record async for record in reader]
        assert [bytes(record.payload) for record in found] == [
            b"not traced",
            b"a",
            b"b",
            b"c",
            b"d",
            b"e",
        ]
        assert [name for name, _ in found[1].headers] == ["own", "traceparent"]
        batch = traces.one(f"send {stream.path}", traces.one("batch"))
        received = traces.find(f"receive {stream.path}")
        assert [span.links[0].context.span_id for span in received] == [
            one.context.span_id for one in (first, second, batch)
        ]
        assert all(span.attributes["fastbk.record.age_ms"] >= 0 for span in received)
        (link,) = fastbk.links_of(found[1].headers)
        assert link.context.span_id == first.context.span_id
        assert not fastbk.links_of(found[0].headers)
        assert not fastbk.links_of(found[5].headers), (
            "the application's header stays, and makes no sense"
        )

        traces.exporter.clear()
        async with stream.reader(tail=False) as reader:
            async for chunk in reader.chunks(2):
                assert len(chunk) <= 2
        async with stream.cursor("once") as cursor:
            for _ in found:
                cursor.ack(await anext(aiter(cursor)))
        assert len(traces.find(f"receive {stream.path}")) == 2 * 3, "by chunks and by a cursor, too"


async def test_a_record_that_only_its_trace_makes_too_large_is_kept_without(
    cluster: LocalCluster, traces: Traces, own_name: str
) -> None:
    async with fastbk.connect(cluster.metadata_uri, tracing=traces.options()) as client:
        namespace = client.namespace(own_name)
        await namespace.create(exist_ok=True)
        stream = namespace.stream("large")
        async with stream.writer(create=True, entry_bytes_max=10_000) as writer:

            def fits(size: int) -> bool:
                try:
                    writer.append_nowait(b"x" * size)
                except fastbk.RecordTooLarge:
                    return False
                return True

            largest = max(filter(fits, range(9_800, 10_001)))
            with traces.span("order"):
                await writer.append(b"x" * largest)
                with pytest.raises(fastbk.RecordTooLarge):
                    await writer.append(b"x" * (largest + 1))
        kept, refused = traces.find(f"send {stream.path}")
        statuses = {one.status.status_code for one in (kept, refused)}
        assert statuses == {StatusCode.UNSET, StatusCode.ERROR}
        last = await stream.last_position()
        assert last is not None
        assert (await stream.get(last.dlsn)).headers == ()


def test_appends_without_await_are_in_the_span_of_their_thread(
    cluster: LocalCluster, traces: Traces, own_name: str
) -> None:
    with (
        traces.span("connect"),
        fastbk.sync.connect(cluster.metadata_uri, tracing=traces.options()) as client,
    ):
        writer = client.create_ledger(1, 1, 1)
        namespace = client.namespace(own_name)
        namespace.create(exist_ok=True)
        with namespace.stream("sync").writer(create=True) as records:
            with traces.span("one"):
                waiting = [writer.append_nowait(b"1"), records.append_nowait(b"1")]
            with traces.span("two"):
                waiting += [writer.append_nowait(b"2"), records.append_nowait(b"2")]
                waiting.append(records.append_batch_nowait([b"3", b"4"]))
            for one in waiting:
                one.result()
        writer.close()
    send = f"send {own_name}/sync"
    for name, count in (("one", 1), ("two", 2)):
        wait_until(
            lambda name=name, count=count: len(traces.find(send, traces.one(name))) == count,
            "records' spans",
        )
        assert (
            traces.one(TO_LEDGER, traces.one(name)).attributes["fastbk.ledger.id"]
            == writer.ledger_id
        )


async def test_a_closed_writer_leaves_no_span_open(four: LocalCluster, traces: Traces) -> None:
    async with fastbk.connect(
        four.metadata_uri, tracing=traces.options(1.0), laggard_wait=0.1
    ) as client:
        writer = await client.create_ledger(3, 3, 2)
        late = writer.metadata.fragments[0].ensemble[2]
        await writer.append(b"connected")
        await wait_until_async(lambda: len(traces.find(TO_BOOKIE)) == 3, "all have it")
        async with four.frozen(int(late.removeprefix("bookie-")) - 1):
            await writer.append(b"two have it")
            await writer.close()
    appended = traces.find(TO_LEDGER)[1]
    copies = {
        copy.attributes["fastbk.bookie.id"]: copy.status
        for copy in traces.find(TO_BOOKIE, appended)
    }
    assert copies[late].status_code is StatusCode.ERROR
    assert copies[late].description == "not answered before the writer ended"
