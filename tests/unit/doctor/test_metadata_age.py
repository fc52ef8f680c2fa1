"""What the doctor says of metadata that is older than the bookie's directories, or that refuses the bookie."""

from __future__ import annotations

import fcntl
import os
from contextlib import closing

from fastbk.doctor.report import Status
from fastbk.meta import open_store
from fastbk.meta.records import Change
from fastbk.meta.rollback import MARK_PATH, new_hold, place_hold
from fastbk.server.supervision.metadata_age import MetadataAge
from tests.fixtures.metadata import service
from tests.unit.doctor.test_doctor import ME, Patient, patient, worst

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
