"""Apache BookKeeper's own tests, as Maven Central has them, against bookies of ours: see README.md.

`suite.txt` names the classes and, with reasons, what cannot apply. Each class runs in a Java of its own.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.compat.jars import BUILD, HERE, JAVA_OPTIONS, NotAvailable, Programs, programs
from tests.compat.java_cells import piped, serve
from tests.compat.results import Result
from tests.compat.rig import Rig
from tests.compat.suite_bookies import SuiteBookies

COLUMN = "apache's tests > ours"
MAIN = "fastbk.suite.Suite"
PACKAGE = "org.apache.bookkeeper."
CLASS_S_MAX = 2400.0


@dataclass
class TestClass:
    __test__ = False

    name: str
    """Without the common package."""
    excluded: dict[str, str] = field(default_factory=dict)
    """Test → why it cannot apply."""
    only: list[str] = field(default_factory=list)
    reason: str = ""
    """Why the whole class cannot apply; empty: it runs."""


def suite_tests(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Run the classes of suite.txt, or those whose names contain one of `only` (`Class#test`: that test alone)."""
    try:
        ours = programs("suite-pom.xml", "java-suite")
    except NotAvailable as error:
        yield Result(COLUMN, "suite", "skip", 0.0, f"its jars cannot be had: {error}")
        return
    listed = read_classes((HERE / "suite.txt").read_text())
    results: list[Result] = []
    if not only:
        results += _unlisted(ours, listed)
        yield from results
    for test_class in chosen(listed, only):
        if test_class.reason:
            results.append(Result(COLUMN, test_class.name, "skip", 0.0, test_class.reason))
            yield results[-1]
            continue
        for result in _run(rig.folder / "suite" / test_class.name, ours, test_class):
            results.append(result)
            yield result
    (BUILD / "suite.md").write_text(by_class(results) + "\n")


def read_classes(text: str) -> list[TestClass]:
    """Return what suite.txt lists. Raises ValueError on a line that has no reason where there has to be one."""
    classes: list[TestClass] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.strip().partition(" ")
        is_test = line.startswith(" ")
        if is_test and not (reason and classes):
            raise ValueError(f"no reason, or no class before it: {line}")
        if is_test:
            classes[-1].excluded[name] = reason.strip()
        else:
            classes.append(TestClass(name, reason=reason.strip()))
    return classes


def _unlisted(ours: Programs, listed: list[TestClass]) -> list[Result]:
    """Return a failure for each class that starts bookies and is not in suite.txt, and how many start none."""
    command = ours.command("fastbk.suite.Classes")
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    known = {PACKAGE + one.name for one in listed}
    found = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("CLASS")]
    missing = [name for name, has_bookies in found if has_bookies == "true" and name not in known]
    without = sum(has_bookies == "false" and name not in known for name, has_bookies in found)
    results = [Result(COLUMN, name, "fail", 0.0, "neither run nor left out") for name in missing]
    reason = f"{without} classes of Apache's jar start no cluster of bookies"
    return [*results, Result(COLUMN, "all others", "skip", 0.0, reason)]


def chosen(classes: list[TestClass], only: list[str]) -> list[TestClass]:
    """Return the classes that `only` asks for; all of them where it asks for nothing."""
    if not only:
        return classes
    found: dict[str, TestClass] = {}
    for word in only:
        part, _, test = word.partition("#")
        for one in classes:
            if part in one.name:
                found.setdefault(one.name, one)
                one.only += [test] if test else []
    return list(found.values())


def _run(folder: Path, ours: Programs, test_class: TestClass) -> Iterator[Result]:
    started_s = time.monotonic()
    folder.mkdir(parents=True)
    temporary = folder / "tmp"
    temporary.mkdir()
    arguments = [PACKAGE + test_class.name]
    arguments += [f"-{test}={reason}" for test, reason in test_class.excluded.items()]
    arguments += [f"+{test}" for test in test_class.only]
    options = (
        *JAVA_OPTIONS,
        f"-Djava.io.tmpdir={temporary}",
        "-Dzookeeper.admin.enableServer=false",
    )
    bookies = SuiteBookies(folder)
    with open(folder / "log", "ab") as log:
        command = ours.command(MAIN, *arguments, options=options)
        try:
            with piped(command, log, CLASS_S_MAX, temporary) as process:
                yield from serve(COLUMN, process, bookies.answers())
        finally:
            bookies.stop_all()
    if process.returncode not in (0, 1):
        took_s = time.monotonic() - started_s
        reason = f"its Java ended with {process.returncode}; see {folder / 'log'}"
        yield Result(COLUMN, test_class.name, "fail", took_s, reason)


def by_class(results: list[Result]) -> str:
    """Return a table in Markdown: how many tests of each class passed, failed and do not apply."""
    counts: dict[str, dict[str, int]] = {}
    for one in results:
        if one.column == COLUMN:
            row = counts.setdefault(one.name.partition("#")[0], {"pass": 0, "fail": 0, "skip": 0})
            row[one.verdict] += 1
    lines = ["| class | passed | failed | does not apply |", "|---|---|---|---|"]
    for name, row in counts.items():
        lines.append(f"| {name} | {row['pass']} | {row['fail']} | {row['skip']} |")
    return "\n".join(lines)
