"""Readers and cursors of patterns on real bookies, without `await`: commands, janitor, backup and restore (INV-S20)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import fastbk
import fastbk.sync
from fastbk.exit_codes import USAGE
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.sync import SyncNamespace
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Of this file alone: a janitor passes over all that is there. Each test has a namespace of its own."""
    with LocalCluster() as made:
        yield made


class Run:
    """Runs commands that have to succeed."""

    def __init__(self, uri: str) -> None:
        self._cli = Cli(uri)

    def __call__(self, *words: str) -> str:
        code, written = self._cli.run(*words)
        assert code == 0, f"{words}: {code}: {self._cli.err}"
        return written.decode()


@pytest.fixture
def cli(cluster: LocalCluster) -> Run:
    return Run(cluster.metadata_uri)


@pytest.fixture
def shop(client: fastbk.sync.Client, own_name: str) -> SyncNamespace:
    """A namespace of this test's own, which is not made yet."""
    return client.namespace(own_name)


def write(shop: SyncNamespace, name: str, count: int, *, roll: bool = False) -> None:
    with shop.stream(name).writer(create=True) as writer:
        for at in range(count):
            writer.append_nowait(b"%s %d" % (name.encode(), at))
            if roll:
                writer.flush()
                writer.roll()
        writer.flush()


def test_streams_that_come_and_go_are_read_as_one(
    client: fastbk.sync.Client, shop: SyncNamespace, own_name: str, cli: Run
) -> None:
    for name in ("orders-a", "orders-b", "other"):
        write(shop, name, 5)
    with client.namespace().reader(f"{own_name}/orders-*", tail=False) as reader:
        found = list(reader)
    wanted = [b"orders-%s %d" % (name, at) for name in (b"a", b"b") for at in range(5)]
    assert sorted(one.value for one in found) == sorted(wanted)
    assert {one.stream for one in found} == {f"{own_name}/orders-a", f"{own_name}/orders-b"}

    with shop.cursor("orders-*", "billing") as cursor:
        for _ in range(10):
            cursor.ack(next(cursor))
        cursor.flush()
        write(shop, "orders-new", 2)
        assert [next(cursor).value for _ in range(2)] == [b"orders-new 0", b"orders-new 1"]
        shop.delete_stream("orders-a")
        write(shop, "orders-b", 1)
        last = next(cursor)
        assert (last.stream, last.value) == (f"{own_name}/orders-b", b"orders-b 0")
        cursor.ack_one(last).result()
        wait_until(
            lambda: cursor.streams == [f"{own_name}/orders-b", f"{own_name}/orders-new"],
            "the deleted stream to go",
        )
    assert "billing" in cli("namespace", "cursors", own_name)
    assert "orders-* billing" in cli("stream", "cursors", f"{own_name}/orders-b")
    assert "billing" not in cli("stream", "cursors", f"{own_name}/other")
    with shop.cursor("orders-*", "billing", tail=False) as cursor:
        assert [one.value for one in cursor] == [b"orders-new 0", b"orders-new 1"]
    cli("namespace", "cursors", own_name, "--delete", "billing", "--yes")
    assert shop.pattern_cursors() == []


HOLDER = """
import sys, fastbk.sync
with fastbk.sync.connect(sys.argv[1]) as client:
    with client.namespace(sys.argv[2]).cursor("*", "killed") as cursor:
        for record in cursor:
            cursor.ack(record).result()
            print(record.stream, record.seq, flush=True)
"""


