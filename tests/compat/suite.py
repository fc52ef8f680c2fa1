"""Test classes that projects release, unmodified, against bookies of ours: see README.md.

A list (`suite.txt`, `distributedlog.txt`, ...) names a project's classes and, with reasons, what cannot apply. Each
class runs in a Java of its own. `build/compat/PART-ours.json` and `PART-apache.json` keep what each class that ran
whole came to: a table is made of several runs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compat.jars import BUILD, HERE, JAVA_OPTIONS, NotAvailable, Programs, programs
from tests.compat.java_cells import Answer, piped, serve
from tests.compat.results import Result
from tests.compat.rig import Cluster, Rig
from tests.compat.suite_bookies import SuiteBookies

CLASS_S_MAX = 2400.0
MOCK_BOOKIES = 3
CLASSES_OF_A_JAVA_MAX = 10
"""Of those with a mock of the client: most of what a short class costs is the start of its Java."""
MOCK_SECTION = "[with a mock of the client]"
"""Stands in a list above the classes that have one."""
VERDICTS = ("pass", "fail", "skip")
KINDS = {"ours": "fastbk's bookies", "apache": "Apache's bookies"}
Kept = dict[str, dict[str, int]]
"""Class → verdict → tests."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A project's test classes."""

    title: str
    classes: str
    """The file that lists them."""
    package: str
    """What all their names begin with."""
    found_in: str
    """A class of their jar."""
    bases: tuple[str, ...]
    """The classes that start bookies for those that extend them."""
    pom: str = "suite-pom.xml"
    sources: tuple[str, ...] = ("java-suite", "java-suite-bookkeeper")
    main: str = "fastbk.suite.Suite"
    java_options: tuple[str, ...] = ()
    """Beside the usual ones."""
    is_complete: bool = True
    """Whether the list must name every class that starts bookies."""


OPENED = (
    "java.lang",
    "java.io",
    "java.util",
    "sun.net",
    "jdk.internal.loader",
    "jdk.internal.platform",
)
_PULSAR: dict[str, Any] = {
    "pom": "pulsar-suite-pom.xml",
    "sources": ("java-suite", "java-suite-pulsar"),
    "main": "fastbk.suite.TestNgSuite",
    # As Pulsar's build runs them, with less memory.
    "java_options": (
        "-Xmx1g",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED),
        "--add-opens=java.management/sun.management=ALL-UNNAMED",
        "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    ),
}
SUITES = {
    "suite": Suite(
        title="apache's tests",
        classes="suite.txt",
        package="org.apache.bookkeeper.",
        found_in="org.apache.bookkeeper.client.BookKeeperTestClient",
        bases=("org.apache.bookkeeper.test.BookKeeperClusterTestCase",),
    ),
    "distributedlog": Suite(
        title="distributedlog's tests",
        classes="distributedlog.txt",
        package="org.apache.distributedlog.",
        found_in="org.apache.distributedlog.DLMTestUtil",
        bases=("org.apache.distributedlog.TestDistributedLogBase",),
    ),
    "managed-ledger": Suite(
        title="managed-ledger's tests",
        classes="managed-ledger.txt",
        package="org.apache.bookkeeper.mledger.",
        found_in="org.apache.bookkeeper.test.MockedBookKeeperTestCase",
        bases=(
            "org.apache.bookkeeper.test.BookKeeperClusterTestCase",
            "org.apache.bookkeeper.test.MockedBookKeeperTestCase",
        ),
        **_PULSAR,
    ),
    "pulsar-suite": Suite(
        title="pulsar's tests",
        classes="pulsar-suite.txt",
        package="org.apache.pulsar.",
        found_in="org.apache.pulsar.broker.auth.MockedPulsarServiceBaseTest",
        bases=("org.apache.pulsar.broker.service.BkEnsemblesTestBase",),
        is_complete=False,
        **_PULSAR,
    ),
}


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
    has_mock: bool = False
    """Whether it uses a mock of the client, which a client of a cluster replaces."""


