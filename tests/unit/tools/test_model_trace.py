"""Traces for TLC: what is read, refused and written; and how TLC's words are taken. TLC runs in `./dev model`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.style.tree import ROOT
from tools import model
from tools.model_trace import (
    KEYS,
    Trace,
    TraceError,
    batches,
    config_text,
    module_text,
    read_traces,
    verdicts,
)

HEADER: dict[str, Any] = {
    "trace": "by hand",
    "write_quorum": 2,
    "ack_quorum": 2,
    "version": 4,
    "ensemble": ["127.0.0.1:3181", "left", "right"],
}
EVENTS: list[dict[str, Any]] = [
    {
        "event": "AddSent",
        "client": "mine",
        "bookie": "left",
        "entry": 1,
        "last": -1,
        "recovery": False,
    },
    {"event": "AddAck", "client": "mine", "bookie": "left", "entry": 1, "noise": None},
    {"event": "Acked", "client": "mine", "entry": 1},
    {"event": "RecoveryCas", "client": "other", "version": 5},
    {"event": "ReadNo", "client": "other", "bookie": "right", "entry": 2, "recovery": True},
    {"event": "EnsembleCas", "client": "other", "version": None, "first": 2, "recovery": True}
    | {"ensemble": ["spare", "left", "right"]},
    {
        "event": "CloseCas",
        "client": "other",
        "version": 6,
        "last": 1,
        "segments": [[0, HEADER["ensemble"]]],
    },
    {"event": "ReadOk", "client": "somebody", "bookie": "left", "entry": 1},
]


def read(*records: dict[str, Any]) -> list[Trace]:
    return read_traces(json.dumps(record) for record in records)


def test_a_trace_becomes_a_module_with_short_names() -> None:
    (trace,) = read(HEADER, *EVENTS)
    text = module_text([trace], "Batch")
    assert text.startswith("---- MODULE Batch ----\nEXTENDS Trace\n")
    assert (
        'Trace1 == [version |-> 4, ensemble |-> <<"b1", "b2", "b3">>, events |-> Events1]' in text
    )
    assert "Batch == <<Trace1>>" in text
    events = [line for line in text.splitlines() if line.startswith("[event")]
    assert len(events) == len(EVENTS)
    assert (
        '"AddSent", client |-> "w", bookie |-> "b2", recovery |-> FALSE, entry |-> 1, last |-> -1'
        in events[0]
    )
    assert '"ReadNo", client |-> "r1", bookie |-> "b3", recovery |-> TRUE, entry |-> 2' in events[4]
    assert 'first |-> 2, ensemble |-> <<"b4", "b2", "b3">>' in events[5]
    assert 'segments |-> <<[first |-> 0, ensemble |-> <<"b1", "b2", "b3">>]>>' in events[6]
    assert 'client |-> "reader"' in events[7]


def test_a_writer_that_recovers_has_two_names() -> None:
    mine = {"client": "mine"}
    joins = {"event": "RecoveryJoin", "client": "mine", "version": 5}
    closes = EVENTS[6] | mine
    texts = [
        module_text(read(HEADER, EVENTS[2], joins, *rest, closes), "Batch")
        for rest in ([], [EVENTS[4] | mine])
    ]
    # It only looked: it closes as the writer. It asked bookies as a recoverer: it closes as one.
    for text, closer in zip(texts, ("w", "r1"), strict=True):
        assert '"RecoveryJoin", client |-> "r1"' in text
        assert f'"CloseCas", client |-> "{closer}"' in text


def test_all_events_have_the_same_fields() -> None:
    lines = module_text(read(HEADER, *EVENTS), "Batch").splitlines()
    events = [line.partition("segments |->")[0] for line in lines if line.startswith("[event")]
    fields = {tuple(re.findall(r"(\w+) \|->", event)) for event in events}
    assert len(events) == len(EVENTS)
    assert fields == {
        ("event", "client", "bookie", "recovery", "entry", "last", "version", "first", "ensemble")
    }


def test_the_configuration_holds_all_names_and_entries_of_the_batch() -> None:
    second = HEADER | {"trace": "second", "ensemble": ["a", "b", "c"]}
    batch = read(
        HEADER,
        *EVENTS,
        second,
        EVENTS[3] | {"client": "x"},
        EVENTS[3] | {"client": "y", "version": 6},
    )
    text = config_text(batch)
    for line in (
        'Bookies = {"b1", "b2", "b3", "b4"}',
        'Recoverers = {"r1", "r2"}',
        "E = 3",
        "Qw = 2",
        "Qa = 2",
        "SendLimit = 3",
        "Traces <- Batch",
    ):
        assert f"    {line}\n" in text


def test_batches_keep_quorums_apart_and_are_bounded() -> None:
    headers = [HEADER | {"trace": f"t{n}", "ack_quorum": 1 + n % 2} for n in range(7)]
    grouped = batches(read(*headers), size=3)
    assert sorted(len(batch) for batch in grouped) == [1, 3, 3]
    assert all(len({trace.ack_quorum for trace in batch}) == 1 for batch in grouped)
    assert sorted(trace.name for batch in grouped for trace in batch) == [f"t{n}" for n in range(7)]


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([EVENTS[0]], "before the first header"),
        ([{key: value for key, value in HEADER.items() if key != "version"}], "the header lacks"),
        ([HEADER | {"ack_quorum": 3}], "E >= Qw >= Qa"),
        ([HEADER | {"ensemble": ["a", "a", "b"]}], "twice"),
        ([HEADER, {"event": "Added"}], "no such event"),
        ([HEADER, {"event": "Acked", "client": "w"}], "lacks"),
        ([HEADER, {"event": "Acked", "client": "w", "entry": "0"}], "not an integer"),
        ([HEADER, EVENTS[5] | {"recovery": False}], "lacks"),
        ([HEADER, EVENTS[5] | {"ensemble": ["a"]}], "another size"),
        ([HEADER, EVENTS[2], EVENTS[2] | {"client": "second"}], "more than one writer"),
        ([HEADER, HEADER], "one name"),
    ],
)
def test_what_is_not_in_the_format_is_refused(records: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(TraceError, match=why):
        read(*records)


def test_a_broken_line_is_named() -> None:
    with pytest.raises(TraceError, match="line 2"):
        read_traces([json.dumps(HEADER), "{"])


def test_verdicts_take_the_furthest_point_and_miss_none() -> None:
    bad = HEADER | {"trace": "bad", "refused_at": 2}
    late = HEADER | {"trace": "late", "refused_at": 1}
    batch = read(
        HEADER,
        *EVENTS[:2],
        bad,
        *EVENTS[:2],
        late,
        *EVENTS[:2],
        HEADER | {"trace": "none"},
        EVENTS[0],
    )
    output = '<<"reached", 1, 0, 2>>\n<<"reached", 2, 1, 2>>\nnoise\n<<"reached", 1, 2, 2>>\n<<"reached", 3, 2, 2>>\n'
    found = verdicts(output, batch)
    assert [verdict.consumed for verdict in found] == [2, 1, 2, -1]
    assert [verdict.accepted for verdict in found] == [True, False, True, False]
    # The second is refused where it should be; the third should have been refused; the fourth was never begun.
    assert [verdict.as_expected for verdict in found] == [True, True, False, False]
    assert "refused at event 2 of 2" in str(found[1]) and "AddAck" in str(found[1])


def test_the_traces_of_the_model_are_in_the_format_and_use_every_event() -> None:
    used = set()
    for path in sorted((ROOT / "model" / "traces").glob("*.jsonl")):
        traces = read_traces(path.read_text().splitlines())
        assert all((trace.refused_at is not None) == (path.stem == "bad") for trace in traces)
        used |= {event["event"] for trace in traces for event in trace.events}
    assert used == set(KEYS)


def test_the_readme_documents_every_event_and_its_example_is_readable() -> None:
    text = (ROOT / "model" / "README.md").read_text()
    assert [kind for kind in KEYS if f"| `{kind}` |" not in text] == []
    example = [line for line in text.splitlines() if line.startswith('{"')]
    traces = read_traces(example)
    assert len(traces[-1].events) > 10


STATES = "12 states generated, 9 distinct states found, 2 states left on queue.\n"
VIOLATED = "Error: Invariant Density is violated.\n" + STATES
PROPERTY = "Error: Action property ClosedIsFinal is violated.\n"
GOOD = "Model checking completed. No error has been found.\n" + STATES
CUT = "Progress(9) at 10:00: 100 states generated, 50 distinct states found, 9 states left on queue.\n"


@pytest.mark.parametrize(
    ("output", "holds", "breaks"),
    [
        (GOOD, True, None),
        (VIOLATED, False, "Density"),
        (PROPERTY, False, "ClosedIsFinal"),
        (CUT, False, None),
        ("", False, None),
    ],
)
def test_what_tlc_says_meets_one_promise_at_most(
    output: str, holds: bool, breaks: str | None
) -> None:
    found = model.outcome(output, 1.0, 1.0)
    promises = {
        name: model.Configuration(Path("x.cfg"), name, quick=False)
        for name in (None, "Density", "ClosedIsFinal")
    }
    assert {name for name, promise in promises.items() if found.meets(promise)} == (
        {None} if holds else {breaks} if breaks else set()
    )


def test_every_configuration_says_what_to_expect() -> None:
    read_all = [
        model.configuration(path) for path in (ROOT / "model" / "configurations").glob("*.cfg")
    ]
    assert sum(each.violates is None for each in read_all) >= 6
    assert sum(each.violates is not None for each in read_all) >= 6
    for each in read_all:
        text = each.path.read_text()
        assert ("Faults = {}" in text) == (each.violates is None), each.path.name
        # Symmetry and constraints that leave states out are for finding faults, never for showing that all holds.
        assert each.violates is not None or "CONSTRAINT" not in text
        assert each.violates is None or each.violates in text.partition("SPECIFICATION")[2]


def test_a_configuration_without_a_promise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "silent.cfg"
    path.write_text("\\* expects: nothing\n")
    with pytest.raises(ValueError, match="does not say"):
        model.configuration(path)
