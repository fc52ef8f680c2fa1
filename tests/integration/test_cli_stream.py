"""`fastbk namespace ...` and `fastbk stream ...` against a running cluster: JSON is JSON only, errors are one line."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import fastbk.sync
from fastbk.stream.positions import AtSeq
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        yield running


@pytest.fixture
def cli(cluster: LocalCluster) -> Iterator[Cli]:
    made = Cli(cluster.metadata_uri)
    yield made
    made.end()


def test_namespaces_are_made_set_renamed_listed_and_deleted(cli: Cli) -> None:
    made = cli.json(
        "namespace", "create", "a/b", "--set", "roll_bytes=1MiB", "--set", "roll_age=2h"
    )
    assert made == {"namespace": "a/b", "policy": {"roll_bytes": 1 << 20, "roll_age_s": 7200.0}}
    assert "already" in cli.fails("namespace", "create", "a/b")
    cli("namespace", "create", "a/b", "--exist-ok")
    cli("namespace", "set", "a", "--set", "compression=zstd", "--set", "hold_for_cursors=no")
    info = cli.json("namespace", "info", "a/b")
    effective = info["effective"]
    assert isinstance(effective, dict) and info["streams"] == 0
    assert (effective["compression"], effective["hold_for_cursors"]) == ("zstd", False)
    assert (effective["roll_bytes"], effective["ack_quorum"]) == (1 << 20, 2)
    cli("namespace", "set", "a/b", "--inherit", "roll_bytes")
    assert cli.json("namespace", "info", "a/b")["policy"] == {"roll_age_s": 7200.0}
    text = cli("namespace", "info", "a/b")
    assert "roll_age_s             7200.0       set here" in text and "default" in text
    assert cli("namespace", "list") == "a\n"
    assert cli("namespace", "list", "-r") == "a\na/b\n"
    assert cli("namespace", "rename", "a/b", "c") == "a/c\n"
    assert cli.json("namespace", "list", "a") == {"namespaces": ["a/c"]}
    assert "a" in cli.fails("namespace", "delete", "a", "--yes")
    cli("namespace", "delete", "a", "-r", "-y")
    assert cli("namespace", "list") == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["namespace", "create", "x", "--set", "size=3"], "a policy has ensemble, write_quorum"),
        (["namespace", "create", "x", "--set", "roll_bytes=3 apples"], "roll_bytes"),
        (["namespace", "create", "x", "--set", "ensemble=2"], "quorum"),
        (["namespace", "create", "x", "--set", "digest=md5"], "digest"),
        (["namespace", "create", ".x"], "does not begin"),
        (["namespace", "set", "x"], "nothing to change"),
        (["stream", "info", "/"], "is no stream"),
        (["stream", "read", "shop/orders", "--payload", "--json"], "give one of them"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    cli: Cli, words: list[str], says: str
) -> None:
    assert says in cli.fails(*words, code=2)


def test_a_stream_without_a_namespace_is_said_to_be_in_the_root(cli: Cli) -> None:
    cli("stream", "create", "typo")
    assert "typo: created in the root, since no namespace was given" in cli.err
    cli("stream", "delete", "typo", "--yes")


def test_lines_are_appended_and_again_only_those_that_are_missing(cli: Cli) -> None:
    cli("namespace", "create", "lines", "--exist-ok")
    assert "no stream" in cli.fails("stream", "append", "lines/a", stdin=b"x\n")
    assert cli("stream", "append", "lines/a", "--create", "--resume", stdin=b"one\n\nthree") == (
        "1.0.2\n"
    )
    assert cli.err == "lines/a: 3 records, 8 B appended\n"
    found = cli.json("stream", "append", "lines/a", "--resume", stdin=b"one\n\nthree\nfour\n")
    assert (found["records"], found["passed_over"], found["last_txid"]) == (1, 3, 4)
    assert found["last_dlsn"] == "2.0.0"
    info = cli.json("stream", "info", "lines/a")
    assert (info["records"], info["segments"], info["sealed"]) == (4, 2, False)
    cli("stream", "set", "lines/a", "--set", "roll_bytes=5MiB")
    assert ["roll_bytes", "5242880", "set", "here", "5.0", "MiB"] in [
        line.split() for line in cli("stream", "info", "lines/a").splitlines()
    ]
    assert cli("stream", "seal", "lines/a", "-y") == "2.0.0\n"
    assert "has ended" in cli.fails("stream", "append", "lines/a", stdin=b"x")


def _append(uri: str, name: str, payload: bytes) -> None:
    with (
        fastbk.sync.connect(uri) as client,
        client.namespace("resumed").stream(name).writer() as writer,
    ):
        writer.append(payload)


def test_resume_is_refused_where_others_have_appended(cli: Cli, cluster: LocalCluster) -> None:
    """A line's number says nothing of who has used it as a transaction id."""
    cli("namespace", "create", "resumed", "--exist-ok")
    lines = [b"%d\n" % one for one in range(1, 9)]
    cli("stream", "append", "resumed/a", "--create", "--resume", stdin=b"".join(lines[:5]))
    _append(cluster.metadata_uri, "a", b"by another")
    said = cli.fails("stream", "append", "resumed/a", "--resume", stdin=b"".join(lines), code=2)
    assert "line 6 is not its last record" in said and "Nothing was appended" in said
    assert cli.json("stream", "info", "resumed/a")["records"] == 6
    # The other way round, where the lines are the same: a first attempt without it.
    cli("stream", "append", "resumed/b", "--create", stdin=b"x\nx\n")
    said = cli.fails("stream", "append", "resumed/b", "--resume", stdin=b"x\nx\nx\n", code=2)
    assert "number 2 and has the transaction id 1" in said
    # A stream that is longer than the input, which is another one or was cut.
    cli("stream", "append", "resumed/c", "--create", "--resume", stdin=b"".join(lines))
    said = cli.fails("stream", "append", "resumed/c", "--resume", stdin=b"new\n", code=2)
    assert "no line has the transaction id of its last record, 8" in said
    assert (
        cli.json("stream", "append", "resumed/c", "--resume", stdin=b"".join(lines))["passed_over"]
        == 8
    )
    assert cli.json("stream", "append", "resumed/c", "--resume")["records"] == 0, (
        "no lines, nothing to tell"
    )


