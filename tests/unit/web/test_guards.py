"""Requests that a web page of another site may have caused are refused; those of tools are not."""

from __future__ import annotations

import socket

import pytest

from fastbk.web.page_admission import SiteGuard, name_of

TOOL = {"user-agent": "Prometheus/2.53", "accept": "*/*"}
BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)", "host": "localhost:8000"}


def refused(headers: dict[str, str], *, changes: bool = False) -> str:
    """Return the limit that a request reaches, empty if none."""
    refusal = SiteGuard(["bookie-1.example", ""]).refusal(headers, changes=changes)
    return refusal[0] if refusal else ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:80", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "[::1]", "10.1.2.3:9000",
        "bookie-1.example", "Bookie-1.Example.:8000", socket.gethostname(),
    ],
)  # fmt: skip
def test_addresses_and_own_names_are_accepted(host: str) -> None:
    assert refused({"host": host, **TOOL}) == ""


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example", "attacker.example:8000", "localhost.attacker.example", "127.0.0.1.attacker.example",
        "localhost, attacker.example", "attacker.example, localhost", "xlocalhost", "2130706433", "[attacker]",
    ],
)  # fmt: skip
def test_a_name_that_somebody_else_may_own_is_refused(host: str) -> None:
    """DNS rebinding: the name's server sends the browser to our address."""
    assert refused({"host": host, **TOOL}) == "host"


def test_a_tool_without_headers_is_accepted() -> None:
    assert refused({}) == ""
    assert refused({}, changes=True) == ""
    assert refused({"host": "localhost", **TOOL}, changes=True) == ""


@pytest.mark.parametrize(
    "sent",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-site, none"},
        {"origin": "http://attacker.example"},
        {"origin": "null"},
        {"origin": "http://localhost:8000"},
        {"referer": "http://attacker.example/localhost:8000"},
        {"referer": "http://localhost:9000/"},
        {"referer": "http://["},
    ],
)
def test_requests_across_sites_are_refused(sent: dict[str, str]) -> None:
    assert refused({**BROWSER, **sent}) == "cross_site"


def test_a_person_and_our_own_pages_are_accepted() -> None:
    assert refused({**BROWSER, "sec-fetch-site": "none"}, changes=True) == ""
    ours = {"sec-fetch-site": "same-origin", "referer": "http://localhost:8000/metrics"}
    assert refused({**BROWSER, **ours}, changes=True) == ""


def test_a_browser_that_does_not_say_where_from_changes_nothing() -> None:
    """Over plain HTTP to another machine browsers send no Sec-Fetch-Site, and a page may drop its Referer."""
    assert refused(BROWSER) == ""
    assert refused(BROWSER, changes=True) == "cross_site"


def test_ports_and_brackets_are_no_part_of_a_name() -> None:
    assert [name_of(host) for host in ("a:1", "a", "[::1]:1", "a:b", "A.")] == [
        "a", "a", "::1", "a:b", "a",
    ]  # fmt: skip
