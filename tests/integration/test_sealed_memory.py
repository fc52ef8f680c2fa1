"""What a compromised worker can do with its descriptors: no other process's memory can be written (INV-R1)."""

from __future__ import annotations

import mmap
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.native.hashes import crc32c
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until

KIND_ADD = 1  # FBK_KIND_ADD of base/layout.h


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as running:
        yield running


def segments_of(pid: int) -> dict[str, Path]:
    """Return the shared memory that a process has descriptors of, by name, as its /proc/self/fd shows it."""
    found: dict[str, Path] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = os.readlink(link)
        except FileNotFoundError:
            continue
        if "fastbk-segment" in name:
            found[f"{name} of {link.name}"] = link
    return found


def test_no_descriptor_of_any_process_can_be_mapped_for_writing_again(
    cluster: LocalCluster,
) -> None:
    (bookie,) = cluster.bookies
    looked_at = 0
    for name, pid in bookie.pids.items():
        for segment, link in segments_of(pid).items():
            attacker = os.open(link, os.O_RDWR)
            try:
                with pytest.raises(PermissionError):
                    mmap.mmap(attacker, 4096)
                with pytest.raises(PermissionError):
                    os.pwrite(attacker, b"x", 4096)
            finally:
                os.close(attacker)
            looked_at += 1
            assert segment, name
    assert looked_at >= 8, "the supervisor's, a worker's, the journal's, the index's, gc's"


def test_sealed_memory_is_not_warned_of(cluster: LocalCluster) -> None:
    (bookie,) = cluster.bookies
    assert "bookie.memory_not_sealed" not in bookie.log_path.read_text()


def rings_of(pid: int) -> Iterator[tuple[int, int]]:
    """Yield where a worker has mapped the rings that it writes."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, offset = line.split()[:3]
        if "fastbk-segment-2-" in line and rights.startswith("rw") and int(offset, 16) > 0:
            start, end = (int(one, 16) for one in span.split("-"))
            yield start, end


def record_in(content: bytes, ledger_id: int, entry_id: int) -> int:
    """Return where the record of an add begins, -1 if it is not there.

    Other bytes may spell the same two ids, so the header's checksum must be right. A client that is idle also writes
    its last add confirmed: a record of another kind (FBK_KIND_WRITE_LAC) with the same two ids.
    """
    ids = struct.pack("<qq", ledger_id, entry_id)
    at = content.find(ids)
    while at >= 0:
        header = content[at - 16 : at + 80]
        is_add = at >= 16 and header[8] == KIND_ADD
        if is_add and struct.unpack_from("<I", header, 92) == (crc32c(header[:92]),):
            return at - 16
        at = content.find(ids, at + 1)
    return -1


def rewrite_record(pid: int, ledger_id: int, entry_id: int, other_ledger_id: int) -> None:
    """Do what code in the worker could do: make a record in its ring one of another ledger, with right checksums."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for start, end in rings_of(pid):
            memory.seek(start)
            content = memory.read(end - start)
            at = record_in(content, ledger_id, entry_id)
            if at < 0:
                continue
            header = bytearray(content[at : at + 96])
            (payload_bytes,) = struct.unpack_from("<I", header, 4)
            payload = bytearray(content[at + 96 : at + 96 + payload_bytes])
            struct.pack_into(">q", payload, 0, other_ledger_id)
            struct.pack_into("<q", header, 16, other_ledger_id)
            struct.pack_into("<I", header, 76, crc32c(bytes(payload)))
            struct.pack_into("<I", header, 92, crc32c(bytes(header[:92])))
            memory.seek(start + at)
            memory.write(bytes(header) + bytes(payload))
            return
    raise AssertionError("the record is in no ring")


def test_a_record_rewritten_after_its_acknowledgement_ends_the_boot_and_replay_has_it(
    tmp_path: Path,
) -> None:
    """The index is frozen meanwhile, so that the worker is surely faster than it (INV-R4)."""
    one = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    with (
        LocalCluster(1, data=tmp_path / "data") as cluster,
        fastbk.sync.connect(cluster.metadata_uri) as client,
    ):
        (bookie,) = cluster.bookies
        with client.create_ledger(**one) as closed:
            closed.append(b"closed behind this")
        writer = client.create_ledger(**one)
        writer.append(b"first")
        reader = client.open_ledger(writer.ledger_id, False)
        found = [bytes(entry.data) for entry in reader.read_unconfirmed(0, 0)]
        assert found == [b"first"], "it is taken in"
        os.kill(bookie.pids["index"], signal.SIGSTOP)
        writer.append(b"acknowledged")
        rewrite_record(bookie.pids["worker.0"], writer.ledger_id, 1, closed.ledger_id)
        boots = bookie.boots
        os.kill(bookie.pids["index"], signal.SIGCONT)
        wait_until(lambda: bookie.refresh() is None and bookie.boots > boots, "another boot", 30.0)
        assert "rewrote a record after the journal had judged it" in bookie.log_path.read_text()
        again = client.open_ledger(writer.ledger_id)
        assert [bytes(entry.data) for entry in again.read(0, 1)] == [b"first", b"acknowledged"]
        old = client.open_ledger(closed.ledger_id, False)
        assert [entry.entry_id for entry in old.read_unconfirmed(0, 1)] == [0]