def test_a_producers_lines_are_resumed_whoever_else_appends(cli: Cli) -> None:
    """README's order of commands: `--resume`, others, more lines with `--resume`."""
    cli("namespace", "create", "produced", "--exist-ok")
    words = ("stream", "append", "produced/a", "--producer")
    assert cli(*words, "import", "--create", "--resume", stdin=b"1\n2\n3\n") == "1.1.2\n"
    found = cli.json(*words, "other", stdin=b"x\ny\n")
    assert (found["producer"], found["last_number"]) == ("other", 2)
    found = cli.json(*words, "import", "--resume", stdin=b"1\n2\n3\n4\n5\n")
    assert (found["records"], found["passed_over"], found["last_number"]) == (2, 3, 5)
    said = cli.fails(*words, "import", "--resume", stdin=b"6\n7\n", code=2)
    assert "lines up to 5 of producer import" in said and "another name" in said
    # A first attempt without it has numbered its lines in the same way.
    found = cli.json(*words, "other", "--resume", stdin=b"x\ny\nz\n")
    assert (found["records"], found["passed_over"]) == (1, 2)
    text = cli("stream", "read", "produced/a", "--payload")
    assert text.split() == ["1", "2", "3", "x", "y", "4", "5", "z"]
    lines = cli("stream", "read", "produced/a", "--json").encode()
    found = cli.json(*words, "copy", "--json-lines", "--resume", stdin=lines)
    assert (found["records"], found["last_number"]) == (8, 7)
    assert cli.json(*words, "copy", "--json-lines", "--resume", stdin=lines)["passed_over"] == 8
    said = cli.fails(*words, "copy", "--json-lines", "--resume", code=2,
                     stdin=b'{"payload": "a", "txid": 8}\n{"payload": "b", "txid": 8}\n')  # fmt: skip
    assert "line 2" in said and "1 record, 1 B appended before it" in said
    assert "printable text" in cli.fails(*words, "~a", stdin=b"", code=2)
    said = cli.fails("stream", "append", "produced/a", stdin=b"x\n", code=2)
    assert "producers" in said


