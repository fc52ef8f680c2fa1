"""The doctor: each illness is found and has a cure; a healthy bookie has none; nothing is touched (INV-D1)."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fastbk.cli.__main__ import main
from fastbk.doctor import Finding, Status
from fastbk.doctor import bookie as data_module
from fastbk.doctor.bookie import holder_of
from fastbk.doctor.examine import Tradeoffs, examine
from fastbk.meta import open_store
from fastbk.meta.health_records import BACKUP_PATH as LAST_BACKUP
from fastbk.meta.health_records import RECOVERIES_PATH as RECOVERIES
from fastbk.meta.health_records import LastBackup, note_backup, note_recoveries
from fastbk.meta.records import Change
from fastbk.meta.rollback import MARK_PATH, new_hold, place_hold
from fastbk.meta.sqlite.store import SqliteStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerState as LedgerMetadataState
from fastbk.native.disk import Disk
from fastbk.native.store import (
    DELETED,
    FENCED,
    LIMBO,
    FlushContents,
    LedgerState,
    Store,
    StoreOptions,
)
from fastbk.security.authority import Authority, Issued
from fastbk.security.settings import AuditSettings, AuthenticationSettings, TlsSettings
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import JournalSettings, LedgerSettings
from fastbk.server.identity import settle
from fastbk.server.index.replay import LOST_STATES
from fastbk.server.supervision.metadata_age import MetadataAge
from fastbk.storage.checkpoint import Checkpoint, CheckpointSettings
from fastbk.storage.directories import JOURNAL_LOG, log_path
from fastbk.storage.identity import read_identity
from fastbk.storage.limbo import write_limbo
from fastbk.storage.manifest import JOURNAL, Damage, LogEntry, Manifest, ManifestSlots
from fastbk.storage.scrub_state import Quarantined, ScrubState, write_scrub_state
from fastbk.storage.unclean import Unclean, write_unclean
from tests.fixtures.metadata import metadata, service

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.zookeeper import ZooKeeperPlace

ME = "me"


def worst(findings: list[Finding], name: str) -> Finding:
    """The worst finding under a name."""
    found = [each for each in findings if each.name == name]
    assert found, f"{name} is not among {[each.name for each in findings]}"
    return max(found, key=lambda each: list(Status).index(each.status))


# --- a bookie ----------------------------------------------------------------------------------------------------


@dataclass
class Patient:
    folder: Path

    def __post_init__(self) -> None:
        self.journal, self.ledgers = self.folder / "journal", self.folder / "ledgers"
        self.uri = f"sqlite:{self.folder / 'metadata.sqlite'}"
        self.file = self.folder / "bookie.toml"
        self.listen = "127.0.0.1:0"
        self.write_file()

    def write_file(self, more: str = "") -> None:
        self.file.write_text(
            f'[bookie]\nid = "{ME}"\nlisten = "{self.listen}"\n[metadata]\nuri = "{self.uri}"\n'
            f'[journal]\ndirectory = "{self.journal}"\n[ledgers]\ndirectory = "{self.ledgers}"\n{more}'
        )

    def config(self) -> BookieConfig:
        return BookieConfig(
            journal=JournalSettings(directory=str(self.journal)),
            ledgers=LedgerSettings(directory=str(self.ledgers)),
        )

    def start(self) -> None:
        """What a first start leaves behind."""
        for directory in (self.journal, self.ledgers):
            directory.mkdir(exist_ok=True)
        store = open_store(self.uri)
        settle(self.config(), store, ME)
        store.close()

    def commit(self, **fields: object) -> None:
        with Disk(self.ledgers, "plain") as disk:
            slots = ManifestSlots(disk, str(self.ledgers))
            now = slots.load()
            slots.commit(Manifest(generation=now.generation + 1, **fields))  # type: ignore[arg-type]

    def flush(self, states: list[LedgerState]) -> None:
        """What a flush of these states leaves behind."""
        with Disk(directory := str(self.ledgers), "plain") as disk:
            slots = ManifestSlots(disk, directory)
            identity = read_identity(disk, directory)
            assert identity is not None
            store = Store(directory, disk, disk, StoreOptions(identity.incarnation_number))
            checkpoint = Checkpoint(disk, directory, slots, slots.load(), CheckpointSettings())
            checkpoint.load(store)
            checkpoint.run(store, FlushContents.from_entries([], states), 1)
            store.destroy()

    def examine(self) -> list[Finding]:
        before = self.content()
        found = list(examine(self.file))
        assert self.content() == before, "the doctor changes nothing"
        return found

    def content(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and "metadata.sqlite" not in path.name
        }


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path)


def test_before_the_first_start(patient: Patient) -> None:
    findings = patient.examine()
    assert not [each for each in findings if each.status is Status.FAIL]
    assert not patient.journal.exists()
    assert not Path(patient.uri.removeprefix("sqlite:")).exists()
    assert len(findings) >= 25


def test_a_healthy_bookie(patient: Patient) -> None:
    patient.start()
    findings = patient.examine()
    assert not [each for each in findings if each.status is Status.FAIL]
    assert "agree" in worst(findings, "identity").why
    assert worst(findings, "manifest").status is Status.OK


def test_every_problem_names_a_cure(patient: Patient) -> None:
    patient.start()
    shutil.rmtree(patient.ledgers)
    for each in patient.examine():
        assert bool(each.fix) == (each.status is not Status.OK), each


@pytest.mark.parametrize(
    ("spoil", "name", "status", "why", "fix"),
    [
        (lambda one: shutil.rmtree(one.ledgers), "identity", Status.FAIL, "is empty", "--accept-data-loss"),
        (lambda one: (one.journal / "identity.json").write_text("{}"), "identity", Status.FAIL, "identity.json", ""),
        (lambda one: (one.ledgers / "manifest.1").unlink(), "manifest", Status.WARN, "manifest.1: missing", ""),
        (lambda one: one.commit(mark=9), "journal to replay", Status.FAIL, "there is no journal file", ""),
        (lambda one: os.utime(one.journal / "identity.json", (4e9, 4e9)), "times of files", Status.WARN,
         "identity.json", ""),
        (lambda one: one.ledgers.chmod(0o755), "rights", Status.WARN, "", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_with_directories_is_named(
    patient: Patient,
    spoil: Callable[[Patient], object],
    name: str,
    status: Status,
    why: str,
    fix: str,
) -> None:
    patient.start()
    spoil(patient)
    found = worst(patient.examine(), name)
    assert found.status is status
    assert why in found.why
    assert fix in found.fix


def test_a_lost_manifest(patient: Patient) -> None:
    patient.start()
    for name in ("manifest.0", "manifest.1"):
        (patient.ledgers / name).write_bytes(b"x" * 100)
    assert worst(patient.examine(), "manifest").status is Status.FAIL


def test_a_missing_manifest(patient: Patient) -> None:
    patient.start()
    for name in ("manifest.0", "manifest.1"):
        (patient.ledgers / name).unlink()
    log_file = Path(log_path(str(patient.ledgers), 1))
    log_file.write_bytes(bytes(4096))
    found = worst(patient.examine(), "manifest")
    assert found.status is Status.FAIL
    assert log_file.name in found.why
    assert "rebuild-locations" in found.fix


def test_files_that_the_manifest_names_and_are_gone_or_short(patient: Patient) -> None:
    patient.start()
    logs = tuple(
        LogEntry(log_id=n, salt=1, durable_bytes=100, live_bytes=10, sealed=True) for n in (1, 2)
    )
    patient.commit(logs=logs)
    Path(log_path(str(patient.ledgers), 2)).write_bytes(b"short")
    found = worst(patient.examine(), "files of the manifest")
    assert found.status is Status.FAIL
    assert "1.log is missing" in found.why
    assert "has 5 of 100 bytes" in found.why


def test_a_journal_file_that_is_a_log_and_is_gone(patient: Patient) -> None:
    patient.start()
    log = LogEntry(
        log_id=JOURNAL_LOG | 7, salt=1, durable_bytes=100, live_bytes=10, sealed=True, kind=JOURNAL
    )
    patient.commit(logs=(log,))
    found = worst(patient.examine(), "files of the manifest")
    assert found.status is Status.FAIL
    assert f"{patient.journal}/0000000000000007.journal is missing" in found.why
    assert "put the files back" in found.fix


def test_damage_on_record(patient: Patient) -> None:
    patient.start()
    damage = Damage(what="batch 7 is gone", file_id=1, first_sequence=7, last_sequence=7, found_s=1)
    patient.commit(damage=(damage,))
    found = worst(patient.examine(), "damage on record")
    assert found.status is Status.FAIL
    assert "batch 7 is gone" in found.why
    assert found.fix.startswith("start it again")
    lost = msgspec.structs.replace(damage, what=LOST_STATES.format(file_id=3))
    patient.commit(damage=(damage, lost))
    assert "rebuild-locations" in worst(patient.examine(), "damage on record").fix


@pytest.mark.parametrize(("sync", "status"), [("always", Status.OK), ("never", Status.WARN)])
def test_an_unclean_stop(patient: Patient, sync: str, status: Status) -> None:
    patient.start()
    with Disk(patient.ledgers, "plain") as disk:
        flag = Unclean(incarnation="01", sync=sync, started_s=1)
        write_unclean(disk, str(patient.ledgers), flag)
    found = worst(patient.examine(), "last stop")
    assert found.status is status
    assert "clean" in found.why


def test_entries_in_quarantine(patient: Patient) -> None:
    patient.start()
    bad = Quarantined(ledger_id=7, first=3, last=4, reason="checksum", found_s=1)
    with Disk(patient.ledgers, "plain") as disk:
        for quarantined, status in (((), Status.OK), ((bad,), Status.WARN)):
            state = ScrubState(incarnation="01", quarantined=quarantined)
            write_scrub_state(disk, str(patient.ledgers), state)
            assert worst(patient.examine(), "quarantine").status is status
        assert "ledger 7 from entry 3" in worst(patient.examine(), "quarantine").why
        state = ScrubState(incarnation="01").with_bad_digests([(8, 2, 5)], 1)
        write_scrub_state(disk, str(patient.ledgers), state)
    found = worst(patient.examine(), "quarantine")
    assert found.status is Status.WARN
    assert "wrong digest, as of ledger 8 from entry 2" in found.why


def test_limbo_that_waits(patient: Patient) -> None:
    patient.start()
    with Disk(patient.ledgers, "plain") as disk:
        write_limbo(disk, str(patient.ledgers), [1], 1)
    assert "rebirth" in worst(patient.examine(), "last stop").why


def test_ledgers_in_limbo(patient: Patient) -> None:
    """How many, since when, what ends it, and the command."""
    patient.start()
    assert worst(patient.examine(), "limbo").status is Status.OK
    patient.flush([LedgerState(n, flags=FENCED | LIMBO) for n in (7, 8, 9)])
    patient.flush([LedgerState(8, flags=FENCED), LedgerState(9, flags=DELETED | LIMBO)])
    found = worst(patient.examine(), "limbo")
    assert found.status is Status.WARN
    assert "1 ledger in limbo (7), since 20" in found.why
    assert "closed and whole here" in found.why
    assert f"fastbk bookie repair {ME}" in found.fix
    patient.flush([LedgerState(7, flags=FENCED)])
    assert worst(patient.examine(), "limbo").status is Status.OK


def test_a_port_that_a_stranger_has(patient: Patient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        patient.listen = f"127.0.0.1:{stranger.getsockname()[1]}"
        patient.write_file()
        found = worst(patient.examine(), "port")
    assert found.status is Status.FAIL
    assert "ss -ltnp" in found.fix


def test_a_bookie_that_runs_is_seen_by_its_lock_and_left_alone(patient: Patient) -> None:
    patient.start()
    descriptor = os.open(patient.ledgers / "lock", os.O_RDWR | os.O_CREAT)
    assert holder_of(str(patient.ledgers)) is None
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert holder_of(str(patient.ledgers)) == os.getpid()
    with socket.create_server(("127.0.0.1", 0)) as own:
        patient.listen = f"127.0.0.1:{own.getsockname()[1]}"
        patient.write_file()
        findings = patient.examine()
    assert worst(findings, "port").status is Status.OK
    assert worst(findings, "last stop").why == "it runs"
    os.close(descriptor)


def test_metadata_that_cannot_be_reached(patient: Patient) -> None:
    patient.uri = f"sqlite:{patient.folder}/no/such/metadata"
    patient.write_file()
    assert worst(patient.examine(), "metadata").status is Status.FAIL


def test_metadata_that_is_something_else(patient: Patient) -> None:
    Path(patient.uri.removeprefix("sqlite:")).write_text("no database" * 100)
    assert worst(patient.examine(), "metadata").status is Status.FAIL


def test_a_name_that_is_no_address(patient: Patient) -> None:
    patient.write_file()
    text = patient.file.read_text().replace(
        "[metadata]", 'advertised = "no-such.invalid"\n[metadata]'
    )
    patient.file.write_text(text)
    assert worst(patient.examine(), "advertised host").status is Status.FAIL


def test_an_advertised_name_that_means_this_machine_only_here(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient.write_file()
    text = patient.file.read_text().replace("[metadata]", 'advertised = "bookie-1"\n[metadata]')
    asked = socket.getaddrinfo

    def own_name(host: str, *rest: Any, **options: Any) -> Any:
        return asked(
            "127.0.1.1" if host == "bookie-1" and not options.get("flags") else host,
            *rest,
            **options,
        )

    monkeypatch.setattr(socket, "getaddrinfo", own_name)
    patient.file.write_text(text)
    assert worst(patient.examine(), "advertised host").status is Status.OK
    patient.file.write_text(text.replace(patient.uri, "zk://10.255.255.1:1/ledgers"))
    found = worst(patient.examine(), "advertised host")
    assert (found.status, found.why) == (
        Status.WARN, "bookie-1 is 127.0.1.1 on this machine: no other one reaches that"
    )  # fmt: skip


def test_a_configuration_that_makes_no_sense_does_not_end_it(patient: Patient) -> None:
    patient.write_file("nonsense = 1\n")
    findings = patient.examine()
    assert findings[0].status is Status.FAIL
    assert worst(findings, "kernel")


def test_a_clock_that_is_off_from_the_metadata_servers(
    patient: Patient, zookeeper: ZooKeeperPlace
) -> None:
    """Both wrote the count of starts at the last start, each by its own clock."""
    patient.uri = zookeeper.uri()
    patient.write_file()
    patient.start()
    assert worst(patient.examine(), "clock and metadata's").status is Status.OK
    for directory in (patient.journal, patient.ledgers):
        past_s = time.time() - 60
        os.utime(directory / "identity.json", (past_s, past_s))
    found = worst(patient.examine(), "clock and metadata's")
    assert found.status is Status.WARN
    assert "s behind" in found.why


def test_choices_that_give_something_up(patient: Patient) -> None:
    text = patient.file.read_text().replace(
        "[ledgers]", 'sync = "never"\n[gc]\ndelete_ratio_max = 1.0\n[ledgers]'
    )
    patient.file.write_text(text)
    findings = patient.examine()
    for name in ("durability", "deletions"):
        assert worst(findings, name).status is Status.WARN


def test_every_pair_is_looked_at(patient: Patient) -> None:
    text = patient.file.read_text()
    for name in ("journal", "ledgers"):
        one = patient.folder / name
        text = text.replace(f'directory = "{one}"', f'directories = ["{one}", "{one}2"]')
    patient.file.write_text(text)
    names = {each.name for each in patient.examine()}
    assert {"journal directory of pair 1", "room in the ledger directory of pair 1"} <= names
    (patient.folder / "ledgers2").mkdir()
    (patient.folder / "ledgers2" / "manifest.0").write_bytes(b"x")
    found = worst(patient.examine(), "manifest")
    assert found.status is Status.FAIL
    assert "ledgers2" in found.why


def test_an_old_copy(patient: Patient) -> None:
    """The doctor says beforehand what the start would say."""
    patient.start()
    store = SqliteStore(patient.uri.removeprefix("sqlite:"))
    read = store.read_identity(BookieId(ME))
    assert read is not None
    store.write_identity(msgspec.structs.replace(read.identity, starts=4), read.version)
    store.close()
    assert "0 starts" in worst(patient.examine(), "identity").why


def test_what_metadata_says_of_the_cluster(patient: Patient) -> None:
    """The same facts as in the verdict of `cluster status`, and as bad as there."""
    patient.start()
    name, days_ms = "health of the cluster", 86_400_000
    found = worst(patient.examine(), name)
    assert (found.status, "never backed up" in found.why) == (Status.OK, True)
    now_ms = time.time_ns() // 1_000_000
    with closing(open_store(patient.uri)) as store:
        note_backup(store, LastBackup(began_ms=now_ms - 3 * days_ms, backup_id="a"))
        found = worst(patient.examine(), name)
        assert (found.status, found.why) == (
            Status.WARN,
            "the newest backup of metadata is 72.0 h old",
        )
        note_backup(store, LastBackup(began_ms=now_ms, backup_id="b"))
        assert not [one for one in patient.examine() if one.name == name]
        store.create_ledger(7, replace(metadata(), state=LedgerMetadataState.IN_RECOVERY))
        for _ in range(2):
            note_recoveries(store, [7])
        found = worst(patient.examine(), name)
        assert (found.status, found.why) == (
            Status.WARN,
            "the recovery of ledger 7 was begun and has not ended",
        )
        assert "fastbk ledger close 7;" in found.fix
        for path in (LAST_BACKUP, RECOVERIES):
            (record,) = store.records.read([path])
            assert record is not None
            store.records.change([Change(path, b"{", record.version)])
        damaged = [one for one in patient.examine() if one.name == name]
        for path in (LAST_BACKUP, RECOVERIES):
            (bad,) = [one for one in damaged if path in one.why]
            assert (bad.status, "is damaged" in bad.why, "bad-records" in bad.fix) == (
                Status.WARN,
                True,
                True,
            )


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command(
    patient: Patient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patient.start()
    assert main(["doctor", "--config", str(patient.file), "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"name", "status", "why", "fix", "verdict"} == set(records[0])
    monkeypatch.setattr(data_module, "CLOCK_SLACK_S", -(10**9))
    (patient.journal / "identity.json").write_text("{}")
    assert main(["doctor", "--config", str(patient.file), "--problems"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  identity:" in out
    assert "OK    " not in out
    assert "      -> " in out
    assert main(["doctor"]) == 0


def test_the_exit_code_is_that_of_the_verdict(
    patient: Patient, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of `cluster status`: 0 for a remark, 1 at `degraded`; what else only warns leaves it 0."""
    patient.start()

    def asked() -> tuple[int, list[tuple[str, str]]]:
        code = main(["doctor", "--config", str(patient.file), "--json"])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return code, [(one["status"], one["verdict"]) for one in lines if one["verdict"]]

    assert asked() == (0, [("ok", "well")]), "no backup yet: a remark"
    with closing(open_store(patient.uri)) as store:
        note_backup(store, LastBackup(began_ms=1, backup_id="a"))
    assert asked() == (1, [("warn", "degraded")])


