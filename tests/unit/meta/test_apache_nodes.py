"""What Apache BookKeeper 4.17.2 itself wrote into ZooKeeper, recorded: read as meant, and written back byte for byte.

`ledger_v<version>_<state>`: a ledger of its shell's `simpletest` with that `ledgerMetadataVersion`, 200 entries on
three bookies, while it was open and when it was closed; Apache's client drops the creator's token then. `registration`:
the node of a bookie.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.meta.api import Endpoint
from fastbk.meta.zookeeper.bookies import parse_service
from fastbk.model.entry import DigestType
from fastbk.model.ledger import LedgerMetadata, LedgerState
from tests.style.tree import ROOT

NODES = ROOT / "tests/golden/apache_nodes"


def recorded(name: str) -> bytes:
    return (NODES / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_ledgers_of_every_version_are_read_as_they_were_meant(version: int) -> None:
    before = LedgerMetadata.from_bytes(recorded(f"ledger_v{version}_open"))
    after = LedgerMetadata.from_bytes(recorded(f"ledger_v{version}_closed"))
    assert (before.ensemble_size, before.write_quorum, before.ack_quorum) == (3, 2, 2)
    assert (before.state, before.last_entry_id, before.length) == (LedgerState.OPEN, -1, 0)
    assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, 199, 20_000)
    assert before.fragments == after.fragments
    ((first, ensemble),) = [(one.first_entry_id, one.ensemble) for one in before.fragments]
    assert first == 0
    assert len(set(ensemble)) == 3
    assert all(one.startswith("127.0.0.1:") for one in ensemble)
    if version == 1:
        assert (before.digest_type, before.created_ms, before.custom) == (None, None, {})
    else:
        assert before.digest_type is DigestType.CRC32C
        assert before.created_ms is not None
        assert before.custom == {"Bookie": b"simpletest"}
    assert bool(before.creation_token) == (version == 3)
    assert after.creation_token == 0


@pytest.mark.parametrize("state", ["open", "closed"])
def test_a_ledger_is_written_back_byte_for_byte(state: str) -> None:
    raw = recorded(f"ledger_v3_{state}")
    assert LedgerMetadata.from_bytes(raw).to_bytes() == raw


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_close_by_us_says_what_apaches_says(version: int) -> None:
    """Older versions become 3, with all they had."""
    before = LedgerMetadata.from_bytes(recorded(f"ledger_v{version}_open"))
    closed = LedgerMetadata.from_bytes(before.closed(199, 20_000).to_bytes())
    theirs = LedgerMetadata.from_bytes(recorded(f"ledger_v{version}_closed"))
    assert replace(closed, creation_token=0) == theirs


def test_a_bookie_is_found_where_it_registered() -> None:
    found = parse_service("127.0.0.1:35783", recorded("registration"))
    assert found.incarnation == 0
    assert found.client_endpoint() == Endpoint("127.0.0.1", 35783, "bookie-rpc", "bookie")