def suite_tests(
    rig: Rig, name: str, only: list[str], *, kind: str = "ours", is_resumed: bool = False
) -> Iterator[Result]:
    """Run the classes of a suite's list, or those whose names contain one of `only` (`Class#test`: that test alone).

    kind: ours, or apache: with the classes that start Apache's bookies in the test's own process. is_resumed: without
    the classes of which no test failed in an earlier run.
    """
    suite = SUITES[name]
    column = f"{suite.title} > {kind}"
    try:
        ours = programs(suite.pom, *suite.sources)
    except NotAvailable as error:
        yield Result(column, name, "skip", 0.0, f"its jars cannot be had: {error}")
        return
    listed = read_classes((HERE / suite.classes).read_text())
    if not only and suite.is_complete:
        yield from _unlisted(suite, column, ours, listed)
    wanted = []
    for test_class in chosen(listed, only):
        if test_class.reason:
            yield Result(column, test_class.name, "skip", 0.0, test_class.reason)
        elif not (is_resumed and _has_passed(read_kept(BUILD, name, kind), test_class.name)):
            wanted.append(test_class)
    with contextlib.ExitStack() as stack:
        yield from Runner(rig, name, column, ours, kind, stack).run(wanted)
    kept = {kind: read_kept(BUILD, name, kind) for kind in KINDS}
    table = by_class(kept, [one.name for one in listed])
    (BUILD / f"{name}.md").write_text(table + "\n")


def _has_passed(kept: Kept, name: str) -> bool:
    return name in kept and kept[name]["fail"] == 0


def read_classes(text: str) -> list[TestClass]:
    """Return what a list names. Raises ValueError on a line that has no reason where there has to be one."""
    classes: list[TestClass] = []
    has_mock = False
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line == MOCK_SECTION:
            has_mock = True
            continue
        name, _, reason = line.strip().partition(" ")
        is_test = line.startswith(" ")
        if is_test and not (reason and classes):
            raise ValueError(f"no reason, or no class before it: {line}")
        if is_test:
            classes[-1].excluded[name] = reason.strip()
        else:
            classes.append(TestClass(name, reason=reason.strip(), has_mock=has_mock))
    return classes


def _unlisted(
    suite: Suite, column: str, ours: Programs, listed: list[TestClass]
) -> Iterator[Result]:
    """Give a failure for each class that starts bookies and is not in the list, and how many start none."""
    command = ours.behind_jars().command("fastbk.suite.Classes", suite.found_in, *suite.bases)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    known = {suite.package + one.name for one in listed}
    found = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("CLASS")]
    for name, has_bookies in found:
        if has_bookies == "true" and name not in known:
            yield Result(column, name, "fail", 0.0, "neither run nor left out")
    without = sum(has_bookies == "false" and name not in known for name, has_bookies in found)
    reason = f"{without} classes of the jar start no cluster of bookies"
    yield Result(column, "all others", "skip", 0.0, reason)


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


class Turns:
    """Classes that one Java runs, each when it asks for the next one."""

    def __init__(
        self,
        waiting: Sequence[TestClass],
        package: str,
        end: Callable[[TestClass, list[Result]], None],
    ) -> None:
        """end: what is done with a class at its end, and with what its tests came to."""
        self.waiting = list(waiting)
        self.results: list[Result] = []
        """Of the class that runs."""
        self._package = package
        self._end = end
        self._current: TestClass | None = None

    def next(self) -> str:
        """End the class that runs, and begin the next one: its name and what to leave out. Empty: there is none."""
        if self._current is not None:
            self._end(self._current, self.results)
        self._current, self.results = (self.waiting.pop(0) if self.waiting else None), []
        if self._current is None:
            return ""
        words = [self._package + self._current.name]
        words += [f"-{test}={reason}" for test, reason in self._current.excluded.items()]
        return "\t".join([*words, *(f"+{test}" for test in self._current.only)])

    def over(self) -> None:
        """Java ended: so has the class that ran, or, where none did, the first one."""
        if self._current is None and self.waiting:
            self._current = self.waiting.pop(0)
        if self._current is not None:
            self._end(self._current, self.results)
        self._current = None


