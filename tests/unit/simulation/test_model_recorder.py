"""What the simulator's recorder writes of metadata that a writer changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerMetadata
from tests.simulation.model_trace import Recorder, trace_of

FIRST, CHANGED = ("b1", "b2"), ("b1", "b3")
BEGUN = LedgerMetadata(
    ensemble_size=2, write_quorum=2, ack_quorum=1, fragments=(Fragment(0, FIRST),)
)


def recorded(old: LedgerMetadata, new: LedgerMetadata) -> dict[str, Any]:
    recorder = Recorder("by hand")
    recorder.created(0, BEGUN)
    recorder.metadata_changed("c0", 0, old, VersionedLedger(new, 7))
    _, event = map(json.loads, recorder.lines)
    assert event["version"] == 7
    return event  # type: ignore[no-any-return]


def test_a_naming_is_told_from_an_ensemble_change() -> None:
    changed = replace(BEGUN, fragments=(Fragment(0, FIRST), Fragment(5, CHANGED)))
    named = replace(
        BEGUN, fragments=(Fragment(0, FIRST), Fragment(3, CHANGED), Fragment(5, CHANGED))
    )
    change = recorded(BEGUN, changed)
    assert (change["event"], change["first"]) == ("EnsembleCas", 5)
    naming = recorded(changed, named)
    assert naming["event"] == "NameCas"
    assert naming["segments"] == [[0, ["b1", "b2"]], [3, ["b1", "b3"]], [5, ["b1", "b3"]]]


def test_worlds_for_the_model_give_copies_and_name_their_holders() -> None:
    for seed in range(5_000_000, 5_000_400):
        if any('"NameCas"' in line for line in trace_of(seed)):
            return
    pytest.fail("no replacement was named for copies")
