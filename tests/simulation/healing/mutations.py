"""Faults of self-healing: each is planted into the product, and its seed is of a world that finds it."""

from __future__ import annotations

from tests.simulation.planting import fault

_JUDGE = "fastbk.autorecovery.lost_bookies:judge"
_AUDITOR = "fastbk.autorecovery.auditor:Auditor"
_WORKER = "fastbk.autorecovery.worker:ReplicationWorker"
_MARKED = "fastbk.replication.marked_repair:RepairMarkedLedger"
_MENDING = "fastbk.autorecovery.placement_mending:PlacementMending"
_MOVE = "fastbk.replication.re_replication:MoveCopies"
_CHOOSE = "fastbk.placement.choose_ensemble:"
_REPLICATE = "fastbk.replication.re_replication:ReReplicateLedger"

MUTATIONS = (
    fault(
        "delay_is_ignored",
        "H3: a lost bookie is due at once",
        (_JUDGE, "if left_s <= 0 or found.is_marked", "if True"),
        seed=9,
    ),
    fault(
        "delay_begins_anew",
        "H3: each auditor counts from its own first look",
        (
            _JUDGE,
            "found = before.lost.get(one)",
            "found = before.lost.get(one) if now_ms % 7 else None",
        ),
        seed=29,
    ),
    fault(
        "away_counts_as_gone",
        "H3: what is not registered is replaced, whatever its delay",
        (
            _MARKED + ".steps",
            "if bookie_id in view.gone:",
            "if bookie_id not in view.present:",
        ),
        seed=25,
    ),
    fault(
        "due_is_shared",
        "H3: all lost bookies are due when one is, as they are for Apache's auditor",
        (
            _AUDITOR + "._publish",
            "for one in judged.due if not lost",
            "for one in (lost if judged.due else ()) if not lost",
        ),
        (
            _AUDITOR + "._publish",
            "due=tuple(sorted(judged.due))",
            "due=tuple(sorted(lost if judged.due else ()))",
        ),
        seed=35,
    ),
    fault(
        "lock_is_not_needed",
        "H2: a worker repairs a ledger that another one has locked",
        (_WORKER + "._repair", "if lock is None:", "if False:"),
        (_WORKER + "._repair", "self._client.locks.run(lock, self._repair", "(self._repair"),
        seed=4,
    ),
    fault(
        "lock_is_kept",
        "H2: a lock is not given back",
        ("fastbk.client.metadata_calls:LockCalls._is_released", "lock.release()", "None"),
        seed=1001,
    ),
    fault(
        "vote_is_for_ever",
        "H1: who was elected once stays so, whatever became of its session",
        ("fastbk.meta.sqlite.coordination:RecordVote.is_elected", "and self._is_there()", ""),
        ("fastbk.meta.sqlite.coordination:RecordVote.is_elected", "not self.is_lost and", ""),
        ("fastbk.autorecovery.healer:Healer._is_elected", "and self._vote.is_lost", "and False"),
        seed=1,
    ),
    fault(
        "leases_of_others_are_forgotten",
        "H5: a lease is granted beside others that add up to the limit already",
        ("fastbk.autorecovery.rate_leases:RateLeases.grant", "limit - others", "limit"),
        (
            "fastbk.autorecovery.rate_leases:RateLeases.grant",
            "fair = limit * weight",
            "fair = limit * 2 * weight",
        ),
        seed=11,
    ),
    fault(
        "lease_never_ends",
        "H5: a worker that is cut off goes on at its rate",
        (
            "fastbk.autorecovery.worker:LeasedRate.announce",
            "self._limit), end_s",
            "self._limit), 1e9",
        ),
        seed=1062,
    ),
    fault(
        "named_before_it_has_all",
        "P7: metadata names a bookie that lacks entries which nobody could give",
        (_REPLICATE + "._copied", "if copied.lost_count:", "if False:"),
        (_REPLICATE + "._copied", "if copied.unread:", "if False:"),
        seed=36,
    ),
    fault(
        "move_drops_a_copy_early",
        "INV-P6: a move takes the copies as made, and does not ask for them",
        (
            _MOVE + "._share_of",
            "last, move.target, identity)",
            "last, move.target, identity, HeldEntries([(first, last)]))",
        ),
        (_MOVE + "._is_shown", "return not lack", "return True"),
        seed=956638323070,
    ),
    fault(
        "move_copies_too_little",
        "P7: a move names a bookie that has the first entry of its share only",
        (_MOVE + "._share_of", "last = last_of_fragment(metadata, positions[0])", "last = first"),
        seed=956638323060,
    ),
    fault(
        "misplaced_copies_stay",
        "what the auditor found misplaced is taken off its list, and lies as it did",
        (
            _MENDING + "._mend",
            "if not misplaced:",
            "if True:",
        ),
        seed=26,
    ),
    fault(
        "mark_is_dropped_unverified",
        "the mark of a gone bookie goes though a fragment names it still",
        (_MARKED + "._replace", "elif copied.left:", "elif False:"),
        ("fastbk.autorecovery.auditor:Verification._list", "if lost:", "if False:"),
        seed=4,
    ),
    fault(
        "holes_are_not_confirmed",
        "what was found missing twice is not marked",
        ("fastbk.autorecovery.auditor:Verification._confirm_one", "if not both:", "if both:"),
        seed=1005,
    ),
    fault(
        "repair_without_the_rule",
        "P4: a repair goes by the cluster's rule, whatever is stored with the ledger",
        (
            "fastbk.client.ensembles:Ensembles.replace",
            "rule_of(metadata.custom, cluster)",
            "cluster",
        ),
        seed=48,
    ),
    fault(
        "repair_loses_the_rule",
        "P4: the next repair finds no rule any more",
        (
            _REPLICATE + "._name",
            "fragments=tuple(fragments))",
            "fragments=tuple(fragments), custom={})",
        ),
        seed=23,
    ),
    fault(
        "hard_group_is_soft",
        'P4: "only these bookies" means "these first"',
        (_CHOOSE + "_tier", "config.group_is_hard", "False"),
        seed=48,
    ),
    fault(
        "soft_group_is_hard",
        'it does not heal: "these bookies first" means "only these"',
        (_CHOOSE + "_tier", "config.group_is_hard", "True"),
        seed=23,
    ),
    fault(
        "soft_is_enforced",
        "it does not heal: a rule that is not enforced refuses bookies",
        (_CHOOSE + "rules_of", "is_enforced = config.enforce or 1 <", "is_enforced = True or 1 <"),
        seed=7,
    ),
)
