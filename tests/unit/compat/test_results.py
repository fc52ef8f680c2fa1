"""`./dev compat` itself, as far as it needs neither Maven nor a JDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.compat.__main__ import run_part
from tests.compat.members import free_port
from tests.compat.python_side import payload
from tests.compat.results import Result, Results
from tests.compat.sections import chosen_sections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compat.rig import Rig


def results() -> Results:
    found = Results()
    found.add(Result("java v3 > ours", "append", "pass", 0.5))
    found.add(Result("java v2 > ours", "append", "fail", 0.5, "too few bookies"))
    found.add(Result("java v2 > ours", "force", "skip", 0.0, "v2 has none"))
    return found


def test_a_table_has_a_row_an_operation_and_a_column_a_direction(tmp_path: Path) -> None:
    found = results()
    assert found.table().splitlines() == [
        "| operation | java v3 > ours | java v2 > ours |",
        "|---|---|---|",
        "| append | ok | FAIL |",
        "| force |  | - |",
    ]
    found.write(tmp_path / "results.json")
    assert [one["verdict"] for one in json.loads((tmp_path / "results.json").read_text())] == [
        "pass",
        "fail",
        "skip",
    ]


def test_a_summary_says_why_something_failed_or_was_left_out() -> None:
    found = results()
    assert [one.column for one in found.failed] == ["java v2 > ours"]
    assert "1 passed, 1 failed, 1 do not apply" in found.summary()
    assert "append: too few bookies" in found.summary() and "force: v2 has none" in found.summary()


def test_parts_are_chosen_by_name_and_words_mean_cells() -> None:
    everything = chosen_sections({})
    assert len(chosen_sections({"PARTS": "java,kills"})) == 2
    assert len(chosen_sections({"ONLY": "lac"})) == 2 < len(everything)
    with pytest.raises(SystemExit, match="no such part: jav; there are: java, "):
        chosen_sections({"PARTS": "jav"})


def test_a_part_that_breaks_off_is_a_failure_and_keeps_what_it_had() -> None:
    def part(rig: Rig) -> Iterator[Result]:
        yield Result("java v3 > ours", "append", "pass", 0.5)
        raise TimeoutError(f"{rig}: it did not start")

    found = Results()
    run_part("conf", part, cast("Rig", "rig"), found)
    assert [(one.name, one.verdict) for one in found.all] == [
        ("append", "pass"),
        ("part conf", "fail"),
    ]
    assert found.failed[0].reason == "TimeoutError: rig: it did not start"


def test_ports_are_none_that_connections_are_given() -> None:
    """One of those may be taken before the bookie for which it was chosen is there."""
    words = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = {free_port() for _ in range(50)}
    assert not any(int(words[0]) <= port <= int(words[1]) for port in ports)
    assert len(ports) > 25


def test_payloads_are_those_of_the_java_programs() -> None:
    assert payload(3, 300) == bytes([47]) * 116
