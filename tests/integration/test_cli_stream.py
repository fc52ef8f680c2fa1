"""`fastbk namespace ...` and `fastbk stream ...` against a running cluster: JSON is JSON only, errors are one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fastbk.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        yield running


class Cli:
    def __init__(self, uri: str) -> None:
        self._environment = {**os.environ, "FASTBK_METADATA": uri}
        self.err = ""

    def __call__(self, *words: str, stdin: bytes = b"", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fastbk.cli", *words],
            input=stdin, capture_output=True, env=self._environment, check=False, timeout=60,
        )  # fmt: skip
        self.err = done.stderr.decode()
        assert done.returncode == code, self.err
        return done.stdout.decode()

    def json(self, *words: str, stdin: bytes = b"") -> dict[str, object]:
        answer: dict[str, object] = json.loads(self(*words, "--json", stdin=stdin))
        return answer

    def fails(self, *words: str, code: int = 1, stdin: bytes = b"") -> str:
        """Return the one line on stderr of what fails."""
        assert self(*words, code=code, stdin=stdin) == ""
        assert self.err.startswith("fastbk: ") and self.err.count("\n") == 1, self.err
        return self.err


@pytest.fixture
def cli(cluster: LocalCluster) -> Cli:
    return Cli(cluster.metadata_uri)


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
    assert "roll_age_s         7200.0       set here" in text and "inherited" in text
    assert cli("namespace", "list") == "a\n"
    assert cli("namespace", "list", "-r") == "a\na/b\n"
    assert cli("namespace", "rename", "a/b", "c") == "a/c\n"
    assert cli.json("namespace", "list", "a") == {"namespaces": ["a/c"]}
    assert "a" in cli.fails("namespace", "delete", "a")
    cli("namespace", "delete", "a", "-r")
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
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    cli: Cli, words: list[str], says: str
) -> None:
    assert says in cli.fails(*words, code=2)


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
    assert "roll_bytes=5242880" in cli("stream", "info", "lines/a")
    assert cli("stream", "seal", "lines/a") == "2.0.0\n"
    assert "has ended" in cli.fails("stream", "append", "lines/a", stdin=b"x")


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
    cli("stream", "delete", "many/z", "many/b")
    assert cli.json("stream", "list", "many") == {"streams": []}
    assert "no stream many/z" in cli.fails("stream", "delete", "many/z")