class Runner:
    """Runs classes of one list, one after the other."""

    def __init__(
        self,
        rig: Rig,
        name: str,
        column: str,
        ours: Programs,
        kind: str,
        stack: contextlib.ExitStack,
    ) -> None:
        """stack: at its end the bookies stop that classes with a mock share."""
        self._rig = rig
        self._name = name
        self._suite = SUITES[name]
        self._column = column
        self._ours = ours
        self._kind = kind
        self._stack = stack
        self._shared: Cluster | None = None

    def run(self, classes: Sequence[TestClass]) -> Iterator[Result]:
        """Yield their tests as they end. Those with a mock share Javas, as in Pulsar's build, and three bookies."""
        with_mock = [one for one in classes if one.has_mock]
        groups = [[one] for one in classes if not one.has_mock]
        groups += [
            with_mock[at : at + CLASSES_OF_A_JAVA_MAX]
            for at in range(0, len(with_mock), CLASSES_OF_A_JAVA_MAX)
        ]
        for group in groups:
            waiting = group
            while waiting:  # after a Java that died with some of them left
                turns = Turns(waiting, self._suite.package, self._keep)
                yield from self._run_java(group[0], turns)
                waiting = turns.waiting

    def _keep(self, test_class: TestClass, results: list[Result]) -> None:
        if not test_class.only:
            keep(BUILD, self._name, self._kind, test_class.name, results)

    def _run_java(self, first: TestClass, turns: Turns) -> Iterator[Result]:
        started_s = time.monotonic()
        folder = self._rig.folder / self._name / turns.waiting[0].name
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        is_ours = self._kind == "ours" or first.has_mock
        java = self._ours if is_ours else self._ours.behind_jars()
        options = (
            *JAVA_OPTIONS,
            *self._suite.java_options,
            f"-Djava.io.tmpdir={temporary}",
            "-Dzookeeper.admin.enableServer=false",
        )
        seconds_max = CLASS_S_MAX * len(turns.waiting)
        with contextlib.ExitStack() as stack:
            answers = self._answers(folder, first, stack) | {"next": turns.next}
            log = stack.enter_context(open(folder / "log", "ab"))
            command = java.command(self._suite.main, options=options)
            process = stack.enter_context(piped(command, log, seconds_max, temporary))
            for result in serve(self._column, process, answers):
                turns.results.append(result)
                yield result
        if process.returncode not in (0, 1):
            took_s = time.monotonic() - started_s
            reason = f"its Java ended with {process.returncode}; see {folder / 'log'}"
            turns.results.append(Result(self._column, first.name, "fail", took_s, reason))
            yield turns.results[-1]
        turns.over()

    def _answers(
        self, folder: Path, first: TestClass, stack: contextlib.ExitStack
    ) -> dict[str, Answer]:
        """Return what a class may ask for: bookies of its own, which `stack` stops, or where the shared ones are."""
        if first.has_mock:
            uri = self._shared_cluster().metadata_uri
            return {"cluster": lambda: uri}
        bookies = SuiteBookies(folder)
        stack.callback(bookies.stop_all)
        return bookies.answers()

    def _shared_cluster(self) -> Cluster:
        """Return the bookies that classes with a mock share, which no class can stop."""
        if self._shared is None:
            count = {"ours": 0, "apache": 0, self._kind: MOCK_BOOKIES}
            self._shared = self._stack.enter_context(
                self._rig.cluster(ours=count["ours"], apache=count["apache"])
            )
        self._shared.start()
        return self._shared


def keep(folder: Path, suite: str, kind: str, name: str, results: Sequence[Result]) -> None:
    """Keep how many tests of a class passed, failed and do not apply, beside what is kept of others."""
    kept = read_kept(folder, suite, kind)
    kept[name] = {verdict: sum(one.verdict == verdict for one in results) for verdict in VERDICTS}
    (folder / f"{suite}-{kind}.json").write_text(json.dumps(kept, indent=1) + "\n")


def read_kept(folder: Path, suite: str, kind: str) -> Kept:
    """Return what is kept of a suite on a kind of bookies."""
    path = folder / f"{suite}-{kind}.json"
    kept: Kept = json.loads(path.read_text()) if path.exists() else {}
    return kept


def by_class(kept: Mapping[str, Kept], names: Sequence[str]) -> str:
    """Return a table in Markdown: for each kind of bookies, how many tests of each class passed, failed, do not apply.

    names: the order of its rows. Kinds that ran nothing have no columns.
    """
    kinds = [kind for kind in kept if kept[kind]]
    heads = [f"{KINDS[kind]}: passed | failed | does not apply" for kind in kinds]
    lines = [f"| class | {' | '.join(heads)} |", f"|---|{'---|---|---|' * len(kinds)}"]
    for name in names:
        if any(name in kept[kind] for kind in kinds):
            rows = [kept[kind].get(name) for kind in kinds]
            cells = [str(row[verdict]) if row else "" for row in rows for verdict in VERDICTS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    sums = [
        str(sum(row[verdict] for row in kept[kind].values()))
        for kind in kinds
        for verdict in VERDICTS
    ]
    lines.append(f"| **all** | {' | '.join(sums)} |")
    return "\n".join(lines)
