"""A bookie's HTTP port under slow clients, and asked by web pages of other sites."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from fastbk.devcluster import Bookie
from fastbk.testing import LocalCluster
from tests.fixtures.pages import metrics, page
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW = 300
"""More than the places for incomplete requests."""


@pytest.fixture(scope="module")
def bookie() -> Iterator[Bookie]:
    with LocalCluster(1, settings={"http": {"allowed_hosts": ["bookies.example"]}}) as cluster:
        yield cluster.bookies[0]


@pytest.mark.parametrize("begun", [b"", b"GET /livez HTTP/1.1\r\n"], ids=["silent", "half a head"])
def test_health_pages_answer_beside_slow_connections(bookie: Bookie, begun: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(SLOW):
            slow = stack.enter_context(
                socket.create_connection(("127.0.0.1", bookie.http_port), 20)
            )
            slow.sendall(begun)
        for path in ("/livez", "/readyz", "/metrics"):
            assert page(bookie, path)[0] == 200
    assert 'fastbk_supervisor_http_refused_total{limit="requests"}' in page(bookie, "/metrics")[1]


def test_health_pages_answer_beside_clients_that_do_not_read(bookie: Bookie) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            deaf.connect(("127.0.0.1", bookie.http_port))
            deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for path in ("/livez", "/readyz", "/metrics"):
            assert page(bookie, path)[0] == 200


@pytest.mark.parametrize("path", ["/api/v1/ledger/read?ledger_id=0", "/metrics", "/livez"])
def test_a_name_that_leads_here_by_dns_rebinding_is_refused(bookie: Bookie, path: str) -> None:
    status, text = page(bookie, path, headers={"Host": f"attacker.example:{bookie.http_port}"})
    assert (status, "allowed_hosts" in text) == (403, True)


def test_the_sanity_page_writes_for_tools_and_not_for_other_sites(bookie: Bookie) -> None:
    sanity = "/api/v1/bookie/sanity"
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://attacker.example"},
        {"Referer": "http://attacker.example/"},
        {"User-Agent": "Mozilla/5.0"},
    ):
        assert page(bookie, sanity, headers=headers)[0] == 403, headers
    status, text = page(bookie, sanity)
    assert (status, '"passed" : true' in text) == (200, True)


def test_a_name_in_the_configuration_is_accepted(bookie: Bookie) -> None:
    def refused() -> float:
        return metrics(bookie).get('fastbk_supervisor_http_refused_total{limit="host"}', 0.0)

    assert page(bookie, "/livez", headers={"Host": "bookies.example:1"})[0] == 200
    before = refused()
    assert page(bookie, "/livez", headers={"Host": "others.example:1"})[0] == 403
    wait_until(lambda: refused() == before + 1, "the refusal to be counted")
