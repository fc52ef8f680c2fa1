"""What every test shares: tiers, seed, the crash sentinel, hypothesis profiles. Fixtures live in fixtures/."""

from __future__ import annotations

import functools
import gc
import os
import platform
import random
import secrets
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fastbk.observe import logs
from tests import SERVICE_FOLDERS

pytest_plugins = [
    "tests.fixtures.skips",
    "tests.fixtures.aio",
    "tests.fixtures.certificates",
    "tests.fixtures.zookeeper",
    "tests.fixtures.spark_session",
    "fastbk.testing",
    "tests.fixtures.shared_cluster",
]

settings.register_profile(
    "fast", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci",
    max_examples=40,  # always the same ones; ALL=1 draws many new ones
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "all", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_configure(config: pytest.Config) -> None:
    # Workers of a parallel run inherit the environment, hence the seed.
    os.environ.setdefault("SEED", str(secrets.randbelow(2**32)))
    settings.load_profile(os.environ.get("FASTBK_TIER", "fast"))
    # Whoever is started in the background ignores it, and so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [
        f"SEED={os.environ['SEED']} tier={os.environ.get('FASTBK_TIER', 'fast')} "
        f"build={os.environ.get('FASTBK_BUILD', 'release')} kernel={platform.release()}"
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    folder_of = functools.cache(
        lambda path: path.relative_to(here).parts[0] if path.is_relative_to(here) else ""
    )
    for item in items:
        folder = folder_of(item.path)
        is_alone = item.get_closest_marker("alone") is not None
        if folder not in SERVICE_FOLDERS:
            if any(item.get_closest_marker(one) for one in ("alone", "service", "waits")):
                raise pytest.UsageError(
                    f"{item.nodeid}: no phase that it is marked for looks here (tests/__init__.py)"
                )
        elif is_alone or item.get_closest_marker("no_service") is None:
            item.add_marker("service")
            if item.get_closest_marker("soak") or item.get_closest_marker("perf"):
                item.add_marker("alone")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no cycles meanwhile, and never again in what stays: thousands of tests, and all that they import."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _freeze_what_earlier_tests_left() -> None:
    """Keep the collections of asynchronous tests (fixtures/aio.py) small: each looks at what its own file made.

    Without this a collection takes 0.3 s after some thousand tests, since modules, reports and examples add up.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A command that a test runs in this process sets the level of what later tests log."""
    before = logs._style, logs._level
    yield
    logs._style, logs._level = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note which test runs, so that a crash of the interpreter can be laid at its door."""
    folder = os.environ.get("FASTBK_TEST_SENTINELS")
    if folder is None:
        return (yield)
    sentinel = Path(folder) / str(os.getpid())
    sentinel.write_text(item.nodeid)
    result = yield
    sentinel.unlink(missing_ok=True)
    return result


_failed: dict[str, None] = {}


def _note_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    """A file that cannot be read counts, too: a second try of the failed tests alone would not try it."""
    if report.failed:
        _failed[report.nodeid] = None


pytest_runtest_logreport = pytest_collectreport = _note_failure


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the names of the failed tests to `python -m tests`; workers of a parallel run leave that to their head."""
    path = os.environ.get("FASTBK_TEST_FAILURES")
    if path and _failed and not hasattr(session.config, "workerinput"):
        Path(path).write_text("".join(f"{one}\n" for one in _failed))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number for this test's random choices, from SEED and the test's name; printed when the test fails."""
    value = zlib.crc32(request.node.nodeid.encode()) ^ int(os.environ["SEED"])
    print(f"SEED={os.environ['SEED']} (seed of this test: {value})")
    return value


@pytest.fixture
def rng(seed: int) -> random.Random:
    """A random generator that `SEED=` repeats."""
    return random.Random(seed)