def test_several_processes_append_lines_at_once(cli: Cli) -> None:
    cli("namespace", "create", "produced", "--exist-ok")
    cli("stream", "create", "produced/b")
    text = "".join(f"{number}\n" for number in range(1, 2001))
    words = ("stream", "append", "produced/b", "--producer")
    running = [cli.start(*words, name) for name in ("a", "b", "c")]
    with ThreadPoolExecutor(len(running)) as pool:
        list(pool.map(lambda process: process.communicate(text), running))
    assert [process.returncode for process in running] == [0, 0, 0]
    assert cli("stream", "read", "produced/b", "--payload").split().count("2000") == 3
    assert cli.json(*words, "d", stdin=b"")["records"] == 0


def test_lines_of_json_are_resumed_only_behind_the_last_record(
    cli: Cli, cluster: LocalCluster
) -> None:
    cli("namespace", "create", "resumed", "--exist-ok")
    words = ("stream", "append", "resumed/j", "--json-lines", "--resume")
    cli(*words, "--create", stdin=b'{"payload": "a", "txid": 10}\n{"payload": "b", "txid": 20}\n')
    found = cli.json(*words, stdin=b'{"payload": "c", "txid": 30}\n')
    assert (found["records"], found["passed_over"]) == (1, 0), (
        "the next part, which begins behind all"
    )
    same = b'{"payload": "c", "txid": 30}\n{"payload": "d", "txid": 30}\n{"payload": "e", "txid": 40}\n'
    assert "line 2: it has the txid of the line before, 30" in cli.fails(*words, stdin=same, code=2)
    _append(cluster.metadata_uri, "j", b"by another")
    said = cli.fails(
        *words, stdin=b'{"payload": "c", "txid": 30}\n{"payload": "d", "txid": 31}\n', code=2
    )
    assert "line 2 is not its last record" in said


def test_a_line_that_cannot_be_appended_is_named_and_those_before_it_stay(cli: Cli) -> None:
    cli("namespace", "create", "large", "--exist-ok")
    lines = b"one\ntwo\n" + bytes(8 << 20) + b"\nfour\n"
    said = cli.fails("stream", "append", "large/a", "--create", stdin=lines, code=2)
    assert "line 3: " in said and "2 records, 6 B appended before it" in said
    assert cli("stream", "read", "large/a", "--payload") == "one\ntwo\n"
    for bad, text in (
        (b'{"payload": "", "headers": {"a": "b"}}', "headers must be a list"),
        (b'{"payload": "", "headers": ["a"]}', "headers must be a list"),
        (
            b'{"payload": "", "headers": [{"name": "\\ud800", "value": ""}]}',
            "surrogates not allowed",
        ),
    ):
        said = cli.fails(
            "stream", "append", "large/a", "--json-lines", stdin=b'{"payload": "x"}\n' + bad, code=2
        )
        assert "line 2: " in said and text in said
    assert cli.json("stream", "info", "large/a")["records"] == 5


def test_lines_of_json_carry_keys_headers_and_ids(cli: Cli) -> None:
    cli("namespace", "create", "lines", "--exist-ok")
    cli("stream", "create", "lines/j", "lines/k")
    text = b'{"payload": "a", "txid": 7, "key_base64": "/w==", "headers": [{"name": "n", "value": "v"}]}\n'
    found = cli.json("stream", "append", "lines/j", "--json-lines", stdin=text)
    assert (found["records"], found["last_txid"]) == (1, 7)
    again = cli.json("stream", "append", "lines/j", "--json-lines", "--resume", stdin=text)
    assert (again["records"], again["passed_over"]) == (0, 1)
    bad = cli.fails("stream", "append", "lines/j", "--json-lines", code=2, stdin=text + b"[]\n")
    assert "line 2: a line must be an object" in bad
    assert "transaction id 3" in cli.fails(
        "stream", "append", "lines/j", "--json-lines", stdin=b'{"payload": "", "txid": 3}'
    )


