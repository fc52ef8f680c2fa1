"""Planted faults of copies that a replaced bookie lacks: given to its replacement, named for it, or marked."""

from __future__ import annotations

from tests.simulation.planting import fault

_COPY = "fastbk.replication.copying:CopyShare"
_REPAIR = "fastbk.replication.re_replication:ReReplicateLedger"
_CLOSE = "fastbk.replication.writer_machine:CloseLedger"
_OWED = "fastbk.replication.under_replication:UnderReplication"


COPIES = [
    fault(
        "close-marks-nothing",
        "a ledger is closed with missing copies that nothing reports",
        (f"{_CLOSE}._mark", "owed.unmarked(owed.to_mark_at_end())", "()"),
    ),
    fault(
        "replaced-bookie-lacks-nothing",
        "what a replaced bookie lacks is forgotten",
        (f"{_OWED}.replace", "if is_lost else adds.lacking(index)", "if is_lost else []"),
    ),
    fault(
        "replacement-named-too-early",
        "metadata names a replacement whose share is not whole",
        (f"{_OWED}.collect", "if not self._adds.owns_any(", "if True or self._adds.owns_any("),
    ),
    fault(
        "replacement-named-for-what-was-given-up",
        "a share counts as whole though a part of it was dropped while it was copied",
        (f"{_OWED}._acknowledged", "*self._adds.given_up[share.index], ", ""),
    ),
    fault(
        "away-members-owe-nothing",
        "the mark of a member that was away goes while its ledger is written, and a crash of the writer hides the rest",
        (f"{_OWED}.to_mark", ", *owed_by(self._away.intersection(adds.ensemble))", ""),
    ),
    fault(
        "away-members-are-not-marked",
        "a ledger is created whose mark does not say what its away members owe",
        ("fastbk.replication.under_replication:owed_by", "in sorted(bookie_ids)", "in ()"),
    ),
    fault(
        "repair-asks-no-other-region",
        "a copier that reads near first gives up entries of which only a bookie of another region has a copy",
        (
            f"{_COPY}._in_order",
            "(*bookies[first:], *bookies[:first]),",
            "[each for each in (*bookies[first:], *bookies[:first]) if not self._standing(each).is_far],",
        ),
    ),
    fault(
        "repair-names-a-bookie-started-anew",
        "a bookie that lost a repair's copies, and came back without a doubt, is named for them",
        (f"{_REPAIR}._name", "metadata_timeout_s, share.identity", "metadata_timeout_s"),
    ),
    fault(
        "rebirth-voids-no-names",
        "a repair names a bookie between its listing of ledgers and its new life",
        (
            "fastbk.server.identity:void_pending_names",
            "store.write_identity(read.identity, read.version)",
            "read.version",
        ),
    ),
]
