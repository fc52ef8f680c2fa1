"""The mutation gate: protocol faults that the simulator must find. They measure the simulator, not the product.

Each is a bug that somebody had (the numbers are those of Apache BookKeeper's issues), or one that a small slip makes.
"""

from __future__ import annotations

from tests.simulation.mutations_copies import COPIES
from tests.simulation.planting import fault

_ADDS = "fastbk.replication.add_machine:AddMachine"
_BOOKIE = "tests.fixtures.decide:LedgerTable"
_CHANGE = "fastbk.replication.metadata_update:EnsembleChange"
_CLOSE = "fastbk.replication.writer_machine:CloseLedger"
_COPY = "fastbk.replication.copying:CopyShare"
_DOMAINS = "fastbk.replication.ack_domains:"
_FENCE = "fastbk.replication.recovery:FenceEnsemble"
_LAC = "fastbk.replication.lac_procedures:ReadLastConfirmed"
_PART = "fastbk.replication.reading:ReadPart"
_PLACEMENT = "fastbk.placement.choose_ensemble:"
_POLL = "fastbk.replication.lac_procedures:PollLac"
_READ = "fastbk.replication.recovery:ReadForRecovery"
_RECOVER = "fastbk.replication.recovery:RecoverLedger"
_REPAIR = "fastbk.replication.re_replication:ReReplicateLedger"
_REPLICAS = "fastbk.replication.replicas:Replicas"
_REWRITE = "fastbk.replication.recovery:RewriteEntries"
_ROUND = "fastbk.replication.writer_machine:ChangeRound"
_TAIL = "fastbk.replication.recovery:RewriteTail"
_UPDATE = "fastbk.replication.metadata_update:MetadataUpdate"
_WRITER = "fastbk.replication.writer_machine:WriterMachine"