def test_streams_are_listed_renamed_and_deleted(cli: Cli) -> None:
    cli("namespace", "create", "many/below")
    assert cli("stream", "list", "many") == "" and "no streams here" in cli.err
    cli("stream", "create", "many/b", "many/a", "many/below/c")
    assert "already" in cli.fails("stream", "create", "many/a")
    cli("stream", "append", "many/a", stdin=b"1\n2\n3\n")
    lines = cli("stream", "list", "many", "-r").splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["stream", "segments", "records"], ["many/a", "1", "3"], ["many/b", "0", "0"],
        ["many/below/c", "0", "0"]]  # fmt: skip
    assert cli.json("stream", "rename", "many/a", "z") == {"stream": "many/z"}
    cli("stream", "delete", "many/z", "many/b", "-y")
    assert cli.json("stream", "list", "many") == {"streams": []}
    assert "no stream many/z" in cli.fails("stream", "delete", "many/z", "-y")


def test_records_are_read_from_anywhere_as_text_payload_or_json(cli: Cli) -> None:
    cli("namespace", "create", "read", "--exist-ok")
    lines = "".join(f"line {at}\n" for at in range(100)).encode()
    cli("stream", "append", "read/a", "--create", "--resume", stdin=lines)
    assert cli("stream", "read", "read/a", "--payload").encode() == lines
    assert cli("stream", "read", "read/a", "--max", "1") == "1.0.0\tline 0\n"
    at_ten = cli("stream", "read", "read/a", "--from", "seq:10", "--to", "txid:13")
    assert [line.split("\t")[1] for line in at_ten.splitlines()] == ["line 10", "line 11"]
    dlsn = at_ten.partition("\t")[0]
    (record,) = cli("stream", "read", "read/a", "--from", dlsn, "--max", "1", "--json").splitlines()
    found = json.loads(record)
    assert (found["dlsn"], found["seq"], found["txid"], found["payload"]) == (
        dlsn,
        10,
        11,
        "line 10",
    )
    assert cli("stream", "read", "read/a", "--from", f"time:{found['time']}") != ""
    assert cli("stream", "read", "read/a", "--from", "latest") == ""
    assert "is no position" in cli.fails("stream", "read", "read/a", "--from", "soon", code=2)
    assert "is no time" in cli.fails("stream", "read", "read/a", "--from", "time:noon", code=2)
    assert "no stream" in cli.fails("stream", "read", "read/none")


def test_what_is_read_as_json_can_be_appended_to_another_stream(cli: Cli) -> None:
    cli("namespace", "create", "copy", "--exist-ok")
    text = (
        b'{"payload_base64": "/wA=", "txid": 7, "key": "k", "headers": [{"name": "n", "value": ""}]}\n'
        b'{"payload": "two\\nlines", "txid": 9, "key_base64": "/w=="}\n'
    )
    cli("stream", "append", "copy/a", "--create", "--json-lines", stdin=text)
    lines = cli("stream", "read", "copy/a", "--json")
    cli("stream", "append", "copy/b", "--create", "--json-lines", stdin=lines.encode())
    again = cli("stream", "read", "copy/b", "--json")
    kept = ("dlsn", "seq", "txid", "payload", "payload_base64", "key", "key_base64", "headers")
    for ours, theirs in zip(again.splitlines(), lines.splitlines(), strict=True):
        one, other = json.loads(ours), json.loads(theirs)
        assert [one.get(name) for name in kept] == [other.get(name) for name in kept]


def test_tail_begins_with_the_last_and_ends_with_the_stream(cli: Cli) -> None:
    cli("namespace", "create", "tail", "--exist-ok")
    cli("stream", "append", "tail/a", "--create", stdin=b"1\n2\n3\n4\n")
    assert cli("stream", "tail", "tail/a", "-n", "3", "--max", "3", "--payload") == "2\n3\n4\n"
    tailing = cli.start("stream", "tail", "tail/a", "-n", "1", "--payload")
    assert tailing.stdout is not None
    assert tailing.stdout.readline() == "4\n"
    cli("stream", "append", "tail/a", stdin=b"5\n")
    assert tailing.stdout.readline() == "5\n"
    assert json.loads(cli("stream", "info", "tail/a", "--json"))["last_visible_seq"] == 4
    cli("stream", "seal", "tail/a", "-y")
    assert tailing.communicate(timeout=30)[0] == "" and tailing.returncode == 0


