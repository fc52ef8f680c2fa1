"""What rig `spark` kills beside a query dies at the step that asks, and comes back; what does not happen is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fastbk.meta import open_store
from fastbk.meta.records import Change
from tests.rigs import spark_services
from tests.rigs.spark_points import Kill, Kills
from tests.rigs.spark_services import Services

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
PATH = "streams/ab/record"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """ZooKeeper and bookies, of all tests here one after the other."""
    with Services(tmp_path_factory.mktemp("services")) as running:
        yield running


def asked(services: Services, folder: Path, kill: Kill) -> None:
    """Come to the step of a kill of which nobody of us dies."""
    folder.mkdir()
    kills = Kills(folder, (kill,), 0, services.port)
    Kills.of(kills.text()).look(*kill.step)
    assert kills.happened() == 1


def test_a_bookie_is_gone_when_its_killer_is_answered_and_comes_back(
    services: Services, tmp_path: Path
) -> None:
    before, boots = services.cluster.bookies[1].pids["supervisor"], boots_of(services)
    asked(services, tmp_path / "one", Kill("nobody", ("task.write", "after"), "bookie", 1, 0.1))
    assert not Path(f"/proc/{before}").exists()
    assert services.settle() == []
    assert boots_of(services) == [boots[0], boots[1] + 1, boots[2]]


def test_the_server_of_metadata_dies_and_what_it_has_done_while_answers_were_held_stays(
    services: Services, tmp_path: Path
) -> None:
    with closing(open_store(services.uri, 60.0)) as store:
        (written,) = store.records.change([Change(PATH, b"one")])
        before = services.server_pid
        step = ("metadata.attach", "during")
        asked(services, tmp_path / "one", Kill("nobody", step, "metadata", 0, 0.1))
        # It goes into the dark: the store finds out what became of it, once the server is back.
        (after,) = store.records.change([Change(PATH, b"two", written)])
        assert services.settle() == []
        assert services.server_pid not in (0, before)
        (found,) = store.records.read([PATH])
        assert found is not None
        assert (found.value, found.version) == (b"two", after)


def test_before_a_change_the_server_is_gone_when_its_killer_is_answered(
    services: Services, tmp_path: Path
) -> None:
    before, step = services.server_pid, ("metadata.attach", "before")
    asked(services, tmp_path / "one", Kill("nobody", step, "metadata", 0, 1.0))
    assert not Path(f"/proc/{before}").exists()
    assert services.settle() == []
    assert services.server_pid not in (0, before)


def test_an_announced_change_that_does_not_come_is_told(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_services, "CHANGE_S", 0.2)
    step = ("metadata.attach", "during")
    asked(services, tmp_path / "one", Kill("nobody", step, "metadata", 0, 0.0))
    assert services.settle() == ["the change that was announced did not reach the server"]


def test_an_orphan_stands_still_until_it_is_released(services: Services, tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.rigs.spark_points import Kills\n"
        "Kills(Path(), (), 0, int(sys.argv[1])).ask("
        "{'service': 'hold', 'pid': os.getpid(), 'stopped': []})\nprint('went on')\n"
    )
    orphan = subprocess.Popen(
        [sys.executable, "-c", program, str(services.port)], stdout=subprocess.PIPE
    )
    try:
        spark_services.until(lambda: services.orphans_held == 1, 60.0)
        assert orphan.poll() is None
        asked(services, tmp_path / "one", Kill("nobody", ("task.close", "before"), "release"))
        assert orphan.communicate(timeout=60)[0] == b"went on\n"
        assert services.settle() == []
        asked(services, tmp_path / "two", Kill("nobody", ("task.close", "before"), "release"))
        assert "there is no orphan" in services.settle()[0]
    finally:
        orphan.kill()
        orphan.wait()


def boots_of(services: Services) -> list[int]:
    return [one.boots for one in services.cluster.bookies]
