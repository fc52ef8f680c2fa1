"""The web service of the examples, with four workers, while all that it stands on is restarted in turns."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import free_ports
from tests.rigs.producers import Worker, service_command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLIENTS = 8
BOOKIES = 4
PATIENCE_S = 60.0


@contextmanager
def web_service(metadata_uri: str, folder: Path) -> Iterator[int]:
    """Run it with four workers; yield its port."""
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "web_service:app",
        "--workers", "4", "--port", str(port), "--log-level", "warning",
    ]  # fmt: skip
    environment = {**os.environ, "FASTBK_METADATA_URI": metadata_uri}
    with (folder / "uvicorn.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port) or process.poll(), "the workers to answer", PATIENCE_S)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def answers(port: int) -> bool:
    """Return whether a first order is taken."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as first:
        try:
            return post(first, b"first") == 201
        except ConnectionError:
            return False


def post(connection: http.client.HTTPConnection, body: bytes) -> int:
    connection.request("POST", "/orders", body)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def orders(port: int, first: int, count: int, statuses: Counter[int | str]) -> None:
    """Post orders, one after the other; a failure is counted by its text, and ends it."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        try:
            for number in range(first, first + count):
                statuses[post(connection, b"order %d" % number)] += 1
        except (OSError, http.client.HTTPException) as error:
            statuses[repr(error)] += 1


def restart(worker: Worker) -> None:
    """Stop a service as planned, once it has begun, and begin it again."""
    assert worker.process is not None
    log, ready = worker.output.with_suffix(".err"), f'"pid":{worker.process.pid}'
    wait_until(lambda: ready in log.read_text(), "the service to say that it has begun", PATIENCE_S)
    worker.process.terminate()
    assert worker.process.wait(PATIENCE_S) == 0
    worker.start()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("requests", [2000, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_order_fails_while_services_and_bookies_are_restarted(
    requests: int, tmp_path: Path
) -> None:
    with LocalCluster(BOOKIES, write_services=0) as cluster:
        services = [
            Worker(service_command(cluster.metadata_uri, port), tmp_path / f"service-{number}.out")
            for number, port in enumerate(free_ports(2))
        ]
        try:
            for service in services:
                service.start()
            with web_service(cluster.metadata_uri, tmp_path) as port:
                statuses = [Counter[int | str]() for _ in range(CLIENTS)]
                each = requests // CLIENTS
                threads = [
                    threading.Thread(target=orders, args=(port, number * each, each, counts))
                    for number, counts in enumerate(statuses)
                ]
                for thread in threads:
                    thread.start()
                for number in range(BOOKIES):
                    restart(services[number % 2])
                    cluster.restart_bookie(number)
                for thread in threads:
                    thread.join(PATIENCE_S * 2)
                assert sum(statuses, Counter[int | str]()) == {201: each * CLIENTS}
        finally:
            for service in services:
                service.kill()
        with fastbk.sync.connect(cluster.metadata_uri) as client:
            stream = client.namespace("shop").stream("orders")
            with stream.reader("earliest", tail=False) as reader:
                stored = Counter(record.value for record in reader)
    wanted = {b"order %d" % number for number in range(each * CLIENTS)}
    assert stored.keys() - {b"first"} == wanted
    assert {count for order, count in stored.items() if order != b"first"} == {1}
