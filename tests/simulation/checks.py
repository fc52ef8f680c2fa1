"""The judges of a simulated world: every invariant by its name, checked at each step that may break it."""

from __future__ import annotations

from tests.simulation.checks_bookie import BookieChecks
from tests.simulation.checks_ledger import LedgerChecks
from tests.simulation.checks_metadata import MetadataChecks

INVARIANTS = {
    "I1": "what was acknowledged can be read, with the same bytes, after any faults that the protocol is made for",
    "I2": "a ledger closed at x has no acknowledged entry above x",
    "I3": "two reads of one entry give the same",
    "I4": "what is read was written, as that entry of that ledger",
    "I5": "every entry up to the LAC, or the end, is found",
    "I6": "adds complete in order, and the head never falls",
    "I7": "a reader's LAC never falls and never passes what is acknowledged, or on a quorum",
    "I8": "of a closed ledger nothing changes but a bookie for another; finished fragments stay",
    "I9": "no add that began after a recoverer had counted its fences is acknowledged",
    "I10": "all that believe that they closed a ledger agree on its end and length",
    "I11": "a bookie says no only of what it never acknowledged",
    "I12": "a fence that was answered holds, through crashes and wipes",
    "I13": "the first master key wins",
    "I14": "a bookie never acknowledges two payloads for one entry",
    "I15": "a writer can read what it was told to be stored while its quorum is there",
    "I16": "metadata changes by compare-and-set, legally, and loses nobody's update",
    "I18": "every entry of a closed ledger, and every acknowledged one, is on Qa bookies of its fragment",
    "I19": "after a repair no fragment names the lost bookie and every entry is on Qw bookies",
    "I20": "after healing every ledger can be closed and read, and new ones written",
    "I24": "a ledger's record of domains is of its last ensemble",
    "I22": "what a bookie lacks of a ledger that its writer closed is marked",
    "I23": "what a bookie owes that was away when a ledger was created is marked, whoever closes it",
    "I21": "with deferred sync the LAC stays at what was forced; a force that succeeded is on all bookies",
}


class Checks(BookieChecks, MetadataChecks, LedgerChecks):
    """All checks of one world."""
