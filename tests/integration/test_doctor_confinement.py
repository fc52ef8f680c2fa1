"""What the doctor says of confinement: of the kernel, of the setting, and of running processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.doctor import Status, examine
from fastbk.doctor.examine import confinement_findings
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import BookieSettings, JournalSettings
from fastbk.testing import LocalCluster


def test_running_processes_are_confined() -> None:
    with LocalCluster(1) as cluster:
        journal = str(cluster.bookies[0].directory / "journal")
        config = BookieConfig(journal=JournalSettings(directory=journal))
        found = list(confinement_findings(config))
        assert [one.status for one in found] == [Status.OK] * len(found)
        assert "4 running processes" in found[-1].why


def test_off_is_a_warning_and_so_is_a_running_process_without(tmp_path: Path) -> None:
    (off,) = confinement_findings(BookieConfig(bookie=BookieSettings(confinement="off")))
    assert (off.status, "may do what its user may" in off.why) == (Status.WARN, True)
    with LocalCluster(1, settings={"bookie": {"confinement": "off"}}) as cluster:
        journal = str(cluster.bookies[0].directory / "journal")
        found = list(confinement_findings(BookieConfig(journal=JournalSettings(directory=journal))))
        unconfined = [one for one in found if one.status is Status.WARN]
        assert len(unconfined) == 4
        assert all("runs without filtered system calls" in one.why for one in unconfined)


def test_what_the_kernel_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "landlock_version", lambda: examine.UNSUPPORTED)
    found = list(confinement_findings(BookieConfig()))
    assert (found[0].status, "no Landlock" in found[0].why) == (Status.WARN, True)
