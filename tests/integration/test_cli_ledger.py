"""`fastbk ledger ...` against a running cluster: what goes in comes out, byte by byte; JSON is JSON only."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until


@pytest.fixture
def cli(cluster: LocalCluster) -> Cli:
    return Cli(cluster.metadata_uri)


def test_lines_come_back_as_lines_and_as_exactly_their_bytes(cli: Cli) -> None:
    text = b"first\n\nthird \xff\nlast without an end"
    answer = cli.json("ledger", "write", "-", stdin=text)
    assert answer == {"ledger_id": answer["ledger_id"], "entries": 4, "bytes": len(text)}
    ledger_id = str(answer["ledger_id"])
    assert cli.raw("ledger", "read", ledger_id, "--raw") == text
    assert cli.raw("ledger", "read", ledger_id).decode().splitlines() == [
        "0\tfirst", "1\t", "2\tthird \\xff", "3\tlast without an end"]  # fmt: skip
    assert cli.raw("ledger", "read", ledger_id, "--first", "1", "--last", "2", "--raw") == (
        b"\nthird \xff\n"
    )


def test_a_binary_file_comes_back_exactly(cli: Cli, tmp_path: Path) -> None:
    data = random.Random(7).randbytes(3_000_001)
    path = tmp_path / "file"
    path.write_bytes(data)
    answer = cli.json("ledger", "write", str(path), "--chunk-bytes", "65536")
    assert answer["entries"] == 46
    assert cli.raw("ledger", "read", str(answer["ledger_id"]), "--raw") == data


def test_an_empty_input_makes_an_empty_ledger(cli: Cli) -> None:
    answer = cli.json("ledger", "write")
    assert answer["entries"] == 0
    assert cli.raw("ledger", "read", str(answer["ledger_id"]), "--raw") == b""


def test_reading_in_json_gives_an_object_an_entry(cli: Cli) -> None:
    ledger_id = str(cli.json("ledger", "write", stdin=b"a\n\xff\n")["ledger_id"])
    lines = cli.raw("ledger", "read", ledger_id, "--json").decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"entry_id": 0, "data": "a\n"}, {"entry_id": 1, "data_base64": "/wo="}]  # fmt: skip


def test_reading_beyond_the_end_says_where_that_is(cli: Cli) -> None:
    ledger_id = str(cli.json("ledger", "write", stdin=b"a\nb\n")["ledger_id"])
    assert cli.raw("ledger", "read", ledger_id, "--first", "2") == b""
    assert cli.err == f"ledger {ledger_id} ends with entry 1 now\n"
    assert cli.raw("ledger", "read", ledger_id, "--first", "1", "--last", "7") == b"1\tb\n"
    assert "ends with entry 1" in cli.err
    assert cli.raw("ledger", "read", ledger_id, "--last", "1") == b"0\ta\n1\tb\n"
    assert cli.err == ""


def test_tail_prints_what_is_there_and_ends_with_a_closed_ledger(cli: Cli) -> None:
    ledger_id = str(cli.json("ledger", "write", stdin=b"a\nb\n")["ledger_id"])
    assert cli.raw("ledger", "tail", ledger_id) == b"0\ta\n1\tb\n"
    assert cli.raw("ledger", "tail", ledger_id, "--first", "1", "--raw") == b"b\n"


def test_show_and_list_tell_what_metadata_holds(cli: Cli) -> None:
    ledger_id = cli.json("ledger", "write", "-w", "2", "-a", "2", "-E", "3", stdin=b"x\n")[
        "ledger_id"
    ]
    shown = cli.json("ledger", "show", str(ledger_id))
    assert {name: shown[name] for name in ("state", "ensemble", "write_quorum", "ack_quorum")} == {
        "state": "CLOSED", "ensemble": 3, "write_quorum": 2, "ack_quorum": 2}  # fmt: skip
    assert (shown["entries"], shown["bytes"], shown["digest"]) == (1, 2, "crc32c")
    assert b"CLOSED" in cli.raw("ledger", "show", str(ledger_id))
    listed = cli.json("ledger", "list")["ledgers"]
    assert isinstance(listed, list)
    assert ledger_id in listed
    assert str(ledger_id) in cli.raw("ledger", "list").decode().split()


def test_a_ledger_of_a_namespace_is_as_its_policy_says(cli: Cli) -> None:
    words = ["--set", "write_quorum=2", "--set", "digest=crc32", "--set", "bookie_group=ssd"]
    cli("namespace", "create", "placed", *words)
    ledger_id = cli.json("ledger", "write", "--namespace", "placed", stdin=b"x\n")["ledger_id"]
    shown = cli.json("ledger", "show", str(ledger_id))
    assert (shown["namespace"], shown["write_quorum"], shown["digest"]) == ("placed", 2, "crc32")
    rule = "rack, 2 racks in each write set, not enforced, first bookies of the group ssd"
    assert shown["placement"] == f"{rule}; it is its own"
    assert cli.json("ledger", "list", "--namespace", "placed") == {"ledgers": [ledger_id]}
    other = cli.json("ledger", "create", "--namespace", "not-there", "-E", "2")["ledger_id"]
    shown = cli.json("ledger", "show", str(other))
    assert (shown["namespace"], shown["ensemble"]) == ("not-there", 2)
    assert shown["placement"].endswith("not enforced; it is the cluster's")  # type: ignore[attr-defined]
    listed = cli.json("ledger", "list", "--open", "--namespace", "not-there")["ledgers"]
    assert listed == [{"ledger_id": other, "why": "OPEN"}]


def test_create_leaves_an_open_ledger_and_says_what_closes_it(cli: Cli) -> None:
    ledger_id = cli.raw("ledger", "create").decode().strip()
    assert f"`fastbk ledger recover {ledger_id}` closes it" in cli.err
    assert cli.json("ledger", "show", ledger_id)["state"] == "OPEN"
    assert cli.raw("ledger", "recover", ledger_id) == (
        f"ledger {ledger_id} is closed: 0 entries, 0 B\n".encode()
    )
    assert cli.json("ledger", "show", ledger_id)["entries"] == 0


def test_create_in_json_and_delete(cli: Cli) -> None:
    ledger_id = str(cli.json("ledger", "create")["ledger_id"])
    assert cli.json("ledger", "delete", ledger_id, "--yes") == {"deleted": [int(ledger_id)]}
    cli.raw("ledger", "show", ledger_id, code=1)
    assert cli.err.startswith("fastbk: ")
    assert len(cli.err.splitlines()) == 1
    cli.raw("ledger", "delete", ledger_id, "--yes", code=1)


def test_a_weak_quorum_is_said_in_one_line(cli: Cli) -> None:
    cli.json("ledger", "create", "-E", "3", "-w", "3", "-a", "1")
    first, *rest = cli.err.splitlines()
    assert first.startswith("ack_quorum=1 of write_quorum=3 is no majority")
    assert not any("Warning" in line for line in rest)


def test_a_password_is_needed_for_its_ledger(cli: Cli, tmp_path: Path) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("secret\n")
    wrong.write_text("wrong")
    answer = cli.json("ledger", "write", "--password-file", str(secret), stdin=b"x\n")
    ledger_id = str(answer["ledger_id"])
    assert cli.raw("ledger", "read", ledger_id, "--password-file", str(secret), "--raw") == b"x\n"
    cli.raw("ledger", "read", ledger_id, "--password-file", str(wrong), code=1)
    cli.raw("ledger", "read", ledger_id, "--password", "secret", code=2)
    assert "give --password-file FILE" in cli.err and "secret" not in cli.err


WRITE_AND_WAIT = """
import asyncio, sys, fastbk
async def main():
    client = fastbk.connect(sys.argv[1])
    writer = await client.create_ledger(password=b"pw")
    for one in range(100):
        await writer.append(b"line %d\\n" % one)
    print(writer.ledger_id, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_what_a_pipe_gives_slowly_is_stored_while_it_stays_open(cli: Cli) -> None:
    before = set(cli("ledger", "list").split())
    writer = cli.start("ledger", "write")
    try:
        assert writer.stdin is not None
        for line in ("one\n", "two\n", "begun"):
            writer.stdin.write(line)
            writer.stdin.flush()
        wait_until(lambda: len(set(cli("ledger", "list").split()) - before) == 1, "the ledger")
        (ledger_id,) = set(cli("ledger", "list").split()) - before
        wait_until(
            lambda: cli.raw("ledger", "read", ledger_id, "--raw") == b"one\ntwo\n", "whole lines"
        )
        writer.kill()
        writer.communicate(timeout=20)
        assert cli.raw("ledger", "read", ledger_id, "--raw", "--recover") == b"one\ntwo\n"
    finally:
        cli.end()


def test_a_line_that_is_too_large_is_named_and_those_before_it_stay(cli: Cli) -> None:
    before = set(cli("ledger", "list").split())
    said = cli.fails("ledger", "write", stdin=b"one\ntwo\n" + bytes(8 << 20) + b"\nfour\n", code=2)
    assert "line or chunk 3: " in said
    (ledger_id,) = set(cli("ledger", "list").split()) - before
    assert cli.raw("ledger", "read", ledger_id, "--raw", "--recover") == b"one\ntwo\n"


def test_a_ledger_whose_writer_was_killed_is_recovered(
    cli: Cli, cluster: LocalCluster, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WRITE_AND_WAIT, cluster.metadata_uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        ledger_id = writer.stdout.readline().decode().strip()
        writer.kill()
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("pw")
    wrong.write_text("wrong")
    words = (ledger_id, "--password-file", str(right))
    assert cli.json("ledger", "info", ledger_id)["state"] == "OPEN"
    cli.raw("ledger", "recover", ledger_id, "--password-file", str(wrong), code=1)
    some = cli.raw("ledger", "read", *words, "--raw")
    assert 99 <= some.count(b"\n") <= 100, "without recovery it stays open"
    assert cli.json("ledger", "info", ledger_id)["state"] == "OPEN"
    everything = b"".join(b"line %d\n" % one for one in range(100))
    assert cli.raw("ledger", "read", *words, "--raw", "--recover") == everything
    shown = cli.json("ledger", "info", ledger_id)
    assert (shown["state"], shown["entries"], shown["bytes"]) == ("CLOSED", 100, len(everything))
    again = cli.json("ledger", "recover", *words)
    assert again == {
        "recovered": [{"ledger_id": int(ledger_id), "entries": 100, "bytes": len(everything)}]
    }
    assert b"is closed: 100 entries" in cli.raw("ledger", "close", *words)


def test_custom_metadata_is_printed_set_and_removed(cli: Cli) -> None:
    ledger_id = cli.raw("ledger", "create").decode().strip()
    assert cli.raw("ledger", "metadata", ledger_id) == b""
    assert (
        cli.raw("ledger", "metadata", ledger_id, "--set", "b=2", "--set", "a=1=1")
        == b"a=1=1\nb=2\n"
    )
    answer = cli.json("ledger", "metadata", ledger_id, "--remove", "b", "--set", "c=")
    assert answer == {"ledger_id": int(ledger_id), "metadata": {"a": "1=1", "c": ""}}
    cli.raw("ledger", "metadata", ledger_id, "--set", "novalue", code=2)
    cli.raw("ledger", "metadata", ledger_id, "--set", "a=1", "--remove", "a", code=2)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["write", "/no/such/file"], 2, "/no/such/file: No such file"),
        (["write", "--chunk-bytes", "0"], 2, "--chunk-bytes must be 1 or more"),
        (["read", "1", "--first", "-1"], 2, "--first must be 0 or above"),
        (["read", "999999"], 1, "999999"),
        (["read", "999999", "--raw"], 2, "give one of them"),
        (["tail", "999999", "--raw"], 2, "give one of them"),
        (["write", "-E", "4"], 75, "4 bookies are needed, but only 3 can be used"),
        (["write", "-E", "2", "-w", "3"], 2, ""),
    ],
)
def test_a_wrong_call_is_one_line_and_a_code(
    cli: Cli, words: list[str], code: int, message: str
) -> None:
    assert cli.raw("ledger", *words, "--json", code=code) == b""
    assert message in cli.err
    assert len(cli.err.splitlines()) == 1


def test_a_reader_that_has_enough_ends_the_command_quietly(cli: Cli, cluster: LocalCluster) -> None:
    ledger_id = str(cli.json("ledger", "write", stdin=b"line\n" * 50_000)["ledger_id"])
    command = f"{sys.executable} -m fastbk.cli ledger read {ledger_id} --metadata {cluster.metadata_uri} | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
    assert done.stdout == b"0\tline\n"
    assert b"Traceback" not in done.stderr
