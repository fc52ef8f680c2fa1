"""The client library logs by the standard `logging`, writes nothing by itself, and applications decide."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.observe.library_log import LibraryLog
from tests.style.tree import ROOT

if TYPE_CHECKING:
    import pytest

EVENTS = """
from fastbk.errors import MetadataUnavailable
from fastbk.stream.opening import SegmentSlots
SegmentSlots().log_wait("shop/orders", MetadataUnavailable("away"))
"""
"""A real event of the library: a warning."""


def said_by(program: str, **environment: str) -> str:
    """Run a program of an application's, and return its stderr."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    return run.stderr


def test_nothing_is_written_unless_the_application_configures_logging() -> None:
    assert said_by(EVENTS, FASTBK_LOG_LEVEL="debug", FASTBK_LOG_STYLE="text") == ""


def test_basic_configuration_shows_a_readable_line() -> None:
    said = said_by("import logging\nlogging.basicConfig()\n" + EVENTS)
    assert said == (
        "WARNING:fastbk.stream:stream.segment_waits stream=shop/orders reason=away others=0\n"
    )


def test_the_application_can_silence_it() -> None:
    program = "import logging\nlogging.basicConfig()\n"
    for name in ("fastbk.stream", "fastbk"):
        program += f"log = logging.getLogger({name!r})\nlog.setLevel(logging.CRITICAL)\n"
        program += EVENTS + "log.setLevel(logging.NOTSET)\n"
    assert said_by(program) == ""


def test_fields_are_structured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "fastbk.test")
    log = LibraryLog("fastbk.test")
    log.debug("test.happened", ledger_id=7, reason="a b", name="taken", message=None)
    failed = OSError(5, "i/o")
    log.error("test.failed", failed=failed)
    first, second = caplog.records
    assert (first.name, first.levelname, first.getMessage()) == (
        "fastbk.test",
        "DEBUG",
        'test.happened ledger_id=7 reason="a b" name=taken message=null',
    )
    told = vars(first)
    assert (told["event"], told["ledger_id"], told["reason"]) == ("test.happened", 7, "a b")
    assert told["fields"] == {"ledger_id": 7, "reason": "a b", "name": "taken", "message": None}
    assert Path(first.pathname) == Path(__file__), "the line is the caller's"
    assert second.exc_info is not None and second.exc_info[1] is failed


def test_a_level_that_is_off_costs_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("it was formatted")

    monkeypatch.setattr(logging.getLogger("fastbk.test"), "level", logging.WARNING)
    LibraryLog("fastbk.test").info("test.happened", value=Unprintable())


def test_commands_and_servers_write_the_events_as_lines_of_their_own_log() -> None:
    forward = """
        from fastbk.observe import library_log, logs
        logs.configure(level="info")
        logs.bind(role="tool")
        library_log.forward()
        library_log.forward()
        library_log.LibraryLog("fastbk.stream").debug("test.hidden")
        try:
            raise OSError("disk")
        except OSError as error:
            library_log.LibraryLog("fastbk.stream").error("test.failed", failed=error, name="n")
        import logging
        logging.getLogger("fastbk.other").warning("plain %d", 7)
    """
    said = said_by(textwrap.dedent(forward) + EVENTS, FASTBK_LOG_STYLE="json")
    failed, plain, waits = (json.loads(line) for line in said.splitlines())
    assert (failed["event"], failed["level"], failed["role"]) == ("test.failed", "error", "tool")
    assert failed["name"] == "n" and "OSError: disk" in failed["traceback"]
    assert (plain["level"], plain["logger"], plain["message"]) == (
        "warning",
        "fastbk.other",
        "plain 7",
    )
    assert (waits["event"], waits["stream"]) == ("stream.segment_waits", "shop/orders")


def test_a_command_shows_warnings_and_nothing_less(tmp_path: Path) -> None:
    """A command runs the library in its own process: the event comes from within its call."""
    program = f"""
        import sys, types
        from fastbk.cli import __main__ as cli
        command = types.ModuleType("fastbk.cli.config")
        command.add_arguments = lambda parser: None
        def run(options):
            exec({EVENTS!r})
            from fastbk.observe.library_log import LibraryLog
            LibraryLog("fastbk.stream").info("test.hidden")
            return 0
        command.run = run
        sys.modules["fastbk.cli.config"] = command
        raise SystemExit(cli.main(["config"]))
    """
    said = said_by(program, FASTBK_LOG_STYLE="text")
    (line,) = said.splitlines()
    assert "warning" in line and "stream.segment_waits" in line and "stream=shop/orders" in line


def test_children_of_a_server_do_not_import_the_standard_module() -> None:
    said_by(
        """
        import sys
        import fastbk.server.child, fastbk.server.index.process, fastbk.server.journal.process
        found = [one for one in ("logging", "fastbk.observe.library_log") if one in sys.modules]
        assert not found, found
        """
    )