def test_lines_are_appended_when_they_come_not_when_the_input_ends(cli: Cli) -> None:
    cli("namespace", "create", "live", "--exist-ok")
    cli("stream", "create", "live/a")
    tailing = cli.start("stream", "tail", "live/a", "--payload")
    appending = cli.start("stream", "append", "live/a")
    assert tailing.stdout is not None and appending.stdin is not None
    for at in range(3):
        appending.stdin.write(f"{at}\n")
        appending.stdin.flush()
        assert tailing.stdout.readline() == f"{at}\n"
    appending.communicate(timeout=30)
    assert appending.returncode == 0
    waiting = cli.start("stream", "append", "live/a")
    wait_until(lambda: cli.json("stream", "info", "live/a")["epoch"] == 2, "another writer")
    for process, code, said in ((waiting, 130, "fastbk: interrupted\n"), (tailing, 130, "")):
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[1] == said, "a tail's usual end is Ctrl-C"
        assert process.returncode == code


def test_info_tells_how_far_readers_are_behind(cli: Cli, cluster: LocalCluster) -> None:
    cli("namespace", "create", "behind")
    cli("stream", "append", "behind/a", "--create", stdin=b"one\ntwo\nthree\n")
    assert cli.json("stream", "info", "behind/a")["cursors"] == []
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        second = client.namespace("behind").stream("a").get(AtSeq(1)).dlsn
        marks = client.namespace("").marks("to-parquet", {"by": "spark"})
        assert marks.move({"behind/a": (second, 1)}) == {}
    (found,) = cli.json("stream", "info", "behind/a")["cursors"]  # type: ignore[misc]
    assert (found["cursor"], found["mark"], found["by"]) == ("to-parquet", str(second), "spark")
    assert (found["backlog"], found["backlog_bytes"] > 0) == (2, True)
    assert 0 < found["oldest_ms"] < 120_000
    assert 0 <= found["moved_ms_ago"] <= found["oldest_ms"]
    *_, title, header, line = cli("stream", "info", "behind/a").splitlines()
    assert (title, header.split()[:4]) == ("cursors", ["cursor", "mark", "behind", "oldest"])
    assert "2 records" in line and "a query of Spark's, planned" in line


def test_cursors_are_listed_and_deleted(cli: Cli, cluster: LocalCluster) -> None:
    cli("namespace", "create", "held", "--exist-ok")
    cli("stream", "append", "held/a", "--create", stdin=b"1\n2\n3\n")
    assert cli("stream", "cursors", "held/a") == "" and "has no cursors" in cli.err
    with (
        fastbk.sync.connect(cluster.metadata_uri) as client,
        client.namespace("held").stream("a").cursor("mail") as cursor,
    ):
        cursor.ack(next(iter(cursor)))
    header, mail = cli("stream", "cursors", "held/a").splitlines()
    assert header.split("  ")[0] == "cursor"
    for name, value in {"mark": "1.0.1", "behind": "2 records", "data": "held"}.items():
        at = header.index(name)
        assert mail[at:].startswith(value), name
    assert mail.startswith("mail ")
    (found,) = cli.json("stream", "cursors", "held/a")["cursors"]  # type: ignore[misc]
    assert (found["cursor"], found["mark_seq"], found["backlog"]) == ("mail", 1, 2)
    assert cli.json("stream", "cursors", "held/a", "--delete", "mail", "-y") == {"deleted": "mail"}
    assert "has no cursor mail" in cli.fails(
        "stream", "cursors", "held/a", "--delete", "mail", "-y"
    )


