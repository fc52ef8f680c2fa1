"""What OpenTelemetry's own SDK gets of the figures of writers and readers."""

from __future__ import annotations

import gc
import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import fastbk
from fastbk.observe import meter as module
from fastbk.observe.meter import INSTRUMENTS, SENT, Figures, Meter, meter_of, receiving, sending
from tests.fixtures.metrics import collected

PENDING, P99 = "fastbk.client.send.pending", "fastbk.client.send.duration.p99"


class Writer:
    def __init__(self, **figures: float) -> None:
        self.sent, self.pending, self.p99_s = 0.0, 0.0, 0.0
        self.broken = False

    def figures(self) -> Figures:
        if self.broken:
            raise RuntimeError("dictionary changed size during iteration")
        return {SENT: self.sent, PENDING: self.pending, P99: self.p99_s}


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def meter(reader: InMemoryMetricReader) -> Meter:
    return Meter(fastbk.Tracing(meter_provider=MeterProvider([reader], shutdown_on_exit=False)))


def test_counters_go_on_behind_what_was_closed(meter: Meter, reader: InMemoryMetricReader) -> None:
    first, second, other = Writer(), Writer(), Writer()
    sources = [
        meter.add(sending(name), one.figures)
        for name, one in (("a", first), ("a", second), ("b", other))
    ]
    first.sent, second.sent, other.sent = 5, 7, 1
    first.pending, second.pending, first.p99_s, second.p99_s = 2, 3, 0.5, 0.25
    found = collected(reader)
    assert found[SENT, "a"] == 12 and found[SENT, "b"] == 1
    assert found[PENDING, "a"] == 5 and found[P99, "a"] == 0.5
    first.sent = 9
    sources[0].close()
    sources[0].close()
    first.sent = 100  # nobody asks it any more
    found = collected(reader)
    assert found[SENT, "a"] == 16
    assert found[PENDING, "a"] == 3 and found[P99, "a"] == 0.25
    sources[1].close()
    assert collected(reader)[SENT, "a"] == 16
    again = Writer()
    meter.add(sending("a"), again.figures)
    again.sent = 1
    assert collected(reader)[SENT, "a"] == 17


def test_what_is_forgotten_is_let_go_of(meter: Meter, reader: InMemoryMetricReader) -> None:
    forgotten = Writer()
    meter.add(sending("a"), forgotten.figures)
    forgotten.sent = 4
    assert collected(reader)[SENT, "a"] == 4
    del forgotten
    gc.collect()
    assert collected(reader)[SENT, "a"] == 4
    assert not meter._sources


def test_one_that_cannot_be_read_now_hides_nothing_of_the_others(
    meter: Meter, reader: InMemoryMetricReader
) -> None:
    broken, whole = Writer(), Writer()
    for one in (broken, whole):
        meter.add(sending("a"), one.figures)
        one.sent = 3
    broken.broken = True
    assert collected(reader)[SENT, "a"] == 3
    broken.broken = False
    assert collected(reader)[SENT, "a"] == 6


def test_series_are_bounded(
    meter: Meter, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    writers = [Writer() for _ in range(10)]
    for at, one in enumerate(writers):
        meter.add(sending(f"s{at}"), one.figures)
        one.sent = 1
    found = collected(reader)
    assert {name for instrument, name in found if instrument == SENT} == {"s0", "s1", "s2", ""}
    assert found[SENT, ""] == 7


def test_threads_may_come_and_go_while_it_is_collected(
    meter: Meter, reader: InMemoryMetricReader
) -> None:
    begin = threading.Barrier(5)

    def append() -> None:
        begin.wait()
        for _ in range(200):
            one = Writer()
            source = meter.add(sending("a"), one.figures)
            one.sent = 1
            source.close()

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    begin.wait()
    before = 0.0
    while any(thread.is_alive() for thread in threads):
        now = collected(reader).get((SENT, "a"), 0.0)
        assert now >= before
        before = now
    for thread in threads:
        thread.join()
    assert collected(reader)[SENT, "a"] == 800


def test_without_tracing_there_is_no_meter() -> None:
    assert meter_of(None) is None


def test_attributes_are_those_of_the_messaging_conventions() -> None:
    assert receiving("shop/a", "billing") == {
        "messaging.system": "fastbk",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "shop/a",
        "messaging.consumer.group.name": "billing",
    }
    assert "messaging.destination.name" not in sending()
    assert all(one.unit and one.description for one in INSTRUMENTS.values())
