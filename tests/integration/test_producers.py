"""Producers of several processes through real write services, as applications use them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

import fastbk.sync
from fastbk.errors import ProducerFenced
from fastbk.stream.services import service_of_owner
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace

PROGRAM = """
import sys
import fastbk.sync

uri, till, end = sys.argv[1], sys.argv[2], int(sys.argv[3])
with fastbk.sync.connect(uri, append_timeout=60.0) as client:
    shop = client.namespace("shop")
    shop.create(exist_ok=True)
    shop.create_stream("orders", exist_ok=True)
    with shop.stream("orders").producer(f"till-{till}") as producer:      # each process its own name, or none
        for number in range(producer.last_number + 1, end):
            producer.ready()
            producer.append_nowait(b"%s %d" % (till.encode(), number), key=b"k", number=number)
        producer.flush()
"""
ENDLESS = """
import sys
import threading
import fastbk.sync

uri, till = sys.argv[1:]
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
with fastbk.sync.connect(uri, append_timeout=60.0) as client:
    stream = client.namespace("shop").stream("orders")
    with stream.producer(f"till-{till}", create=True) as producer:
        first = producer.last_number + 1
        while not ended.is_set():
            numbers = range(first, first + 10)
            producer.append_many([b"%s %d" % (till.encode(), n) for n in numbers], numbers=numbers, timeout=60)
            first += 10
print(first)
"""
"""Appends until its stdin ends, and says how many records the stream has of it then."""


@contextmanager
def running(code: str, cluster: LocalCluster, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a process of its own, to its end unless the block ends it."""
    command = [sys.executable, "-c", code, cluster.metadata_uri, *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(*processes: subprocess.Popen[str]) -> list[int]:
    """Have endless programs come to an end; return what they say."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    said = [int(process.stdout.read()) for process in processes if process.stdout is not None]
    assert [process.wait(60) for process in processes] == [0] * len(processes)
    return said


def orders(cluster: LocalCluster, **options: object) -> dict[int, list[int]]:
    """Return the numbers of each till in the order of the stream."""
    numbers: dict[int, list[int]] = defaultdict(list)
    with (
        fastbk.sync.connect(cluster.metadata_uri, **options) as client,  # type: ignore[arg-type]
        client.namespace("shop").stream("orders").reader(tail=False) as reader,
    ):
        for record in reader:
            till, number = bytes(record.payload).split()
            numbers[int(till)].append(int(number))
    return numbers


def owner_of(cluster: LocalCluster) -> int:
    """Return the number of the service that owns the stream; -1: none does."""
    names = [service.name for service in cluster.write_services]
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        stream = client.namespace("shop").stream("orders")
        if not stream.exists():
            return -1
        service = service_of_owner(stream.info().owner)
        return -1 if service is None else names.index(service.service_id)


def count(cluster: LocalCluster) -> int:
    return 0 if owner_of(cluster) < 0 else sum(map(len, orders(cluster).values()))


def test_the_issues_program_in_several_processes() -> None:
    with LocalCluster() as cluster:
        for _ in range(2):  # the second run finds all there
            with (
                running(PROGRAM, cluster, 0, 2000) as a,
                running(PROGRAM, cluster, 1, 2000) as b,
                running(PROGRAM, cluster, 2, 2000) as c,
            ):
                assert [a.wait(60), b.wait(60), c.wait(60)] == [0, 0, 0]
        assert orders(cluster) == {till: list(range(2000)) for till in range(3)}


@pytest.mark.parametrize("fault", ["killed", "frozen", "stopped"])
def test_producers_go_on_at_another_service(fault: str) -> None:
    with LocalCluster(write_services=2) as cluster:
        go_on_at_another_service(cluster, fault)


def test_producers_go_on_with_metadata_in_zookeeper(zookeeper: ZooKeeperPlace) -> None:
    with LocalCluster(metadata_uri=zookeeper.uri(), write_services=2) as cluster:
        go_on_at_another_service(cluster, "killed")


def go_on_at_another_service(cluster: LocalCluster, fault: str) -> None:
    """Each record once, and in the order of its producer, although the owner ends in the middle."""
    with running(ENDLESS, cluster, 0) as a, running(ENDLESS, cluster, 1) as b:
        wait_until(lambda: count(cluster) > 100, "some are stored")
        owner = owner_of(cluster)
        service = cluster.write_services[owner]
        if fault == "killed":
            service.kill()
        elif fault == "frozen":
            os.kill(service.pid, signal.SIGSTOP)
        else:
            service.stop()
        wait_until(lambda: owner_of(cluster) == 1 - owner, "the other service has the stream")
        before = count(cluster)
        wait_until(lambda: count(cluster) > before + 100, "they go on")
        stored = finish(a, b)
    assert orders(cluster) == {till: list(range(stored[till])) for till in range(2)}


def test_a_producer_that_is_killed_goes_on_behind_what_is_stored() -> None:
    with LocalCluster() as cluster:
        before = 0
        for _ in range(3):
            with running(ENDLESS, cluster, 0) as process:
                wait_until(lambda: count(cluster) > before + 100, "more")  # noqa: B023
                process.kill()
            before = count(cluster)
        with running(ENDLESS, cluster, 0) as process:
            wait_until(lambda: count(cluster) > before + 100, "more")
            stored = finish(process)
        assert orders(cluster) == {0: list(range(stored[0]))}


def test_a_service_that_comes_back_is_used_again() -> None:
    """Without numbers, by one producer: no error, nothing twice, and who opens its name fences it."""
    with LocalCluster() as cluster, fastbk.sync.connect(cluster.metadata_uri) as client:
        stream = client.namespace("shop").stream("orders")
        with stream.producer("till", create=True) as producer:
            for restart in range(2):
                cluster.write_services[0].kill()
                pending = [producer.append_nowait(b"%d" % restart) for _ in range(10)]
                cluster.write_services[0].start()
                places = [record.result() for record in pending]
                known = [place for place in places if place is not None]
                assert all(place < other for place, other in pairwise(known))
            assert producer.last_number == 19
            with stream.producer("till") as other:
                with pytest.raises(ProducerFenced):
                    producer.append(b"")
                other.append(b"2")
        with stream.reader(tail=False) as reader:
            payloads = [bytes(record.payload) for record in reader]
        assert payloads == [b"0"] * 10 + [b"1"] * 10 + [b"2"]


def test_producers_of_a_cluster_with_tls() -> None:
    with LocalCluster(tls=True) as cluster:
        with (
            fastbk.sync.connect(cluster.metadata_uri, tls=cluster.tls_options) as client,
            client.namespace("shop").stream("orders").producer(create=True) as producer,
        ):
            producer.append_many([b"0 %d" % number for number in range(100)])
        assert orders(cluster, tls=cluster.tls_options) == {0: list(range(100))}
