"""Traces of the simulator as TLA+ modules, and what TLC says about them. No I/O here.

A trace file holds JSON lines in the format of model/README.md. `read_traces` checks the form, `batches` puts together
traces that one run of TLC can judge, `module_text` and `config_text` write the module for it and `verdicts` reads
from TLC's output how far each trace came. Names are replaced by short ones (`w`, `r1`, `b1`), so that a batch needs
few.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# event -> keys that it must have. `recovery` may be left out where it is false.
KEYS: dict[str, tuple[str, ...]] = {
    "AddSent": ("client", "bookie", "entry", "last"),
    "AddAck": ("client", "bookie", "entry"),
    "AddRefused": ("client", "bookie", "entry"),
    "Acked": ("client", "entry"),
    "LacWrite": ("client", "bookie", "last"),
    "Fenced": ("client", "bookie"),
    "LacRead": ("client", "bookie", "last"),
    "ReadOk": ("client", "bookie", "entry"),
    "ReadNo": ("client", "bookie", "entry"),
    "ReadUnknown": ("client", "bookie", "entry"),
    "EnsembleCas": ("client", "first", "ensemble"),
    "NameCas": ("client", "version", "segments"),
    "RecoveryCas": ("client", "version"),
    "RecoveryJoin": ("client", "version"),
    "CloseCas": ("client", "version", "last", "segments"),
    "OtherCas": ("version",),
    "Crash": (),
    "Wipe": ("bookie",),
}
BY_A_RECOVERER = ("Fenced", "RecoveryCas", "RecoveryJoin")
# These without `recovery`.
BY_THE_WRITER = (
    "AddSent",
    "AddAck",
    "AddRefused",
    "Acked",
    "LacWrite",
    "EnsembleCas",
    "NameCas",
    "CloseCas",
)
NUMBERS = ("entry", "last", "version", "first")
HEADER = ("trace", "write_quorum", "ack_quorum", "version", "ensemble")
BATCH_SIZE = 50
# No trace of one ledger comes near it; the specification's bounds are for walking through all behaviours.
UNBOUNDED = 1_000_000
CHECKED = (
    "NoTruncation Agreement AckQuorumStored Density SingleClose LacNeverPassesAcked SegmentsOrdered"
)


class TraceError(Exception):
    """A line is not in the format; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One ledger's life: its header's values and its events, names as in the file."""

    name: str
    write_quorum: int
    ack_quorum: int
    version: int
    ensemble: list[str]
    # Of a trace made by hand: the event, from 1, at which it has to be refused.
    refused_at: int | None
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many of a trace's events TLC could follow, and the first that it could not."""

    trace: Trace
    consumed: int

    @property
    def accepted(self) -> bool:
        """Whether the whole trace is a behaviour of the specification."""
        return self.consumed == len(self.trace.events)

    @property
    def as_expected(self) -> bool:
        """Whether it was accepted, or refused at the very event that its header names."""
        if self.trace.refused_at is None:
            return self.accepted
        return self.consumed == self.trace.refused_at - 1

    def __str__(self) -> str:
        if self.accepted:
            return f"{self.trace.name}: accepted, {self.consumed} events"
        if self.consumed < 0:
            return f"{self.trace.name}: TLC never began it"
        event = json.dumps(self.trace.events[self.consumed])
        return f"{self.trace.name}: refused at event {self.consumed + 1} of {len(self.trace.events)}: {event}"


def read_traces(lines: Iterable[str]) -> list[Trace]:
    """Parse a trace file; raises TraceError with the line's number where the form is wrong."""
    traces: list[Trace] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if "trace" in record:
                traces.append(_header(record))
            elif not traces:
                raise TraceError("an event before the first header")
            else:
                traces[-1].events.append(_event(record, traces[-1]))
        except (TraceError, ValueError, TypeError) as error:
            raise TraceError(f"line {number}: {error}") from None
    names = [trace.name for trace in traces]
    if len(set(names)) != len(names):
        raise TraceError("two traces have one name")
    for trace in traces:
        _client_names(trace)
    return traces


