"""JSON that is nested very deeply: whoever stores or sends it gets a clear error, and ends nobody."""

from __future__ import annotations

import select
import signal
import sqlite3
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fastbk.cli.stream_options import line_of_json
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.meta.api import BadIdentity
from fastbk.meta.gateway.messages import decode_request
from fastbk.meta.sqlite.store import SqliteStore
from fastbk.meta.zookeeper.bookies import parse_identity
from fastbk.model.ids import BookieId
from fastbk.native.disk import Disk
from fastbk.server import process_table
from fastbk.server.supervision.spawn import ChildProcess
from fastbk.storage.commits import DELETION_LOG_NAME, DeletionLog
from fastbk.stream.chain import VERSION, get_chain
from fastbk.stream.namespace.tree import UsageRecord, get
from fastbk.web.page_server import decoded_object

DEEP = b"[" * 50_000 + b"]" * 50_000
INSIDE = b'{"bookie_id": "b", "incarnation": 1, "directories": %s}' % DEEP
UNKNOWN_FIELD = b'{"unknown": %s}' % DEEP
DEEP_CHAIN = b"FBKC" + bytes([VERSION]) + zlib.compress(b"\x91" * 50_000 + b"\x90")


@pytest.mark.parametrize(
    ("parse", "raw", "error"),
    [
        (lambda raw: parse_identity(BookieId("b"), raw), INSIDE, StorageError),
        (lambda raw: get(UsageRecord, raw, "p"), UNKNOWN_FIELD, StorageError),
        (lambda raw: line_of_json(raw, 1), UNKNOWN_FIELD, ConfigError),
        (get_chain, DEEP_CHAIN, StorageError),
        # What is no UTF-8: msgspec raises a UnicodeDecodeError then, which is none of its own errors.
        (get_chain, b"FBKC" + bytes([VERSION]) + zlib.compress(b"\xa1\xff"), StorageError),
        (decoded_object, b'{"a":"\xd1"}', ConfigError),
        (lambda raw: decode_request("instance-id", raw), b"\xa1\xff", ConfigError),
    ],
)
def test_it_is_a_clear_error(
    parse: Callable[[bytes], object], raw: bytes, error: type[Error]
) -> None:
    with pytest.raises(error):
        parse(raw)


def test_an_identity_in_sqlite_that_makes_no_sense_is_named_so(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(str(path))
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO identities VALUES ('b', 0, ?)", (INSIDE.decode(),))
    with pytest.raises(StorageError, match="identity of bookie b is damaged"):
        store.read_identity(BookieId("b"))
    (listed,) = store.list_identities()
    assert isinstance(listed, BadIdentity)
    store.close()


def test_the_deletion_log_passes_over_such_a_line(tmp_path: Path) -> None:
    (tmp_path / DELETION_LOG_NAME).write_bytes(UNKNOWN_FIELD + b'\n{"event": "x"}\n')
    disk = Disk(str(tmp_path), "plain")
    assert DeletionLog(disk, str(tmp_path)).read() == [{"event": "x"}]


@pytest.mark.parametrize("text", ["'[' * 30_000", "'no JSON'"])
def test_a_child_that_sends_it_is_killed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.send(({text}).encode()); s.recv(9)"
    monkeypatch.setattr(
        "fastbk.server.supervision.spawn.child_command",
        lambda _, end: [sys.executable, "-c", program, str(end)],
    )
    child = ChildProcess(process_table.Process("gc"), {})
    try:
        select.select([child.control], [], [], 30)
        with pytest.raises(EOFError):
            child.receive()
        assert child.wait() == -signal.SIGKILL
    finally:
        child.kill()
        child.close()