def test_a_cursor_is_rewound_after_a_bad_deployment(cli: Cli, cluster: LocalCluster) -> None:
    cli("namespace", "create", "rewind")
    cli(
        "stream", "append", "rewind/a", "--create", stdin=b"".join(b"%d\n" % at for at in range(10))
    )
    cursors = ("stream", "cursors", "rewind/a")
    assert (
        cli(*cursors, "--create", "bill", "--to", "seq:2", "--no-hold", "--expire-after", "7d")
        == "1.0.2\n"
    )
    (found,) = cli.json(*cursors)["cursors"]  # type: ignore[misc]
    assert (found["mark_seq"], found["holds"], found["expires_at_us"] > 0) == (2, False, True)
    assert "has a cursor bill already" in cli.fails(*cursors, "--create", "bill")
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        stream = client.namespace("rewind").stream("a")
        with stream.cursor("bill", tail=False) as bad:
            done = list(bad)
            assert [one.value for one in done] == [b"%d" % at for at in range(2, 10)]
            bad.ack(done[5]).result()
            code, would, _ = cli.answer(*cursors, "--move", "bill", "--back", "3", "--dry-run")
            assert code == 0 and would["mark_seq"] == 5
            assert "(3 records delivered again); its holder is fenced" in would["action"]
            assert "--yes" in cli.fails(*cursors, "--move", "bill", "--back", "3", code=2), (
                "nobody can be asked"
            )
            moved = cli.json(*cursors, "--move", "bill", "--back", "3", "--yes")
            assert (moved["moved"], moved["from_seq"], moved["mark_seq"]) == ("bill", 8, 5)
            bad.ack(done[6])
            with pytest.raises(fastbk.CursorFenced):
                bad.flush()
            bad.abort()
        with stream.cursor("bill", tail=False) as good:
            assert [one.seq for one in good] == [5, 6, 7, 8, 9]
            good.abort()
        time = stream.get(AtSeq(0)).time.isoformat()
    for word, seq in (
        ("earliest", 0),
        ("latest", 10),
        (f"time:{time}", 0),
        ("seq:4", 4),
        ("1.0.7", 7),
        ("seq:99", 10),
    ):
        assert cli.json(*cursors, "--move", "bill", "--to", word, "-y")["mark_seq"] == seq, word
    assert cli.json(*cursors, "--move", "bill", "--back", "99", "-y")["mark_seq"] == 0
    assert "never delivered" in cli(*cursors, "--move", "bill", "--to", "latest", "--dry-run")
    assert "behind the end" in cli.fails(*cursors, "--move", "bill", "--to", "5.0.0", "-y", code=2)
    assert "no cursor x" in cli.fails(*cursors, "--move", "x", "--to", "latest", "-y")
    for wrong in (
        ("--move", "bill"), ("--move", "bill", "--to", "latest", "--back", "1"), ("--back", "1"), ("--to", "latest"),
        ("--move", "bill", "--back", "0"), ("--no-hold",),
        ("--create", "b", "--expire-after", "soon"),
    ):  # fmt: skip
        cli.fails(*cursors, *wrong, "-y", code=2)
    (found,) = cli.json(*cursors)["cursors"]  # type: ignore[misc]
    assert (found["cursor"], found["mark_seq"]) == ("bill", 0), (
        "what was refused has changed nothing"
    )


def test_the_mark_of_a_query_of_spark_is_not_moved(cli: Cli, cluster: LocalCluster) -> None:
    cli("namespace", "create", "query")
    cli("stream", "append", "query/a", "--create", stdin=b"one\ntwo\n")
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        second = client.namespace("query").stream("a").get(AtSeq(1)).dlsn
        assert client.namespace("").marks("q", {"by": "spark"}).move({"query/a": (second, 1)}) == {}
    said = cli.fails(
        "stream", "cursors", "query/a", "--move", "q", "--to", "earliest", "-y", code=2
    )
    assert "in its checkpoint" in said


def test_a_stream_is_truncated_at_a_position(cli: Cli) -> None:
    cli("namespace", "create", "cut", "--exist-ok")
    cli("stream", "append", "cut/a", "--create", stdin=b"1\n2\n3\n")
    assert cli("stream", "truncate", "cut/a", "--before", "seq:1", "-y") == "1.0.1\n"
    assert cli.json("stream", "truncate", "cut/a", "--before", "1.0.0", "-y")["trim"] == "1.0.1"
    assert cli("stream", "read", "cut/a", "--payload") == "2\n3\n"
    assert "1.0.1" in cli.fails("stream", "read", "cut/a", "--from", "1.0.0")
    assert "nothing lies before" in cli.fails(
        "stream", "truncate", "cut/a", "--before", "earliest", code=2
    )