def _header(record: dict[str, Any]) -> Trace:
    missing = [key for key in HEADER if key not in record]
    if missing:
        raise TraceError(f"the header lacks {missing}")
    ensemble = _bookies(record["ensemble"])
    quorums = (record["write_quorum"], record["ack_quorum"], record["version"])
    if not all(isinstance(value, int) for value in quorums):
        raise TraceError("quorums and version are integers")
    if not len(ensemble) >= quorums[0] >= quorums[1] >= 1:
        raise TraceError("E >= Qw >= Qa >= 1 does not hold")
    return Trace(str(record["trace"]), *quorums, ensemble, record.get("refused_at"))


def _bookies(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TraceError("an ensemble is a list of names")
    if len(set(value)) != len(value):
        raise TraceError("a bookie is twice in an ensemble")
    return value


def _event(record: dict[str, Any], trace: Trace) -> dict[str, Any]:
    kind = record.get("event")
    if kind not in KEYS:
        raise TraceError(f"no such event: {kind!r}")
    by_memory = kind == "EnsembleCas" and record.get("recovery")
    required = (*KEYS[kind], "version") if kind == "EnsembleCas" and not by_memory else KEYS[kind]
    missing = [key for key in required if record.get(key) is None]
    if missing:
        raise TraceError(f"{kind} lacks {missing}")
    for key in set(NUMBERS) & set(required):
        if not isinstance(record[key], int):
            raise TraceError(f"{kind}: {key} is not an integer")
    for ensemble in [record["ensemble"]] if kind == "EnsembleCas" else []:
        if len(_bookies(ensemble)) != len(trace.ensemble):
            raise TraceError("an ensemble of another size")
    if kind in ("CloseCas", "NameCas"):
        for first, ensemble in record["segments"]:
            if not isinstance(first, int) or len(_bookies(ensemble)) != len(trace.ensemble):
                raise TraceError("a segment is [first, ensemble]")
    return record


def _client_names(trace: Trace) -> list[str]:
    """Return for each event the short name of its client in the role that it has there.

    One client may be both: a writer that was fenced may recover its own ledger. It closes as a recoverer if it has
    asked bookies as one. Raises TraceError where two clients write.
    """
    writer: str | None = None
    recoverers: dict[str, str] = {}
    asked: set[str] = set()
    names = []
    for event in trace.events:
        kind, client = event["event"], str(event.get("client"))
        recovers = kind in BY_A_RECOVERER or bool(event.get("recovery"))
        if recovers or (kind == "CloseCas" and client in asked):
            if bool(event.get("recovery")):
                asked.add(client)
            names.append(recoverers.setdefault(client, f"r{len(recoverers) + 1}"))
        elif kind in BY_THE_WRITER:
            if writer not in (None, client):
                raise TraceError(f"{trace.name}: more than one writer: {writer} and {client}")
            writer = client
            names.append("w")
        else:
            names.append("reader")
    return names


def _bookie_names(trace: Trace) -> dict[str, str]:
    """Return short names of all bookies of a trace."""
    bookies = dict.fromkeys(trace.ensemble)
    for event in trace.events:
        named = [event.get("bookie"), *(event.get("ensemble") or [])]
        named += [bookie for _, ensemble in event.get("segments") or [] for bookie in ensemble]
        bookies |= dict.fromkeys(str(bookie) for bookie in named if bookie is not None)
    return {name: f"b{number}" for number, name in enumerate(bookies, 1)}


def batches(traces: Iterable[Trace], size: int = BATCH_SIZE) -> list[list[Trace]]:
    """Group traces of equal quorums, at most `size` in a group."""
    groups: dict[tuple[int, int, int], list[list[Trace]]] = {}
    for trace in traces:
        quorums = (len(trace.ensemble), trace.write_quorum, trace.ack_quorum)
        group = groups.setdefault(quorums, [[]])
        if len(group[-1]) == size:
            group.append([])
        group[-1].append(trace)
    return [batch for group in groups.values() for batch in group]


def module_text(batch: list[Trace], module: str) -> str:
    """Write the TLA+ module `module` that holds the batch."""
    lines = [f"---- MODULE {module} ----", "EXTENDS Trace"]
    for number, trace in enumerate(batch, 1):
        bookies = _bookie_names(trace)
        events = zip(trace.events, _client_names(trace), strict=True)
        lines.append(f"Events{number} == <<")
        lines.append(",\n".join(_event_text(event, client, bookies) for event, client in events))
        lines.append(">>")
        ensemble = _sequence(bookies[name] for name in trace.ensemble)
        lines.append(
            f"Trace{number} == [version |-> {trace.version}, ensemble |-> {ensemble}, events |-> Events{number}]"
        )
    lines.append(
        f"Batch == <<{', '.join(f'Trace{number}' for number in range(1, len(batch) + 1))}>>"
    )
    return "\n".join([*lines, "====", ""])


def _sequence(names: Iterable[str]) -> str:
    return "<<" + ", ".join(f'"{name}"' for name in names) + ">>"


def _event_text(event: dict[str, Any], client: str, bookies: dict[str, str]) -> str:
    """One event as a record; all have the same fields, since TLC compares records field by field."""
    numbers = ", ".join(
        f"{key} |-> {event.get(key) if event.get(key) is not None else -1}" for key in NUMBERS
    )
    segments = ", ".join(
        f"[first |-> {first}, ensemble |-> {_sequence(bookies[name] for name in ensemble)}]"
        for first, ensemble in event.get("segments") or []
    )
    return (
        f'[event |-> "{event["event"]}", client |-> "{client}", '
        f'bookie |-> "{bookies.get(str(event.get("bookie")), "none")}", '
        f"recovery |-> {'TRUE' if event.get('recovery') else 'FALSE'}, {numbers}, "
        f"ensemble |-> {_sequence(bookies[name] for name in event.get('ensemble') or [])}, segments |-> <<{segments}>>]"
    )


def config_text(batch: list[Trace]) -> str:
    """Write TLC's configuration for the batch: names and quorums, and no bounds to speak of."""
    recoverers = sorted(
        {name for trace in batch for name in _client_names(trace)} - {"w", "reader"}
    )
    bookies = sorted({name for trace in batch for name in _bookie_names(trace).values()})
    entries = 1 + max(
        (
            event["entry"]
            for trace in batch
            for event in trace.events
            if event.get("entry") is not None
        ),
        default=0,
    )
    first = batch[0]
    constants = {
        "Bookies": "{" + ", ".join(f'"{name}"' for name in bookies) + "}",
        "Recoverers": "{" + ", ".join(f'"{name}"' for name in recoverers) + "}",
        "Writer": '"w"',
        "E": len(first.ensemble),
        "Qw": first.write_quorum,
        "Qa": first.ack_quorum,
        "Racks": "{}",
        "Ordered": "TRUE",
        "SendLimit": max(entries, 1),
        "Faults": "{}",
        "ExplicitLac": "TRUE",
    }
    bounds = (
        "Window",
        "ReadAhead",
        "WriterChanges",
        "Namings",
        "RecoveryChanges",
        "Wipes",
        "Crashes",
        "Unknowns",
        "Edits",
    )
    lines = [
        "SPECIFICATION TraceSpec",
        "CHECK_DEADLOCK FALSE",
        f"INVARIANTS {CHECKED}",
        "CONSTRAINT Progress",
        "CONSTANTS",
    ]
    lines += [f"    {name} = {value}" for name, value in constants.items()]
    lines += [f"    {name} = {UNBOUNDED}" for name in bounds]
    return "\n".join([*lines, "    Traces <- Batch", ""])


def verdicts(output: str, batch: list[Trace]) -> list[Verdict]:
    """Read from TLC's output how far each trace of the batch came."""
    furthest = dict.fromkeys(range(1, len(batch) + 1), -1)
    for number, consumed in re.findall(r'<<"reached", (\d+), (\d+), \d+>>', output):
        furthest[int(number)] = max(furthest[int(number)], int(consumed))
    return [Verdict(trace, furthest[number]) for number, trace in enumerate(batch, 1)]
