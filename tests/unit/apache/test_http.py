"""How the endpoints of Apache's answer: their JSON, their refusals, and the bounds on both."""

from __future__ import annotations

import json

import pytest

from fastbk.apache.http import pages
from fastbk.apache.http.answers import boolean, guarded, integer, json_object, pretty, text
from fastbk.errors import ConfigError
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.web.page_server import Request, Response


def test_json_is_laid_out_as_jackson_does() -> None:
    value = {
        "a": 1,
        "b": [1, "x"],
        "c": {},
        "d": [],
        "e": {"f": [{"g": None}]},
        "h": True,
        "i": "\u00e4\t",
    }
    assert json.loads(pretty(value)) == value
    assert pretty(value) == (
        '{\n  "a" : 1,\n  "b" : [ 1, "x" ],\n  "c" : { },\n  "d" : [ ],\n  "e" : {\n    "f" : [ {\n      "g" : null\n'
        '    } ]\n  },\n  "h" : true,\n  "i" : "\u00e4\\t"\n}'
    )
    assert pretty('a"b') == '"a\\"b"'


async def test_what_a_page_raises_becomes_a_500_with_the_reason() -> None:
    async def page(_: Request) -> Response:
        raise ValueError("not a number")

    assert await guarded(page)(Request("GET")) == text(500, "Internal Server Error: not a number")


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[1]", b'{"a":' * 9_000 + b"}" * 9_000])
def test_what_is_no_object_is_a_reason_and_no_fault_of_ours(body: bytes) -> None:
    with pytest.raises(ConfigError, match="the body is no JSON object"):
        json_object(Request("PUT", {}, body))


def store_with(count: int) -> MemoryStore:
    store = MemoryStore(f"http-pages-{count}")
    metadata = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, ("b",)),),
        password=b"secret",
    )
    for ledger_id in range(count):
        store.create_ledger(ledger_id, metadata)
    return store


def test_pages_of_ledgers_begin_where_apaches_do(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(205)
    first, second, third = (list(pages._described(store, page, decode=True)) for page in (1, 2, 3))
    assert (first[0], first[-1], len(first)) == ("0", "98", 99)
    assert (second[0], second[-1], len(second)) == ("99", "198", 100)
    assert (third[0], third[-1]) == ("199", "204")
    assert len(pages._described(store, -1, decode=False)) == 205
    monkeypatch.setattr(pages, "METADATA_LISTED_MAX", 204)
    with pytest.raises(Exception, match="ask for pages"):
        pages._described(store, -1, decode=False)


def test_a_ledgers_password_is_not_told() -> None:
    store = store_with(1)
    shown = pages.shown(0, store.read_ledger(0).metadata)
    assert "secret" not in json.dumps(shown)
    assert "c2VjcmV0" not in json.dumps(shown)
    assert shown["allEnsembles"] == {"0": [{"id": "b"}]}


@pytest.mark.parametrize("given", ["x", "", "1.5", "-2", "9" * 30, "0x1", "१", str(2**63), " 1"])
async def test_a_parameter_that_is_no_number_is_a_400_with_its_name(given: str) -> None:
    async def page(request: Request) -> Response:
        return text(200, str(integer(request, "ledger_id", 0, low=0)))

    status, _, said = await guarded(page)(Request("GET", {"ledger_id": given}))
    assert status == 400 and said.startswith(b"Bad Request: ledger_id=")
    assert await guarded(page)(Request("GET", {"ledger_id": "7"})) == text(200, "7")


@pytest.mark.parametrize(
    "body", [b"{}", b'{"readonly": true}', b'{"readOnly": "yes"}', b'{"readOnly": 1}']
)
def test_a_switch_has_no_default_and_no_key_that_is_misspelt(body: bytes) -> None:
    """A read-only bookie became writable."""
    with pytest.raises(ConfigError, match="readOnly"):
        boolean("readOnly", json_object(Request("PUT", {}, body), "readOnly").get("readOnly"))
