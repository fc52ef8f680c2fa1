"""The phases of a tier: which tests run beside which, and that each that the tier wants runs once."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.assertion.rewrite import _read_pyc
from _pytest.mark.expression import Expression

import tests
from tests import __main__ as tiers
from tests import compiling

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MARKERS = ("slow", "service", "waits", "alone", "soak", "perf", "long")
UNWANTED = {
    "CI": {"soak", "perf", "long"},
    "FAST": {"soak", "perf", "long", "slow", "service"},
    "ALL": set(),
}


def titles_of(markers: set[str], phases: Sequence[tuple[str, list[str]]] = ()) -> list[str]:
    """The phases, of these or of the tier, that run a test with these markers."""
    return [
        title
        for title, arguments in phases or tiers.phases()
        if Expression.compile(arguments[arguments.index("-m") + 1]).evaluate(
            lambda name, **_: name in markers
        )
    ]


@pytest.mark.parametrize("name", UNWANTED)
def test_each_test_that_a_tier_wants_runs_in_one_phase(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in UNWANTED:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "1")
    wanted, phases = 0, tiers.phases()
    for chosen in product((False, True), repeat=len(MARKERS)):
        markers = {one for one, is_there in zip(MARKERS, chosen, strict=True) if is_there}
        # As conftest.py marks them: whatever is alone or waits starts services.
        if markers & {"alone", "waits"} and "service" not in markers:
            continue
        is_wanted = not markers & UNWANTED[name]
        wanted += is_wanted
        assert len(titles_of(markers, phases)) == is_wanted, markers
    assert wanted >= 1


def test_who_runs_beside_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in UNWANTED:
        monkeypatch.delenv(variable, raising=False)
    workers = {
        title: arguments[arguments.index("-n") + 1] if "-n" in arguments else "0"
        for title, arguments in tiers.phases()
    }
    assert titles_of({"slow"}) == titles_of(set()) == ["parallel"]
    assert int(workers["parallel"]) == (os.cpu_count() or 1) + 1
    assert workers[titles_of({"service"})[0]] == "2"
    for marker in ("waits", "alone"):
        assert titles_of({"service", marker}) != titles_of({"service"})
        assert workers[titles_of({"service", marker})[0]] == "0"
    monkeypatch.setenv("SERVICES", "3")
    assert "3" in next(arguments for title, arguments in tiers.phases() if title == "services")


@pytest.mark.parametrize("name", ["CI", "ALL"])
def test_each_phase_reads_the_files_of_its_tests(
    name: str, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    for variable in UNWANTED:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "1")
    given = {title: {*arguments} for title, arguments in tiers.phases()}
    root = pytestconfig.rootpath
    for path in sorted((root / "tests").rglob("test_*.py")):
        relative = path.relative_to(root)
        is_service = relative.parts[1] in tests.SERVICE_FOLDERS
        text = path.read_text("utf-8")
        wanted = {
            "services": is_service,
            "waiting": is_service and "pytest.mark.waits" in text,
            "parallel": not is_service or "pytest.mark.no_service" in text,
            "alone": is_service
            and ("pytest.mark.alone" in text or (name == "ALL" and "pytest.mark.soak" in text)),
        }
        for title in (title for title, is_wanted in wanted.items() if is_wanted):
            assert given[title] & {str(one) for one in (relative, *relative.parents)}, (title, path)


def test_what_measures_is_alone_and_what_starts_services_is_marked(
    pytestconfig: pytest.Config,
) -> None:
    from tests.conftest import pytest_collection_modifyitems as mark

    class Item:
        """What the marking asks of an item."""

        nodeid = "tests/unit/test_x.py::test_x"

        def __init__(self, place: str, *markers: str) -> None:
            self.path = pytestconfig.rootpath / "tests" / place / "test_x.py"
            self.markers = set(markers)

        def get_closest_marker(self, name: str) -> str | None:
            return name if name in self.markers else None

        def add_marker(self, name: str) -> None:
            self.markers.add(name)

    items = [
        Item("unit"),
        Item("unit", "soak"),
        Item("crash", "alone"),
        Item("crash"),
        Item("integration", "no_service"),
        Item("integration", "perf"),
    ]
    mark(items)  # type: ignore[arg-type]
    assert [one.markers for one in items] == [
        set(),
        {"soak"},
        {"alone", "service"},
        {"service"},
        {"no_service"},
        {"perf", "service", "alone"},
    ]
    for marker in ("alone", "service", "waits"):
        with pytest.raises(pytest.UsageError, match="test_x"):
            mark([Item("unit", marker)])  # type: ignore[arg-type, list-item]


def test_what_is_compiled_before_is_what_pytest_would_have_compiled(tmp_path: Path) -> None:
    """Else each process compiles it again, and says nothing of it."""
    source = tmp_path / "test_few.py"
    source.write_text("def test_few(): assert len([]) == 1")
    assert compiling.is_rewritten(source)
    code = _read_pyc(source, compiling.write_rewritten(source))
    assert code is not None
    parts: dict[str, object] = {}
    exec(code, parts)
    with pytest.raises(AssertionError, match="where 0 = len"):
        parts["test_few"]()  # type: ignore[operator]
    source.write_text("def test_few(): assert len([1]) == 0")
    assert _read_pyc(source, compiling.write_rewritten(source)) not in (None, code)


def test_all_that_tests_import_is_compiled_before() -> None:
    found = {
        path.relative_to(compiling.ROOT).as_posix()
        for path in compiling.sources(("unit", "fixtures"))
    }
    assert {
        "fastbk/version.py", "tests/conftest.py", "tests/fixtures/wait.py", "tests/unit/tools/test_runner.py",
    } <= found  # fmt: skip


# The rule by which failed tests are tried again: few, once, and a second failure counts.


PLAIN = [word for name in ("anyio", "hypothesispytest") for word in ("-p", f"no:{name}")]
"""Plugins that these runs need nothing of, and that take longer to load than the runs."""


@pytest.fixture
def phase(tmp_path: Path) -> tiers.Phase:
    """A phase in which tests have failed."""
    made = tiers.Phase("services", ["-m", "service"], tmp_path)
    made.code = tiers.EXIT_TESTS_FAILED
    return made


@pytest.mark.parametrize("second", [0, 1])
def test_few_failures_are_tried_once_more_and_the_second_result_counts(
    second: int, phase: tiers.Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(phases: Sequence[tiers.Phase]) -> None:
        asked.extend(one.arguments for one in phases)
        phase.code = second

    monkeypatch.setattr(tiers, "run_at_once", run)
    phase.failures.write_text("tests/a.py::test[x y]\ntests/b.py::test\n")
    tiers.second_try(phase)
    assert phase.code == second
    assert asked == [["tests/a.py::test[x y]", "tests/b.py::test"]]


@pytest.mark.parametrize("count", [0, tiers.SECOND_TRIES_MAX + 1])
def test_many_failures_and_unknown_ones_fail_at_once(
    count: int, phase: tiers.Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "run_at_once", lambda _: pytest.fail("tried again"))
    phase.failures.write_text("".join(f"tests/a.py::test{n}\n" for n in range(count)))
    tiers.second_try(phase)
    assert phase.code == tiers.EXIT_TESTS_FAILED


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one_process", "a_worker"])
def test_a_file_that_cannot_be_read_is_among_the_failures(
    workers: list[str], phase: tiers.Phase, tmp_path: Path
) -> None:
    """Else the second try of a test that failed beside it would pass the whole run."""
    (tmp_path / "test_unread.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "test_failed.py").write_text("def test_failed() -> None:\n    assert False\n")
    plugin = ["-q", "-p", "tests.conftest", "--continue-on-collection-errors"]
    phase.arguments = [*plugin, *workers, str(tmp_path)]
    tiers.run_at_once([phase])
    assert phase.code == tiers.EXIT_TESTS_FAILED
    failed = {name.rpartition("/")[2] for name in phase.failures.read_text().splitlines()}
    assert failed == {"test_failed.py::test_failed", "test_unread.py"}


@pytest.mark.slow
def test_two_phases_run_at_once_print_one_after_the_other_and_keep_what_is_compiled(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    file = tmp_path / "test_few.py"
    file.write_text("def test_here() -> None: ...\n")
    first, second = phases = [
        tiers.Phase(title, [*PLAIN, "--co", "-q", f"{file}::{name}"], tmp_path)
        for title, name in [("services", "test_here"), ("parallel", "test_that_is_not_there")]
    ]
    tiers.run_at_once(phases)
    said = capfd.readouterr().out
    assert first.code == 0 and second.code not in (0, tiers.EXIT_TESTS_FAILED)
    assert said.index("1 test collected") < said.index("not found: ")
    assert list((tmp_path / "__pycache__").glob("test_few.*.pyc"))
    assert min(first.wall_s, second.wall_s, first.processor_s, second.processor_s) > 0.1
