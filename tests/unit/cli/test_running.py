"""--quiet, --timeout and --watch, colours, and what stands before a command."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastbk.cli import __main__ as cli
from fastbk.cli import terminal
from fastbk.cli.options import note, table
from fastbk.cli.progress import ProgressLine, rate_and_left
from fastbk.cli.terminal import fitting, repeated
from fastbk.errors import MetadataUnavailable
from fastbk.observe import logs

COMMAND = [sys.executable, "-m", "fastbk.cli"]


def sqlite(path: Path) -> str:
    """Make a cluster without bookies and return its URI."""
    from fastbk.meta import open_store

    uri = f"sqlite:{path}/metadata.sqlite"
    open_store(uri).close()
    return uri


def on_terminal(
    *words: str,
    seconds: float = 20.0,
    enough: Callable[[str], bool] = lambda _: False,
    **environment: str,
) -> tuple[int, str]:
    """Run a command on a terminal of its own, until its end or `enough`; return its exit code and what it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "LINES": "12", "COLUMNS": "60", **environment},
    )  # fmt: skip
    os.close(theirs)
    shown, is_ended = b"", False
    try:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the terminal has no other end any more
                break
            if not data:
                break
            shown += data
            if not is_ended and enough(shown.decode(errors="ignore")):
                is_ended = True
                process.send_signal(signal.SIGINT)
        return process.wait(seconds), shown.decode()
    finally:
        process.kill()
        os.close(ours)


def test_a_timeout_interrupts_a_wait_for_metadata() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/ledgers"
        words = ("ledger", "list", "--metadata", uri, "--timeout", "0.5")
        done = subprocess.run(
            [*COMMAND, *words], capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 75
    assert (
        done.stderr
        == "fastbk: not done within 0.5 s (--timeout): try again, or give it more time\n"
    )


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_time_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["ledger", "list", f"--timeout={text}"])
    assert ended.value.code == 2
    assert "is no number of seconds above 0" in capsys.readouterr().err


def test_watching_says_where_its_seconds_go(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bookie", "info", "--watch", "bookie-1"])
    assert "write --watch=5" in capsys.readouterr().err


def test_in_a_pipe_each_watched_answer_is_a_line_of_json(tmp_path: Path) -> None:
    words = ("cluster", "status", "--watch=0.1", "--json", "--metadata", sqlite(tmp_path))
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *words], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert all(json.loads(line)["is_well"] is False for line in [*lines, *out.splitlines()])
    assert process.returncode == 1  # the last answer's: no bookie is up
    assert "\x1b" not in "".join(lines) + out + err


def test_a_watched_error_is_an_answer_and_watching_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.configure()
    calls = []

    def run(_: argparse.Namespace) -> int:
        calls.append(len(calls))
        if len(calls) == 1:
            raise MetadataUnavailable("ZooKeeper is away")
        if len(calls) == 3:
            raise KeyboardInterrupt
        print("it is back")
        return 0

    assert repeated(run, argparse.Namespace(watch=0.01)) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("it is back\n", "fastbk: ZooKeeper is away\n")


def test_on_a_terminal_a_watched_answer_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    uri = sqlite(tmp_path)
    words = ("cluster", "status", "--watch=0.2", "--metadata", uri)
    code, shown = on_terminal(*words, enough=lambda shown: shown.count("\x1b[H") > 2)
    screens = shown.split("\x1b[H")[1:]
    assert code == 1, "the last answer's: no bookie is up"
    assert "every 0.2 s, now " in screens[0] and "bookies: none" in screens[1]
    assert re.search(r"now \d\d:\d\d:\d\dZ;", screens[0])
    assert "\x1b[31m\x1b[0m" not in "".join(screens), "no line for an error that there is not"


def test_a_screen_that_is_too_small_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [f"line {number}" for number in range(20)]
    shown = fitting(lines, 40, 10)
    assert shown[:8] == lines[:8] and len(shown) == 9
    assert shown[8].startswith("... 12 more lines") and len(shown[8]) == 40
    assert fitting(lines, 40, 21) == lines
    monkeypatch.setattr(terminal, "_has_colours", True)
    painted_line = terminal.painted("w" * 40, "down")
    assert fitting(["a" * 50, painted_line], 40, 10)[1].count("w") == 40


def test_colours_are_for_terminals_only(tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text("[bookie]\nlisten = '127.0.0.1:1'\n")
    words = ("config", "check", str(path))
    assert "\x1b[31mPROBLEM\x1b[0m" in on_terminal(*words)[1]
    missing = on_terminal("config", "check", str(tmp_path / "\x1b[31mred\x1b[0m.toml"))[1]
    assert "\\x1b[31mred\\x1b[0m.toml" in missing and "\x1b[31mred" not in missing, (
        "colours of others"
    )
    assert "\x1b" not in on_terminal(*words, NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal(*words, TERM="dumb")[1]
    piped = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert "PROBLEM" in piped.stdout and "\x1b" not in piped.stdout


def test_a_coloured_table_has_its_columns_where_a_plain_one_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [("bookie", "state", "disk"), ("b1", "up", "1"), ("b2", "read-only", "22")]
    plain = table(rows, "<<>")
    monkeypatch.setattr(terminal, "_has_colours", True)
    coloured = table(
        [rows[0], *((one, terminal.painted(state), disk) for one, state, disk in rows[1:])], "<<>"
    )
    assert coloured != plain and [terminal.plain(line) for line in coloured] == plain


def test_quiet_leaves_errors(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.configure(is_quiet=True)
    try:
        note("a message")
    finally:
        terminal.configure()
    assert capsys.readouterr().err == ""
    assert (
        cli.main(["--quiet", "ledger", "list", "--metadata", "sqlite:/nowhere/metadata.sqlite"])
        == 2
    )
    assert capsys.readouterr().err.startswith("fastbk: ")


def test_options_may_stand_before_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = sqlite(tmp_path)
    assert cli.main(["-q", "--timeout", "20", "ledger", "list", "--metadata", uri]) == 0
    with pytest.raises(SystemExit):
        cli.main(["--context", "a", "doctor"])
    assert "--context has no meaning for `fastbk doctor`" in capsys.readouterr().err


def test_a_log_line_does_not_stand_behind_progress(capfd: pytest.CaptureFixture[str]) -> None:
    terminal.configure()
    logs.configure("text", "info")
    line = ProgressLine()
    line._is_terminal = True
    line.at(lambda: "half of it")
    logs.warning("journal.slow")
    line.end()
    logs.warning("journal.slow")
    written = capfd.readouterr().err
    before, _, after = written.partition("half of it")
    assert before == "\r\x1b[K" and after.startswith("\r\x1b[K") and "journal.slow" in after
    assert "\x1b[K" not in after.rpartition("\r\x1b[K")[2]
    assert after.count("\r\x1b[K") == 2  # before the log line, and at the end


@pytest.mark.parametrize(
    ("done", "total", "spent_s", "text"),
    [
        (0, 100 << 20, 5.0, "0 B/s"),
        (10 << 20, 100 << 20, 5.0, "2.0 MiB/s, 45 s left"),
        (100 << 20, 100 << 20, 5.0, "20.0 MiB/s"),
        (5, 0, 1.0, "5 B/s"),
    ],
)
def test_progress_has_a_rate_and_the_time_left(
    done: int, total: int, spent_s: float, text: str
) -> None:
    assert rate_and_left(done, total, spent_s) == text