def test_a_policy_is_told_in_words_with_where_each_value_is_from(cli: Cli) -> None:
    cli("namespace", "create", "words", "--set", "roll_bytes=64MiB")
    cli("stream", "create", "words/a", "--set", "retention_age=7d")
    for info in (cli("namespace", "info", "words"), cli("stream", "info", "words/a")):
        lines = {line.split()[0]: line.split()[1:] for line in info.splitlines()}
        assert lines["roll_age_s"] == ["7200.0", "default", "2", "h"]
        assert lines["hard_bytes"] == ["0", "default", "no", "limit"]
        assert lines["roll_bytes"][-2:] == ["64.0", "MiB"]
        origin = "set here" if "namespace  words" in info else "from words"
        assert lines["roll_bytes"][1:3] == origin.split()
        assert lines["ensemble"] == ["3", "default"]
    assert lines["retention_age_s"] == ["604800.0", "set", "here", "7", "d"]
    assert "7d" in cli.fails("stream", "set", "words/a", "--set", "roll_age=soon", code=2)


def test_what_is_visible_is_counted_in_open_and_truncated_streams(cli: Cli) -> None:
    cli("namespace", "create", "seen", "--exist-ok")
    cli("stream", "create", "seen/a")
    assert cli.json("stream", "info", "seen/a")["visible_records"] == 0
    cli("stream", "append", "seen/a", stdin=b"1\n2\n3\n")
    cli("stream", "truncate", "seen/a", "--before", "seq:1", "-y")
    with cli.start("stream", "append", "seen/a") as appending:
        assert appending.stdin is not None
        appending.stdin.write("4\n")
        appending.stdin.flush()
        wait_until(
            lambda: cli.json("stream", "info", "seen/a")["visible_records"] == 3, "it is visible"
        )
        appending.communicate(timeout=30)


def test_messages_name_what_is_meant_and_what_to_do(cli: Cli) -> None:
    assert cli.fails("stream", "create", "absent/a").endswith(
        "there is no namespace absent: create it first\n"
    )
    assert "absent is not there" in cli.fails("namespace", "info", "absent/below")
    cli("namespace", "create", "told", "--exist-ok")
    assert "or see `fastbk stream list told`" in cli.fails("stream", "read", "told/a")
    assert "one of earliest" in cli.fails("stream", "read", "told/a", "--from", "foo", code=2)
    cli("stream", "append", "told/a", "--create", stdin=b"1\n2\n")
    cli("stream", "seal", "told/a", "-y")
    assert "told/a has ended" in cli.fails("stream", "append", "told/a", stdin=b"3\n")
    cli("stream", "truncate", "told/a", "--before", "seq:1", "-y")
    cli("stream", "read", "told/a", "--from", "1.0.0", "--on-gap", "tell")
    assert "up to 1.0.1 were truncated" in cli.err
    cli("stream", "delete", "told/a", "-y")
    assert cli.err == "", "what goes as it should is no line of a log"


def test_a_stream_over_its_quota_by_the_commands(cli: Cli) -> None:
    cli("namespace", "create", "quota/eu", "--set", "bytes_max=1000")
    lines = b"a line of some bytes\n" * 100
    cli("stream", "append", "quota/eu/orders", "--create", stdin=lines)

    cli("janitor", "--once")
    told = cli.fails("stream", "append", "quota/eu/orders", stdin=lines)
    assert "namespace quota/eu has" in told and "of 1,000" in told and "raise bytes_max" in told
    words = ("stream", "append", "quota/eu/many", "--create", "--producer", "a")
    said = cli.fails(*words, stdin=lines)
    assert "namespace quota/eu has" in said and "raise bytes_max" in said
    assert cli("stream", "read", "quota/eu/orders").count("a line of some bytes\n") == 100
    assert "of 1,000, as the janitor counted last" in cli("namespace", "info", "quota/eu")
    cli("stream", "truncate", "quota/eu/orders", "--before", "latest", "-y")
    sealed = cli.json("stream", "seal", "quota/eu/orders", "-y")
    assert sealed["sealed"] is True and sealed["last_dlsn"]
    assert cli.json("stream", "info", "quota/eu/orders")["sealed"] is True