_ALL = [
    # --- recovery: fencing and reading ---------------------------------------------------------------------------
    fault(
        "recovery-reads-do-not-fence",
        "#2614: one lost fence, and an add completes on the unfenced bookie after it was judged missing",
        (f"{_READ}._request_from", "fence=True", "fence=False"),
    ),
    fault(
        "one-fence-is-enough",
        "reading begins before enough bookies are fenced",
        (
            f"{_FENCE}._is_covered",
            "return self._ack_sets.none_without(answered)",
            "return bool(answered)",
        ),
        (f"{_READ}._request_from", "fence=True", "fence=False"),
    ),
    fault(
        "recovery-reads-the-last-ensemble-only",
        "#2615: what lies before the last fragment is looked for in the wrong place",
        (f"{_FENCE}.__init__", "Fenced(fragment.first_entry_id - 1)", "Fenced(-1)"),
        (
            f"{_READ}.__init__",
            "metadata.fragment_of(entry_id)",
            "metadata.fragments[-1]",
        ),
    ),
    fault(
        "one-no-proves-missing",
        "#1067 turned round: fewer than Qw - Qa + 1 bookies decide that an entry is not there",
        (f"{_READ}._answered", "self._is_missing()", "replicas.absent"),
    ),
    fault(
        "cannot-tell-is-no",
        "#2908: a bookie that is not sure counts as one that never had the entry",
        (
            f"{_REPLICAS}._record_answer",
            "if reply.status in ABSENT_STATUSES:",
            "if reply.status in ABSENT_STATUSES or reply.status == Status.CANNOT_TELL:",
        ),
    ),
    fault(
        "io-error-is-no",
        "#2909: a failing disk counts as a proof",
        (
            f"{_REPLICAS}._record_answer",
            "if reply.status in ABSENT_STATUSES:",
            "if reply.status in ABSENT_STATUSES or reply.status == Status.IO_ERROR:",
        ),
    ),
    fault(
        "silence-is-no",
        "a bookie that is away counts as one that never had the entry",
        (f"{_REPLICAS}.record_reply", "self.passing.add(bookie_id)", "self.absent.add(bookie_id)"),
    ),
    fault(
        "damage-is-no",
        "a copy that fails its digest counts as no copy",
        (
            f"{_REPLICAS}._record_answer",
            "self.damaged = self.damaged or reply.damaged",
            "self.absent.add(bookie_id)",
        ),
    ),
    # --- recovery: writing and closing ---------------------------------------------------------------------------
    fault(
        "recovery-closes-before-rewriting",
        "entries that one bookie has become part of the ledger without a quorum",
        (
            f"{_REWRITE}._settle",
            "if not self._pending:",
            "if not self._pending or self._is_last_known:",
        ),
    ),
    fault(
        "rewriting-one-ack-short",
        "the quorum of rewritten entries is off by one",
        (
            f"{_REWRITE}._advance",
            "not self._ack_sets.contains(pending.acks)",
            "len(pending.acks) < self._metadata.ack_quorum - 1",
        ),
    ),
    fault(
        "rewriting-without-the-flag",
        "#4163: recovery adds are refused by the fence that recovery set",
        (f"{_REWRITE}._send", "recovery=True", "recovery=False"),
    ),
    fault(
        "rewriting-keeps-acks-of-replaced",
        "#3005 in recovery: a replaced bookie's copy counts in the new fragment",
        (f"{_REWRITE}._change", "pending.acks.discard(index)", "pass"),
    ),
    fault(
        "rewriting-names-nobody-new",
        "the fragments that recovery made in memory do not reach the metadata",
        (
            f"{_RECOVER}._close",
            "used = _used(tail.rewrite.fragments, base.fragments[-1], last)",
            "used = (base.fragments[-1],)",
        ),
    ),
    fault(
        "rewriting-confirms-itself",
        "rewritten entries carry a LAC that a competitor may close below",
        (f"{_REWRITE}._send", "AddEntry(entry_id, self._lac,", "AddEntry(entry_id, entry_id - 1,"),
    ),
    fault(
        "recovery-without-taking-over",
        "the state stays OPEN, so the writer may change its ensemble and go on",
        (
            f"{_RECOVER}.steps",
            "MetadataUpdate(in_recovery,",
            "MetadataUpdate(lambda current: None,",
        ),
        (
            f"{_RECOVER}._close",
            "current.state is not LedgerState.IN_RECOVERY or not is_same",
            "False",
        ),
    ),
    fault(
        "length-of-the-newest",
        "the closed length counts entries that were cut off",
        (
            f"{_TAIL}.__init__",
            "fenced.lengths.get(fenced.lac)",
            "max(fenced.lengths.values(), default=None)",
        ),
    ),
    fault(
        "recoverer-moves-the-end",
        "a recoverer closes what a competitor has closed lower",
        (f"{_RECOVER}._close", "if current.is_closed:", "if current.length < 0:"),
        (
            f"{_RECOVER}._close",
            "current.state is not LedgerState.IN_RECOVERY or not is_same",
            "not is_same",
        ),
        (
            f"{_RECOVER}._close",
            "replace(current, fragments=fragments).closed(last, length)",
            "replace(current, fragments=fragments, state=LedgerState.CLOSED, last_entry_id=last, length=length)",
        ),
    ),
    # --- racks ---------------------------------------------------------------------------------------------------
    fault(
        "acknowledges-in-one-rack",
        "Qa answers complete an add of a ledger that is to be durable in several racks",
        (
            f"{_ADDS}._spanned_below",
            "ack_sets.contains(members)",
            "len(members) >= ack_sets.ack_quorum",
        ),
    ),
    fault(
        "acknowledges-in-one-rack-out-of-order",
        "the same, of what a bookie acknowledged ahead of its frontier",
        (
            f"{_ADDS}._is_complete",
            "self.ack_sets is not None",
            "self.ack_sets is not None and False",
        ),
    ),
    fault(
        "recovery-wants-one-rack-more",
        "recovery counts racks with another bound than the writer, and decides too early",
        (
            f"{_DOMAINS}_ack_sets",
            "Span(count, tuple(places), noun)",
            "Span(count + (None not in unknown), tuple(places), noun)",
        ),
    ),
    fault(
        "unrecorded-members-are-nowhere",
        "recovery takes a member of which nothing is recorded to be in no rack, and decides too early",
        (
            f"{_DOMAINS}deciding",
            "list(range(metadata.ensemble_size))",
            "[None] * metadata.ensemble_size",
        ),
    ),
    fault(
        "racks-are-lost-at-a-change",
        "an ensemble change leaves the record of racks as it was",
        (f"{_DOMAINS}custom_of_changed", "stored.changed(ensemble, domains.of)", "stored"),
    ),
    fault(
        "replacement-is-where-its-predecessor-was",
        "a new member counts in the rack of the one that it replaced",
        (
            f"{_WRITER}._adopt",
            "self.adds.ack_sets = acknowledging(found.metadata, self._domains)",
            "pass",
        ),
    ),
    fault(
        "rewriting-in-one-rack",
        "Qa copies of a rewritten entry are enough, in whichever rack",
        (
            f"{_REWRITE}._advance",
            "not self._ack_sets.contains(pending.acks)",
            "len(pending.acks) < self._metadata.ack_quorum",
        ),
    ),
    fault(
        "recovery-waits-for-the-plain-count",
        "a rack that is away stops a recovery, though the others know all that was acknowledged",
        (f"{_DOMAINS}deciding", "recorded(metadata.custom)", "None"),
    ),
    fault(
        "choice-does-not-span",
        "a replacement is taken although no append can be acknowledged with it",
        (
            f"{_PLACEMENT}rules_of",
            "racks, acked_racks = config.min_racks_per_write_quorum, config.min_racks_per_ack_quorum",
            "racks, acked_racks = config.min_racks_per_write_quorum, 1",
        ),
        (f"{_ROUND}._wanted_of", "domains is None or", "True or"),
    ),
    # --- metadata ------------------------------------------------------------------------------------------------
    fault(
        "conflict-is-success",
        "BOOKKEEPER-584: a lost compare-and-set is taken for a won one",
        (
            f"{_UPDATE}._write",
            "except MetadataConflict as error:",
            "except MetadataConflict as error:\n        return version + 1",
        ),
    ),
    fault(
        "unknown-is-success",
        "a compare-and-set without an answer is taken for done",
        (
            f"{_UPDATE}._write",
            "yield from self._pause()",
            "return version + 1",
        ),
    ),
    fault(
        "writer-closes-a-closed-ledger",
        "a writer moves the end that a recoverer has set",
        (f"{_CLOSE}._decide", "if not metadata.is_closed:", "if metadata.write_quorum:"),
    ),
    fault(
        "writer-closes-at-what-it-sent",
        "the end lies behind what a quorum has",
        (
            f"{_WRITER}.closing",
            "self.last_add_confirmed, self.length_confirmed",
            "self.adds.next_entry_id - 1, self.adds.next_length",
        ),
    ),
    # --- the writer ----------------------------------------------------------------------------------------------
    fault(
        "one-ack-short",
        "the ack quorum of adds is off by one",
        (
            f"{_ADDS}.__init__",
            "self.ack_quorum = ack_quorum",
            "self.ack_quorum = max(1, ack_quorum - 1)",
        ),
    ),
    fault(
        "acks-overtake",
        "an ack counts for everything before it",
        (
            f"{_ADDS}.acknowledged",
            "first_entry_id <= frontier or",
            "first_entry_id <= self.next_entry_id or",
        ),
    ),
    fault(
        "no-freeze",
        "#1591: adds complete on an ensemble that the metadata does not name yet",
        (f"{_ADDS}.freeze", "self.is_frozen = True", "pass"),
    ),
    fault(
        "ack-of-replaced-kept",
        "#3005: an entry stays complete although the change broke its quorum",
        (f"{_ADDS}.replace", "self._frontier[index] = self._nothing_below[index] = start", "pass"),
    ),
    fault(
        "ack-of-replaced-counted",
        "a late ack of a bookie that is no member any more counts for its successor",
        (f"{_WRITER}._adopt", "self._index = {", "self._index = self._index | {"),
    ),
    fault(
        "fragment-starts-too-late",
        "#4651: metadata names bookies that lack the entries",
        (f"{_ROUND}._write", "adds.head, chosen", "adds.next_entry_id, chosen"),
    ),
    fault(
        "change-loses-the-rule",
        "whoever repairs the ledger later puts its copies anywhere",
        (f"{_CHANGE}.of", "fragments=fragments, custom=custom", "fragments=fragments, custom={}"),
    ),
    fault(
        "writer-changes-a-fenced-ledger",
        "an ensemble change goes on although the ledger is being recovered",
        (f"{_CHANGE}.of", "check_open(self.ledger_id, metadata)", "pass"),
    ),
    fault(
        "lac-is-what-was-sent",
        "entries confirm others that no quorum has",
        (
            f"{_WRITER}.last_add_confirmed",
            "self.adds.last_add_confirmed",
            "self.adds.next_entry_id - 1",
        ),
    ),
    fault(
        "writer-never-thaws",
        "#4261: after a change that replaced nothing the writer stands still",
        (f"{_WRITER}._check_due", "adds.thaw()", "adds.is_frozen = not due or self.changes > 0"),
    ),
    fault(
        "nothing-is-sent-again",
        "what a bookie missed while it was away never reaches it",
        (f"{_ADDS}.rewind", "if number < self._sent[index]:", "if number < 0:"),
    ),
    fault(
        "deferred-ledger-changes-bookies",
        "a ledger with deferred sync goes on without a bookie whose unforced copies are lost",
        (f"{_WRITER}._begin_change", "if self.options.is_deferred:", "if self.ledger_id < 0:"),
    ),
    fault(
        "index-overflows",
        "entry ids beyond 2^31 are written to other bookies than they are read from",
        (
            "fastbk.model.quorum:write_set",
            "first = entry_id % ensemble",
            "first = ((entry_id + 2**31) % 2**32 - 2**31) % ensemble",
        ),
    ),
    # --- bookies -------------------------------------------------------------------------------------------------
    fault(
        "fence-is-not-replayed",
        "a fence is forgotten with the process that set it",
        (
            f"{_BOOKIE}.replay",
            "request = self._fill(ledger_id, entry_id, kind,",
            "request = self._fill(ledger_id, entry_id, Kind.ADD,",
        ),
    ),
    fault(
        "key-is-not-replayed",
        "after a restart another key is as good",
        (
            f"{_BOOKIE}.replay",
            "check(lib.fbk_decide_table_replay(self._handle, request),",
            "(request,",
        ),
    ),
    fault(
        "fence-is-not-asked",
        "normal adds pass a fence",
        (
            f"{_BOOKIE}.decide",
            "flags, master_key, entry_count)",
            "RECOVERY, master_key, entry_count)",
        ),
    ),
    fault(
        "limbo-says-no",
        '#2612: a bookie that lost its data says "no" of what it held',
        (
            f"{_BOOKIE}.missing",
            "int(lib.fbk_decide_table_no(self._handle, ledger_id, in_doubt))",
            "min(11, int(lib.fbk_decide_table_no(self._handle, ledger_id, in_doubt)))",
        ),
    ),
    fault(
        "limbo-forgets-recoveries",
        "a bookie that lost what a recoverer had just given it comes back without a doubt",
        (
            "fastbk.server.identity:ledgers_of",
            "or_in_recovery and",
            "not or_in_recovery and",
        ),
    ),
    fault(
        "states-are-not-loaded",
        "what a bookie was told about a ledger, limbo or deletion, is forgotten",
        (f"{_BOOKIE}.put", "pack_state(state)", "pack_state(LedgerState(state.ledger_id))"),
    ),
    # --- readers and repairs ---------------------------------------------------------------------------------------
    fault(
        "reader-believes-one-no",
        "an acknowledged entry is reported as missing because one bookie lacks it and the others are away",
        (
            f"{_PART}._is_proof",
            ">= missing_proof(metadata.write_quorum, metadata.ack_quorum)",
            ">= 1",
        ),
    ),
    fault(
        "reader-proves-by-old-metadata",
        'a member that was replaced after the metadata was read says "no" in good faith, and is believed',
        (f"{_PART}._all_replied", "is_absent and not", "False and not"),
    ),
    fault(
        "reader-leaps-gaps",
        "what a bookie lacks is passed over in silence",
        (
            "fastbk.replication.reading:_consecutive",
            "count and found[0].entry_id == first and",
            "count and found[-1].entry_id <= last or count and",
        ),
    ),
    fault(
        "piggyback-without-proof",
        "a tailing reader gets an entry that nothing confirms",
        (f"{_POLL}._news", "self._entry if lac >= self._position else None", "self._entry"),
        (
            f"{_POLL}._answered",
            "if self._lac >= self._position:",
            "if self._entry or self._lac >= self._position:",
        ),
    ),
    fault(
        "lac-begins-in-the-last-fragment",
        "the first entry of a new fragment counts as confirmed before it is",
        (f"{_LAC}.__init__", "fragment.first_entry_id - 1", "fragment.first_entry_id"),
    ),
    fault(
        "repair-names-first",
        "metadata names a bookie to which the copies did not get",
        (
            f"{_REPAIR}._copy",
            "share.first, share.last)",
            "share.first, share.first - 1)",
        ),
    ),
    fault(
        "repair-without-the-flag",
        "#4163: copies for a fenced ledger are refused",
        (f"{_COPY}._write", "recovery=True", "recovery=False"),
    ),
]

MUTATIONS = {one.name: one for one in (*_ALL, *COPIES)}
