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
TILLS = 4


@contextmanager
def program(cluster: LocalCluster, till: int, end: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the issue's program in a process of its own, to its end unless the block ends it."""
    words = [sys.executable, "-c", PROGRAM, cluster.metadata_uri, str(till), str(end)]
    with subprocess.Popen(words) as process:
        try:
            yield process
        finally:
            process.kill()


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


def count(cluster: LocalCluster) -> int:
    return sum(map(len, orders(cluster).values()))


def test_the_issues_program_in_several_processes() -> None:
    with LocalCluster() as cluster:
        for _ in range(2):  # the second run finds all there
            with (
                program(cluster, 0, 2000) as a,
                program(cluster, 1, 2000) as b,
                program(cluster, 2, 2000) as c,
            ):
                assert [a.wait(60), b.wait(60), c.wait(60)] == [0, 0, 0]
        assert orders(cluster) == {till: list(range(2000)) for till in range(3)}


@pytest.mark.parametrize("fault", ["killed", "frozen", "stopped"])
def test_producers_go_on_at_another_service(fault: str) -> None:
    """Each record once, and in the order of its producer, although the owner ends in the middle."""
    end = 30_000
    with LocalCluster(write_services=2) as cluster:
        with program(cluster, 0, end) as a, program(cluster, 1, end) as b:
            wait_until(lambda: is_served(cluster) and count(cluster) > 500, "some are stored")
            owner = owner_of(cluster)
            service = cluster.write_services[owner]
            if fault == "killed":
                service.kill()
            elif fault == "frozen":
                os.kill(service.pid, signal.SIGSTOP)
            else:
                service.stop()
            assert [a.wait(60), b.wait(60)] == [0, 0]
            assert owner_of(cluster) != owner
        assert orders(cluster) == {till: list(range(end)) for till in range(2)}


def test_a_producer_that_is_killed_goes_on_behind_what_is_stored() -> None:
    end = 50_000
    with LocalCluster() as cluster:
        kills = 0
        while True:
            before = count(cluster) if kills else 0
            with program(cluster, 0, end) as process:
                if kills == 3:
                    assert process.wait(60) == 0
                    break
                wait_until(lambda: is_served(cluster) and count(cluster) > before + 500, "more")  # noqa: B023
                process.kill()
                kills += 1
        assert orders(cluster) == {0: list(range(end))}


def test_a_service_that_comes_back_is_used_again() -> None:
    """Without numbers, by one producer: no error, nothing twice, and who opens its name fences it."""
    with LocalCluster() as cluster, fastbk.sync.connect(cluster.metadata_uri) as client:
        stream = client.namespace("shop").stream("orders")
        with stream.producer("till", create=True) as producer:
            for restart in range(3):
                cluster.write_services[0].kill()
                pending = [producer.append_nowait(b"%d" % restart) for _ in range(10)]
                cluster.write_services[0].start()
                places = [record.result() for record in pending]
                known = [place for place in places if place is not None]
                assert all(place < other for place, other in pairwise(known))
            assert producer.last_number == 29
            with stream.producer("till") as other:
                with pytest.raises(ProducerFenced):
                    producer.append(b"")
                other.append(b"3")
        with stream.reader(tail=False) as reader:
            payloads = [bytes(record.payload) for record in reader]
        assert payloads == [b"0"] * 10 + [b"1"] * 10 + [b"2"] * 10 + [b"3"]


def test_producers_of_a_cluster_with_tls() -> None:
    with LocalCluster(tls=True) as cluster:
        with (
            fastbk.sync.connect(cluster.metadata_uri, tls=cluster.tls_options) as client,
            client.namespace("shop").stream("orders").producer(create=True) as producer,
        ):
            producer.append_many([b"0 %d" % number for number in range(100)])
        assert orders(cluster, tls=cluster.tls_options) == {0: list(range(100))}


def is_served(cluster: LocalCluster) -> bool:
    """Return whether a service has the stream."""
    return owner_of(cluster) >= 0


def owner_of(cluster: LocalCluster) -> int:
    """Return the number of the service that owns the stream; -1: none does."""
    names = [service.name for service in cluster.write_services]
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        stream = client.namespace("shop").stream("orders")
        if not stream.exists():
            return -1
        service = service_of_owner(stream.info().owner)
        return -1 if service is None else names.index(service.service_id)