# What the doctor says of the files of authentication and of the audit log's folder.


def test_files_of_authentication(tmp_path: Path) -> None:
    revoked = tmp_path / "revoked"
    settings = AuthenticationSettings(methods=("certificate",), revoked_file=str(revoked))
    look = Tradeoffs(BookieConfig(authentication=settings)).authentication
    assert (look().status, "No such file" in look().why) == (Status.FAIL, True)
    revoked.write_text("token:a\nb\n")
    assert (look().status, f"{revoked}:2: must be" in look().why) == (Status.FAIL, True)
    revoked.write_text("token:a\n")
    assert look().status == Status.OK


def test_the_folder_of_the_audit_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    look = Tradeoffs(BookieConfig(audit=AuditSettings(file=f"{folder}/audit.log"))).audit_log
    assert (look().status, look().fix) == (Status.FAIL, f"mkdir -m 0700 {folder}")
    folder.mkdir()
    assert look().status == Status.OK


# What the doctor says of a bookie's certificates.


def examined(issued: Issued) -> list[tuple[Status, str]]:
    settings = TlsSettings(
        mode="require", certificate_file=str(issued.certificate_file), key_file=str(issued.key_file)
    )
    findings = Tradeoffs(BookieConfig(tls=settings)).certificates()
    return [(one.status, one.why) for one in findings if one.status != Status.OK]


