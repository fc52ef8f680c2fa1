"""Checks recorded histories against what is promised; each violation names its invariant.

A ledger has one writer, so everything is a join on (ledger, entry): no search for a linearization is needed.

| name | promise |
|---|---|
| I1 durability | every acknowledged entry is read at the end, with its bytes |
| I2 truncation | a closed ledger's last entry is not below an acknowledged one |
| I3 agreement | two successful reads of an entry give the same bytes |
| I4 integrity | what is read was made by the writer of that ledger for that entry |
| I5 density | all entries 0..last of a closed ledger are read at the end |
| I6 order | adds of a writer are acknowledged in entry order |
| I7 LAC | a reader's LAC never falls, and never passes what was added |
| I9 fencing | nothing that was added after a recovering open returned is acknowledged |
| I10 single close | all who believe they closed a ledger, or recovered it, agree on its end |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Ledger:
    added: dict[int, float] = field(default_factory=dict)  # entry -> when it was invoked
    acknowledged: dict[int, float] = field(default_factory=dict)
    last_acknowledged: int = -1
    ends: dict[tuple[int, int | None], str] = field(default_factory=dict)
    recovered_at: float | None = None
    crcs: dict[int, int] = field(default_factory=dict)
    final: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    lacs: dict[str, int] = field(default_factory=dict)
    lac_seen: list[tuple[float, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What a history holds, and what is wrong with it."""

    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations


def check(events: Iterable[dict[str, Any]], *, is_final: bool = True) -> Report:
    """Check a history; `is_final`: it ends with reads of every ledger by at least one `final` reader."""
    report = Report()
    ledgers: dict[int, _Ledger] = defaultdict(_Ledger)
    for event in sorted(events, key=lambda one: float(one["at"])):
        report.counts[event["op"]] += 1
        if "ledger" in event:
            _take(ledgers[event["ledger"]], event, report)
    for ledger_id, ledger in sorted(ledgers.items()):
        _judge(ledger_id, ledger, report, is_final)
    report.counts["ledgers"] = len(ledgers)
    return report


def _take(ledger: _Ledger, event: dict[str, Any], report: Report) -> None:
    ledger_id, at, op = event["ledger"], float(event["at"]), event["op"]
    entry = int(event.get("entry", -1))
    if op == "add":
        ledger.added[entry] = at
    elif op == "added":
        if entry != ledger.last_acknowledged + 1:
            report.violations.append(
                f"I6: ledger {ledger_id}: entry {entry} acknowledged after {ledger.last_acknowledged}"
            )
        ledger.last_acknowledged = max(entry, ledger.last_acknowledged)
        ledger.acknowledged[entry] = at
    elif op == "closed":
        ledger.ends.setdefault((event["last"], event["length"]), event["who"])
    elif op == "opened":
        ledger.ends.setdefault((event["last"], event.get("length")), event["who"])
        ledger.recovered_at = min(at, ledger.recovered_at if ledger.recovered_at else at)
    elif op == "read":
        _take_read(ledger, event, report)
    elif op == "lac":
        by, lac = event["by"], int(event["lac"])
        if lac < ledger.lacs.get(by, -1):
            report.violations.append(
                f"I7: ledger {ledger_id}: the LAC of {by} fell from {ledger.lacs[by]} to {lac}"
            )
        ledger.lacs[by] = lac
        ledger.lac_seen.append((at, lac, by))


def _take_read(ledger: _Ledger, event: dict[str, Any], report: Report) -> None:
    ledger_id, entry, crc = event["ledger"], event["entry"], event["crc"]
    if crc == 0:
        report.violations.append(
            f"I4: ledger {ledger_id}: {event['by']} read bytes at entry {entry} that no writer made for it"
        )
    known = ledger.crcs.setdefault(entry, crc)
    if known != crc:
        report.violations.append(
            f"I3: ledger {ledger_id}: entry {entry} was read as {known:08x} and as {crc:08x}"
        )
    if event.get("final"):
        ledger.final[event["by"]].add(entry)


def _judge(ledger_id: int, ledger: _Ledger, report: Report, is_final: bool) -> None:
    bad = report.violations
    where = f"ledger {ledger_id}"
    highest = max(ledger.acknowledged, default=-1)
    lasts = {last for last, _ in ledger.ends}
    lengths = {length for _, length in ledger.ends if length is not None}
    if len(lasts) > 1 or len(lengths) > 1:
        said = ", ".join(f"{who}: {end}" for end, who in ledger.ends.items())
        bad.append(f"I10: {where} was closed with several ends: {said}")
    for last in lasts:
        if highest > last:
            bad.append(f"I2: {where} ends at {last} and entry {highest} was acknowledged")
    if ledger.recovered_at is not None:
        for entry in ledger.acknowledged:
            if ledger.added.get(entry, 0.0) > ledger.recovered_at:
                bad.append(
                    f"I9: {where}: entry {entry} was added after a recovery and acknowledged"
                )
    for at, lac, by in ledger.lac_seen:
        if lac >= 0 and (lac not in ledger.added or ledger.added[lac] > at):
            bad.append(f"I7: {where}: {by} saw LAC {lac} before that entry was added")
    for entry in ledger.crcs:
        if entry not in ledger.added:
            bad.append(f"I4: {where}: entry {entry} was read and never added")
    if not is_final:
        return
    if not lasts:
        bad.append(f"I20: {where} was never closed")
        return
    last = max(lasts)
    if not ledger.final and last >= 0:
        bad.append(f"I1: {where}: nobody read it at the end")
    for by, entries in ledger.final.items():
        missing = [entry for entry in range(last + 1) if entry not in entries]
        lost = [entry for entry in missing if entry in ledger.acknowledged]
        if lost:
            bad.append(f"I1: {where}: {by} did not get acknowledged entries {lost[:5]}")
        elif missing:
            bad.append(f"I5: {where}: {by} did not get entries {missing[:5]}")