def test_a_holder_that_is_killed_loses_nothing_and_repeats_what_was_not_kept(
    shop: SyncNamespace, own_name: str, cluster: LocalCluster
) -> None:
    """INV-S10: what `result` returned of is kept; all else comes again."""
    for name in ("a", "b", "c"):
        write(shop, name, 200)
    command = [sys.executable, "-c", HOLDER, cluster.metadata_uri, own_name]
    told: list[tuple[str, int]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        for line in holder.stdout:
            stream, seq = line.split()
            told.append((stream, int(seq)))
            if len(told) == 12:
                holder.send_signal(signal.SIGKILL)
                break
        for line in holder.stdout.read().splitlines():
            stream, seq = line.split()
            told.append((stream, int(seq)))
    with shop.cursor("*", "killed", tail=False) as cursor:
        rest = [(one.stream, one.seq) for one in cursor]
    assert not set(told) & set(rest), "what was kept is not delivered again"
    assert {*told, *rest} >= {
        (f"{own_name}/{name}", at) for name in ("a", "b", "c") for at in range(200)
    } - {
        # The one that was acknowledged as the signal came, and not told of any more.
        one
        for one in [(told[-1][0], told[-1][1] + 1)]
    }


def test_a_janitor_keeps_what_a_pattern_has_not_read(
    shop: SyncNamespace, own_name: str, cli: Run, tmp_path: Path
) -> None:
    shop.create(PolicyPatch(retention_bytes=1))
    write(shop, "held", 6, roll=True)
    with shop.cursor("*", "slow"):
        pass
    write(shop, "new", 6, roll=True)
    cli("janitor", "--once", "--audit", str(tmp_path / "audit.log"))
    for name in ("held", "new"):
        assert len(shop.stream(name).segments()) == 6, "nothing of it was acknowledged"

    backup = tmp_path / "backup"
    cli("metadata", "backup", "--to", str(backup))
    with shop.cursor("*", "slow", tail=False) as cursor:
        for record in cursor:
            cursor.ack(record)
    cli("janitor", "--once", "--audit", str(tmp_path / "audit.log"))
    for name in ("held", "new"):
        assert len(shop.stream(name).segments()) == 1, "all of it was acknowledged"

    restored = tmp_path / "restored" / "metadata.sqlite"
    restored.parent.mkdir()
    cli("metadata", "restore", str(backup), "--metadata", f"sqlite:{restored}")
    with fastbk.sync.connect(f"sqlite:{restored}") as there:
        (info,) = there.namespace(own_name).pattern_cursors()
        assert (info.name, info.pattern, len(info.record.positions)) == ("slow", "*", 0)


def test_commands_take_patterns(shop: SyncNamespace, own_name: str, cluster: LocalCluster) -> None:
    cli = Cli(cluster.metadata_uri)
    for name in ("a", "b", "z"):
        write(shop, name, 3)
    lines = cli("stream", "read", f"{own_name}/[ab]").splitlines()
    assert sorted((line.split("\t")[0], line.split("\t")[2]) for line in lines) == [
        (f"{own_name}/{name}", f"{name} {at}") for name in "ab" for at in range(3)
    ]
    first = json.loads(cli("stream", "read", f"{own_name}/a*", "--max", "1", "--json"))
    assert (first["stream"], first["seq"], first["payload"]) == (f"{own_name}/a", 0, "a 0")
    assert cli("stream", "read", f"{own_name}/a*", "--payload", "--from", "latest") == ""
    last = cli("stream", "tail", f"{own_name}/[ab]", "-n", "1", "--max", "2").splitlines()
    assert sorted(line.split("\t")[2] for line in last) == ["a 2", "b 2"]
    assert "is a place in one stream" in cli.fails(
        "stream", "read", f"{own_name}/*", "--from", "seq:1", code=USAGE
    )
    assert "--to is a place in one stream" in cli.fails(
        "stream", "read", f"{own_name}/*", "--to", "latest", code=USAGE
    )
    # A stream that is called so is meant by its name.
    write(shop, "a*", 1)
    assert cli("stream", "read", f"{own_name}/a*", "--payload") == "a* 0\n"

    cli("stream", "cursors", f"{own_name}/[ab]", "--create", "billing", "--to", "latest")
    assert "billing" in cli("stream", "cursors", f"{own_name}/[ab]")
    assert "has no cursors" in (cli("stream", "cursors", f"{own_name}/*"), cli.err)[1]
    with shop.cursor("[ab]", "billing", tail=False) as cursor:
        assert list(cursor) == []
    said = cli.fails(
        "stream", "cursors", f"{own_name}/a", "--move", "billing", "--to", "earliest", "--yes"
    )
    assert (
        f"{own_name}/a has no cursor billing of its own: billing reads the pattern {own_name}/[ab]"
        in said
    )
    assert "for a pattern give --to" in cli.fails(
        "stream", "cursors", f"{own_name}/[ab]", "--move", "billing", "--back", "3", code=USAGE
    )
    move = ("stream", "cursors", f"{own_name}/[ab]", "--move", "billing", "--to", "earliest")
    assert "its holder is fenced" in cli(*move, "--dry-run")
    cli(*move, "--yes")
    with shop.cursor("[ab]", "billing", tail=False) as cursor:
        assert len(list(cursor)) == 6
    assert "that one reads [ab]" in cli.fails(
        "stream", "cursors", f"{own_name}/*", "--delete", "billing", "--yes"
    )
    cli("stream", "cursors", f"{own_name}/[ab]", "--delete", "billing", "--yes")
    assert shop.pattern_cursors() == []


def test_interrupted_calls_skip_nothing(shop: SyncNamespace) -> None:
    """INV-C3: a timer's signal ends waits of the caller, and no record is lost."""
    for name in ("a", "b"):
        write(shop, name, 300)

    def alarm(_: int, frame: FrameType | None) -> None:
        # in a call, not between two of them
        if frame is not None and frame.f_code.co_filename != __file__:
            raise TimeoutError

    found: list[bytes] = []
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with shop.reader("*", tail=False) as reader:
            ended = False
            while not ended:
                signal.setitimer(signal.ITIMER_REAL, 0.0007)
                try:
                    found.append(next(reader).value)
                except TimeoutError:
                    continue
                except StopIteration:
                    ended = True
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sorted(found) == sorted(b"%s %d" % (n, at) for n in (b"a", b"b") for at in range(300))