def test_certificates_that_end_or_name_another_host(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca")
    here = ["127.0.0.1"]
    assert examined(authority.issue(tmp_path / "good", here)) == []
    ((status, why),) = examined(
        authority.issue(tmp_path / "soon", here, valid_for=timedelta(days=3))
    )
    assert (status, "ends in" in why) == (Status.WARN, True)
    ((status, why),) = examined(
        authority.issue(tmp_path / "ended", here, valid_for=timedelta(days=-3))
    )
    assert (status, "3 days ago" in why) == (Status.FAIL, True)
    other = authority.issue(tmp_path / "other", ["a.example"])
    ((status, why),) = examined(other)
    assert (status, "names a.example" in why) == (Status.WARN, True)
    mixed = Issued(tmp_path / "good" / "tls.crt", other.key_file)
    ((status, why),) = examined(mixed)
    assert (status, "not the certificate's" in why) == (Status.FAIL, True)


# What the doctor says of metadata that is older than the bookie's directories, or that refuses
# the bookie.


__all__ = ["patient"]


def test_metadata_that_was_rolled_back(patient: Patient) -> None:
    """INV-M2: by what the ledger directory stores, whoever else metadata answers."""
    patient.start()
    with closing(open_store(patient.uri)) as store:
        age = MetadataAge([str(patient.ledgers)], store, ME)
        for _ in range(3):
            store.next_ledger_id()
        age.poll(is_last=True)
    assert worst(patient.examine(), "metadata's age").status is Status.OK
    with closing(open_store(patient.uri)) as store:
        (found,) = store.records.read([MARK_PATH])
        assert found is not None
        store.records.change([Change(MARK_PATH, b'{"age": 1, "highest_id": 1}', found.version)])
    old = worst(patient.examine(), "metadata's age")
    assert old.status is Status.FAIL
    assert "metadata once had ledger 2" in old.why
    with closing(open_store(patient.uri)) as store:
        place_hold(store, new_hold("by hand"))
    held = worst(patient.examine(), "metadata's age")
    assert held.status is Status.FAIL
    assert "by hand" in held.why


def test_a_bookie_that_runs_and_is_not_registered(patient: Patient) -> None:
    """So it is when ZooKeeper refuses its session, and answers the doctor's."""
    patient.start()
    with closing(open_store(patient.uri)) as store:
        descriptor = os.open(patient.ledgers / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = worst(patient.examine(), "metadata")
        assert found.status is Status.WARN
        assert "is not registered" in found.why
        lease = store.register_bookie(service(ME, 1), writable=True)
        assert worst(patient.examine(), "metadata").status is Status.OK
        lease.close()
        os.close(descriptor)
