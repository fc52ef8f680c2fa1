"""What every counter, gauge and histogram of a bookie is called and means.

Keyed by the names of `native/boundary/stats_names.h`, whose numbers say where each lies in its
role's segment. A test keeps both lists the same. From these come the names at `/metrics`:
`FBK_C_JOURNAL_BATCHES` is `fastbk_journal_batches_total`, a gauge has no `_total`, and what measures
time carries its base unit (`fastbk_journal_commit_seconds`, `fastbk_worker_forces_done_seconds_total`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

_ROLES = ("WORKER", "JOURNAL", "INDEX", "GC")
_TIMES = {"_NS": 1e-9, "_US": 1e-6, "_MS": 1e-3}


@dataclass(frozen=True)
class Name:
    """One metric.

    Attributes:
        slot_name: its constant, which names its slot in the segment.
        role: whose segment it lies in.
        kind: counters only rise while a process lives; gauges go both ways.
        metric: its Prometheus name.
        scale: what a stored value is multiplied with to be in the metric's unit.
        text: its help.
        is_own: whether it has a `fastbk_` name at `/metrics`; what only dashboards made for Apache's bookies ask for
            has its name in `fastbk.observe.apache_names` alone (series are paid for).
    """

    slot_name: str
    role: str
    kind: Kind
    metric: str
    scale: float
    text: str
    is_own: bool = True
    is_limit: bool = False
    """Whether it has a series only from the first time on: most limits are never reached, and series are paid for."""

    @property
    def is_of_apaches_clients(self) -> bool:
        """Whether it stays 0 until a client speaks one of Apache's protocols."""
        return self.slot_name.split("_")[3] in ("V2", "V3")


def describe(slot_name: str, text: str, *, is_gauge: bool = False) -> Name:
    """Return the metric of a slot by the rules of this module. Raises ValueError for a name without
    a role.
    """
    _, letter, role, rest = slot_name.split("_", 3)
    if role not in _ROLES or letter not in ("C", "H"):
        raise ValueError(f"{slot_name} is not FBK_C_<ROLE>_... or FBK_H_<ROLE>_...")
    base, scale = rest, 1.0
    for ending, factor in _TIMES.items():
        if rest.endswith(ending):
            base, scale = rest.removesuffix(ending) + "_SECONDS", factor
    metric = f"fastbk_{role}_{base}".lower()
    kind: Kind = "histogram" if letter == "H" else "gauge" if is_gauge else "counter"
    if kind == "counter":
        metric += "_total"
    return Name(slot_name, role.lower(), kind, metric, scale, text)

_COUNTERS: dict[str, str] = {
    "FBK_C_WORKER_FRAMES": "Complete frames received.",
    "FBK_C_WORKER_BYTES_RECEIVED": "Bytes received from clients.",
    "FBK_C_WORKER_BYTES_SENT": "Bytes sent to clients.",
    "FBK_C_WORKER_ADDS": "Adds put into the ring, each batch add as one.",
    "FBK_C_WORKER_ADD_BATCHES": "Batch adds put into the ring.",
    "FBK_C_WORKER_READS": "Read requests put into the request ring.",
    "FBK_C_WORKER_FENCES": "Fencing reads put into the add ring.",
    "FBK_C_WORKER_FORCES": "Forces put into the add ring.",
    "FBK_C_WORKER_OTHER_REQUESTS": "Other requests that the index answers.",
    "FBK_C_WORKER_ACKS": "Adds answered with OK.",
    "FBK_C_WORKER_ANSWERS": "Requests answered, whatever the status.",
    "FBK_C_WORKER_REPLIES": "Frames taken from the index's reply ring.",
    "FBK_C_WORKER_REPLIES_STALE": "Replies whose connection was gone.",
    "FBK_C_WORKER_CONNECTIONS_ACCEPTED": "Connections accepted.",
    "FBK_C_WORKER_CONNECTIONS_REFUSED": "Connections closed at once because there were too many.",
    "FBK_C_WORKER_BAD_MAGIC": "Connections that did not begin with the protocol's magic.",
    "FBK_C_WORKER_BAD_LENGTH": "Frames with an impossible length; the connection is closed.",
    "FBK_C_WORKER_BAD_FRAME": "Frames that the verifier refused; the connection is closed.",
    "FBK_C_WORKER_BAD_FIRST": "Connections whose first request was not a hello.",
    "FBK_C_WORKER_BAD_VERSION": "Hellos without a version in common.",
    "FBK_C_WORKER_BAD_REQUEST": "Well-formed requests with a field out of its range.",
    "FBK_C_WORKER_BAD_DIGEST": "Entries whose digest does not match; not stored.",
    "FBK_C_WORKER_TOO_LARGE": "Frames above the limit.",
    "FBK_C_WORKER_REFUSED_KEY": "Requests refused for a missing master key.",
    "FBK_C_WORKER_REFUSED_READ_ONLY": "Adds refused because the bookie takes none now.",
    "FBK_C_WORKER_REFUSED_UNSUPPORTED": "Requests of an unknown kind.",
    "FBK_C_WORKER_HELLO_TIMEOUTS": "Connections closed because no hello came in time.",
    "FBK_C_WORKER_FRAME_TIMEOUTS": "Connections closed because a frame did not complete in time.",
    "FBK_C_WORKER_SLOW_READERS_CUT": "Connections cut because they did not read their replies.",
    "FBK_C_WORKER_WAITS_CREDIT": "Times that a connection waited for room in the write cache.",
    "FBK_C_WORKER_WAITS_RING": "Times that a connection waited for room in the add ring.",
    "FBK_C_WORKER_WAITS_REQUEST_RING": "Times that a connection waited for room in the request ring.",
    "FBK_C_WORKER_WAITS_PENDING": "Times that a connection waited because too many of its requests were unanswered.",
    "FBK_C_WORKER_WAITS_OUTPUT": "Times that a connection waited because it does not read its replies.",
    "FBK_C_WORKER_WAITS_MEMORY": "Times that a connection waited for memory for its frame.",
    "FBK_C_WORKER_WAKES": "Times that the worker was woken by its bell.",
    "FBK_C_WORKER_JOURNAL_BELLS": "Times that the worker woke the journal.",
    "FBK_C_WORKER_INDEX_BELLS": "Times that the worker woke the index.",
    "FBK_C_WORKER_COLD_REQUESTS": "Requests handled in Python: hello, info, ping.",
    "FBK_C_WORKER_WAITS_CONTEXT": "Times that a client of Apache's waited for others' requests to be answered.",
    "FBK_C_WORKER_APACHE_CONNECTIONS": "Connections that spoke Apache's protocols.",
    "FBK_C_WORKER_ADDS_UNVERIFIED": "Entries taken without a look at their digest: its type is not known yet, named by"
    " no metadata (both of Apache's clients only), or HMAC. DUMMY is no digest and does not count.",
    "FBK_C_JOURNAL_BATCHES": "Batches written and synced.",
    "FBK_C_JOURNAL_BYTES": "Bytes written to journal files, padding included.",
    "FBK_C_JOURNAL_PADDING_BYTES": "Bytes of them that fill blocks up.",
    "FBK_C_JOURNAL_DESCRIPTORS": "Batch descriptors published, also of batches that wrote nothing.",
    "FBK_C_JOURNAL_ADDS": "Adds taken from the rings, each batch add as one.",
    "FBK_C_JOURNAL_ENTRIES": "Entries in them.",
    "FBK_C_JOURNAL_CHECKS": "Adds left to the index to look at, because their id is not new.",
    "FBK_C_JOURNAL_RECOVERY_ADDS": "Adds with the recovery flag.",
    "FBK_C_JOURNAL_FENCES": "Ledgers fenced.",
    "FBK_C_JOURNAL_FENCES_REPEATED": "Fences of a ledger that was fenced before; nothing is written.",
    "FBK_C_JOURNAL_FORCES": "Forces ordered.",
    "FBK_C_JOURNAL_REFUSED_FENCED": "Adds refused because the ledger is fenced.",
    "FBK_C_JOURNAL_REFUSED_UNAUTHORIZED": "Requests refused for another master key.",
    "FBK_C_JOURNAL_REFUSED_READ_ONLY": "Adds refused because the journal may not grow.",
    "FBK_C_JOURNAL_REFUSED_LEDGERS": "Adds refused because there are too many ledgers.",
    "FBK_C_JOURNAL_REFUSED_DELETED": "Adds refused because the ledger was deleted.",
    "FBK_C_JOURNAL_REFUSED_BAD_REQUEST": "Records refused for a field that no client may send.",
    "FBK_C_JOURNAL_STALLS": "Times that nothing could be taken because descriptors or exceptions were all in use.",
    "FBK_C_JOURNAL_WORKER_BELLS": "Times that the journal woke a worker.",
    "FBK_C_JOURNAL_INDEX_BELLS": "Times that the journal woke the index.",
    "FBK_C_JOURNAL_ROLLS": "Changes to another file.",
    "FBK_C_JOURNAL_FILES_RECYCLED": "Files used again.",
    "FBK_C_JOURNAL_FILES_MADE": "Files written anew.",
    "FBK_C_INDEX_BATCHES": "Batch descriptors taken in.",
    "FBK_C_INDEX_ENTRIES": "Entries copied into the write cache.",
    "FBK_C_INDEX_ENTRY_BYTES": "Bytes of them.",
    "FBK_C_INDEX_SKIPPED": "Records that the journal had refused.",
    "FBK_C_INDEX_DUPLICATES": "Entries that were stored before with the same data.",
    "FBK_C_INDEX_CONFLICTS": "Entries that were stored before with other data; the stored one stays.",
    "FBK_C_INDEX_CHECKS": "Adds that needed a look at what is stored.",
    "FBK_C_INDEX_FENCES": "Fences answered.",
    "FBK_C_INDEX_READS": "Single reads.",
    "FBK_C_INDEX_READ_BATCHES": "Batch reads.",
    "FBK_C_INDEX_READ_ENTRIES": "Entries sent in replies.",
    "FBK_C_INDEX_READ_BYTES": "Bytes of them.",
    "FBK_C_INDEX_CACHE_HITS": "Entries found in a write cache.",
    "FBK_C_INDEX_RUN_HITS": "Entries found in a run that was in memory.",
    "FBK_C_INDEX_DISK_JOBS": "Looks at the disk.",
    "FBK_C_INDEX_NO_LEDGER": "Reads answered with: no such ledger.",
    "FBK_C_INDEX_NO_ENTRY": "Reads answered with: no such entry.",
    "FBK_C_INDEX_CANNOT_TELL": "Reads answered with: cannot tell.",
    "FBK_C_INDEX_LAC_READS": "Reads of a LAC.",
    "FBK_C_INDEX_LAC_WRITES": "Explicit LACs written.",
    "FBK_C_INDEX_LISTS": "Listings of entries.",
    "FBK_C_INDEX_AHEAD_JOBS": "Jobs that read ahead of a reader.",
    "FBK_C_INDEX_WAITS": "Long polls that waited.",
    "FBK_C_INDEX_WAITS_REFUSED": "Long polls refused because too many waited.",
    "FBK_C_INDEX_WAITS_TIMED_OUT": "Long polls whose time was over.",
    "FBK_C_INDEX_CANCELS": "Connections whose long polls were forgotten.",
    "FBK_C_INDEX_REPLY_FULL": "Answers that waited for room in a reply ring.",
    "FBK_C_INDEX_CACHE_FULL": "Batches that waited for a flush.",
    "FBK_C_INDEX_SEALS": "Write caches sealed for a flush.",
    "FBK_C_INDEX_FLUSHES": "Flushes finished.",
    "FBK_C_INDEX_FLUSH_FAILURES": "Flushes that failed and will be tried again.",
    "FBK_C_INDEX_MERGES": "Merges of locations files.",
    "FBK_C_INDEX_DELETED_LEDGERS": "Ledgers deleted on gc's word.",
    "FBK_C_INDEX_EXPIRED_LEDGERS": "Ledgers forgotten because metadata never listed them.",
    "FBK_C_INDEX_WORKER_BELLS": "Times that the index woke a worker.",
    "FBK_C_INDEX_SLEEPS": "Times that the index slept.",
    "FBK_C_INDEX_REPLAYED_BATCHES": "Batches read back from the journal at the start.",
    "FBK_C_INDEX_REPLAYED_RECORDS": "Records read back from the journal at the start.",
    "FBK_C_INDEX_SCRUB_BYTES": "Bytes read again to find damage.",
    "FBK_C_INDEX_SCRUB_CYCLES": "Times that everything stored was read again to find damage.",
    "FBK_C_INDEX_SCRUB_DAMAGED": "Runs that were found damaged, with entries that no other copy here is whole of.",
    "FBK_C_INDEX_SCRUB_DIGESTS": "Entries of which the scrub computed the digest.",
    "FBK_C_INDEX_SCRUB_BAD_DIGESTS": "Of these, those stored as they came, with a wrong digest: no reader takes them.",
    "FBK_C_INDEX_SCRUB_DIGESTS_KEYED": "Entries that the scrub read and could not check: their digest is an HMAC, and"
    " metadata has no password.",
    "FBK_C_INDEX_SCRUB_DIGESTS_UNKNOWN": "Entries that the scrub read while nobody could say which digest they have.",
    "FBK_C_INDEX_UNEXPECTED": "Adds that the journal took for new although they were stored.",
    "FBK_C_GC_CYCLES": "Looks for ledgers that metadata no longer lists.",
    "FBK_C_GC_CYCLES_STOPPED": "Looks that ended by an error or a rule before anything was deleted.",
    "FBK_C_GC_DELETED": "Ledgers deleted.",
    "FBK_C_GC_KEPT": "Candidates that metadata listed after all.",
    "FBK_C_GC_EXPIRED": "Ledgers that expired because metadata never listed them.",
    "FBK_C_GC_ADMITTED": "Ledgers that were let in by name though too many were unconfirmed.",
    "FBK_C_GC_LIMBO_OVER": "Ledgers that left limbo, metadata having put others in this bookie's place.",
    "FBK_C_GC_REFUSED": "Looks that would have deleted too much.",
    "FBK_C_GC_LOOKUPS": "Ledgers whose metadata was read in search of copies that it counts on no more.",
    "FBK_C_GC_COPIES_DROPPED": "Copies given to the index to be dropped, metadata having named other bookies.",
    "FBK_C_GC_COMPACTIONS": "Compactions begun.",
    "FBK_C_GC_COMPACTION_MOVED_BYTES": "Live bytes that compaction moved.",
    "FBK_C_GC_COMPACTION_FREED_BYTES": "Bytes won back by compaction.",
    "FBK_C_GC_COMPACTION_BAD_RUNS": "Runs of entries that compaction could not move, being damaged.",
    "FBK_C_GC_COMPACTION_ERRORS": "Compactions in which something ended early; see the log.",
    "FBK_C_WORKER_ADDS_REJECTED": "Adds of Apache's clients refused because too many waited.",
    "FBK_C_WORKER_READS_REJECTED": "Reads of Apache's clients refused because too many waited.",
    "FBK_C_WORKER_V2_READ_BATCHES": "Batch reads, over Apache's version 2.",
    "FBK_C_WORKER_V3_LONG_POLLS": "Reads that wait for the LAC, over Apache's version 3.",
    "FBK_C_WORKER_V3_LAC_WRITES": "Explicit LACs, over Apache's version 3.",
    "FBK_C_WORKER_V3_LAC_READS": "Reads of the LAC, over Apache's version 3.",
    "FBK_C_WORKER_V3_FORCES": "Forces, over Apache's version 3.",
    "FBK_C_WORKER_V3_LISTS": "Lists of a ledger's entries, over Apache's version 3.",
}

_OF_BOTH_VERSIONS = {
    "ADDS": "Adds",
    "ADD_BYTES": "Bytes of entries added",
    "READS": "Single reads, fencing ones too",
    "READ_BYTES": "Bytes of entries sent in replies",
    "OTHERS": "Other requests that were answered without Python",
}
"""Counters that a worker has for each version of Apache's protocol, as `FBK_C_WORKER_V2_ADDS`."""

_STATUSES = {
    "ENOLEDGER": "no such ledger",
    "ENOENTRY": "no such entry",
    "EBADREQ": "bad request",
    "EIO": "an error, or a conflict",
    "EUA": "another or no master key",
    "EBADVERSION": "unknown version",
    "EFENCED": "fenced",
    "EREADONLY": "read-only",
    "ETOOMANYREQUESTS": "too many requests",
    "EUNKNOWNLEDGERSTATE": "cannot tell",
}
"""Apache's statuses that a worker counts for each version, and what they mean."""

for _version in (2, 3):
    _COUNTERS |= {
        f"FBK_C_WORKER_V{_version}_{name}": f"{text}, over Apache's version {_version}."
        for name, text in _OF_BOTH_VERSIONS.items()
    } | {
        f"FBK_C_WORKER_V{_version}_{name}": f"Answers over Apache's version {_version} that said: {text}."
        for name, text in _STATUSES.items()
    }

_TIMED: dict[str, str] = {
    "FBK_C_WORKER_ADDS_FAILED": "Adds that were refused or failed, of all protocols.",
    "FBK_C_WORKER_READS_FAILED": "Reads that were refused or failed, of all protocols.",
    "FBK_C_WORKER_FENCES_DONE": "Fencing reads answered well, of all protocols.",
    "FBK_C_WORKER_FENCES_FAILED": "Fencing reads answered with anything else.",
    "FBK_C_WORKER_POLLS_DONE": "Long polls answered well, of all protocols.",
    "FBK_C_WORKER_POLLS_FAILED": "Long polls answered with anything else.",
    "FBK_C_WORKER_LAC_READS_DONE": "Reads of the LAC answered well, of all protocols.",
    "FBK_C_WORKER_LAC_READS_FAILED": "Reads of the LAC answered with anything else.",
    "FBK_C_WORKER_LAC_WRITES_DONE": "Writes of an explicit LAC answered well, of all protocols.",
    "FBK_C_WORKER_LAC_WRITES_FAILED": "Writes of an explicit LAC answered with anything else.",
    "FBK_C_WORKER_FORCES_DONE": "Forces answered well, of all protocols.",
    "FBK_C_WORKER_FORCES_FAILED": "Forces answered with anything else.",
    "FBK_C_WORKER_LISTS_DONE": "Lists of entries answered well, of all protocols.",
    "FBK_C_WORKER_LISTS_FAILED": "Lists of entries answered with anything else.",
    "FBK_C_WORKER_INFOS_DONE": "Questions for the disk's room answered well, of all protocols.",
    "FBK_C_WORKER_INFOS_FAILED": "Questions for the disk's room answered with anything else.",
}
"""Counters that have another one beside them, with `_US` behind the name: how long those took in all."""

_GAUGES: dict[str, str] = {
    "FBK_C_WORKER_UNREAD_REPLY_BYTES": "Bytes of replies that clients have not read yet.",
    "FBK_C_WORKER_ADDS_IN_PROGRESS": "Adds, fences and forces in the rings that the journal has not answered.",
    "FBK_C_WORKER_READS_IN_PROGRESS": "Requests that wait for the index, long polls left out.",
    "FBK_C_WORKER_ADDS_BLOCKED": "Connections whose next add waits for room.",
    "FBK_C_WORKER_READS_BLOCKED": "Connections whose next read waits for room.",
    "FBK_C_WORKER_RING_BYTES": "Bytes in the add rings that the journal has not answered.",
    "FBK_C_INDEX_STORED_ENTRIES": "Entries stored, those of deleted ledgers until their locations are merged away.",
    "FBK_C_INDEX_CACHE_ENTRIES": "Entries in the write cache that is being filled.",
    "FBK_C_INDEX_READ_CACHE_BYTES": "Bytes of the read cache in use.",
    "FBK_C_INDEX_READ_CACHE_ENTRIES": "Entries in the read cache.",
    "FBK_C_WORKER_CONNECTIONS": "Connections open.",
    "FBK_C_WORKER_INPUT_BYTES": "Memory held by frames that are not complete.",
    "FBK_C_WORKER_PENDING": "Requests not answered yet.",
    "FBK_C_JOURNAL_LEDGERS": "Ledgers known to the journal.",
    "FBK_C_JOURNAL_LEDGERS_UNCONFIRMED": "Ledgers that metadata was never seen to list; they expire.",
    "FBK_C_JOURNAL_TAKES_NO_NEW_LEDGERS": "1 while the bookie takes no new ledgers.",
    "FBK_C_JOURNAL_LIMIT": "What is refused: 0 nothing, 1 normal adds, 2 whatever would have to be written.",
    "FBK_C_JOURNAL_BEHIND_BYTES": "Bytes of journal files that replay would read.",
    "FBK_C_INDEX_LEDGERS": "Ledgers stored here.",
    "FBK_C_INDEX_WAITERS": "Long polls that wait.",
    "FBK_C_INDEX_CACHE_BYTES": "Bytes in the write cache that is being filled.",
    "FBK_C_INDEX_JOURNAL_BEHIND": "Journal bytes behind the mark, as far as taken in.",
    "FBK_C_INDEX_MARK": "The log mark: the last batch in a finished flush.",
    "FBK_C_INDEX_READS_ONLY": "What the index refuses: 0 nothing, 1 normal adds, 2 whatever would have to be written.",
    "FBK_C_INDEX_DAMAGED": "1 when damage is on record: no is never said.",
    "FBK_C_INDEX_BULK_RATE": "Bytes a second that history may be read at; adds and tail reads go first.",
    "FBK_C_INDEX_QUARANTINED": "Ranges of entries that were found damaged and are not repaired yet.",
    "FBK_C_INDEX_BAD_DIGESTS": "Ranges of entries that came with a wrong digest, as far as the scrub remembers.",
    "FBK_C_INDEX_LIMBO": "Ledgers whose data was lost here and not repaired yet.",
    "FBK_C_GC_UNCONFIRMED": "Ledgers here that metadata was never seen to list.",
    "FBK_C_GC_FOREIGN": "Of these, ledgers that metadata lists with another key or creation.",
    "FBK_C_GC_CANDIDATES": "Local ledgers that metadata did not list last time.",
    "FBK_C_GC_LEDGERS": "Local ledgers.",
    "FBK_C_GC_COPIES": "Copies that metadata did not count on when it was read last.",
    "FBK_C_GC_COMPACTION_RUNNING": "Compactions under way.",
    "FBK_C_GC_COMPACTION_STUCK": "1 while a compaction moves nothing.",
    "FBK_C_GC_SUSPENDED": "1 while an operator has suspended garbage collection or compaction.",
    "FBK_C_GC_LOGS": "Entry logs.",
    "FBK_C_GC_LOG_BYTES": "Bytes in entry logs.",
    "FBK_C_GC_LIVE_BYTES": "Bytes in entry logs that live, as of the last count.",
}

LIMITS: dict[str, str] = {
    "FBK_C_WORKER_UNREAD_REPLIES_CUT": "Connections cut because all unread replies together were too many.",
    "FBK_C_WORKER_WRITE_TIMEOUTS": "Connections cut because they read nothing of their replies for too long.",
    "FBK_C_WORKER_SLOW_FRAMES_CUT": "Connections closed because their frame was slow while others waited for memory.",
    "FBK_C_WORKER_SILENT_CLOSED": "Silent connections closed because most connections were in use.",
    "FBK_C_WORKER_TURNS_ENDED": "Times that a connection had to let others have their turn.",
    "FBK_C_WORKER_MEMORY_RETURNED": "Times that unused memory was given back to the system.",
}
"""What the counters of a worker's limits mean (docs/limits.md): they have series from their first event on."""

_HISTOGRAMS: dict[str, str] = {
    "FBK_H_WORKER_ADD_US": "From an add's last byte received to its answer, of those that went well.",
    "FBK_H_WORKER_READ_US": "From a read's last byte received to its answer, of those that went well.",
    "FBK_H_WORKER_RECEIVE_BYTES": "Bytes of one receive from a socket.",
    "FBK_H_WORKER_V2_ADD_US": "The same for adds over Apache's version 2.",
    "FBK_H_WORKER_V2_READ_US": "The same for reads over Apache's version 2, long polls left out.",
    "FBK_H_WORKER_V3_ADD_US": "The same for adds over Apache's version 3.",
    "FBK_H_WORKER_V3_READ_US": "The same for reads over Apache's version 3, long polls left out.",
    "FBK_H_JOURNAL_COMMIT_NS": "From the submission of a batch to its durability.",
    "FBK_H_JOURNAL_BATCH_BYTES": "Bytes of a batch.",
    "FBK_H_JOURNAL_BATCH_RECORDS": "Records of a batch.",
    "FBK_H_INDEX_INTAKE_NS": "From a batch's publication to its intake.",
    "FBK_H_INDEX_READ_NS": "From a read's arrival at the worker to its answer by the index.",
    "FBK_H_INDEX_FLUSH_NS": "Length of a flush.",
}

_FOR_APACHES_NAMES: dict[str, str] = {
    "FBK_C_INDEX_LOGS_RECLAIMED_BYTES": "Bytes of entry logs that are gone because nothing lived in them any more.",
    "FBK_C_INDEX_LOGS_NOT_UNLINKED": "Times that such a log could not be unlinked; it is tried again.",
    "FBK_C_JOURNAL_BATCHES_OF_ALL": "Batches that took all there was.",
    "FBK_C_JOURNAL_BATCHES_FULL": "Batches that left something in a ring for want of room.",
    "FBK_C_INDEX_PIGGYBACKS_EMPTY": "Answers with a LAC that grew but without the entry that was asked for with it.",
}
"""Counters that only Apache's names show (`fastbk.observe.apache_names`): they have no `fastbk_` series."""

_TIMED_FOR_APACHES_NAMES: dict[str, str] = {
    "FBK_C_INDEX_RECOUNTS_DONE": "Counts of what lives in which entry log.",
    "FBK_C_INDEX_RECOUNTS_FAILED": "Counts that failed and are done again.",
    "FBK_C_WORKER_RECOVERY_ADDS_DONE": "Recovery adds answered well, of all protocols; they are among the adds, too.",
    "FBK_C_WORKER_RECOVERY_ADDS_FAILED": "Recovery adds answered with anything else.",
    "FBK_C_WORKER_ADD_WAITS": "Waits of connections for room for their next add that are over.",
    "FBK_C_WORKER_READ_WAITS": "Waits of connections for room for their next read that are over.",
    "FBK_C_JOURNAL_QUEUED": "Records written, from received to the submission of their batch.",
    "FBK_C_JOURNAL_FILES_READY": "Files made or taken again, until they were found ready.",
    "FBK_C_INDEX_THROTTLED": "Batches that waited for a flush, until they went on.",
    "FBK_C_INDEX_READS_TAKEN": "Reads taken out of the request rings, no fencing ones, from received on.",
    "FBK_C_INDEX_FENCE_WAITS": "Fences, from received to durable and taken in.",
    "FBK_C_INDEX_FENCE_READS_DONE": "Reads of fences that went well, from then on.",
    "FBK_C_INDEX_FENCE_READS_FAILED": "Reads of fences answered with anything else.",
    "FBK_C_INDEX_POLL_STARTS": "Long polls, from received until they wait or are answered at once.",
    "FBK_C_INDEX_POLL_WAITS_DONE": "Waits of long polls until something came.",
    "FBK_C_INDEX_POLL_WAITS_FAILED": "Waits of long polls until their time was over.",
    "FBK_C_INDEX_POLL_READS_DONE": "Long polls answered well, from the end of their wait on.",
    "FBK_C_INDEX_POLL_READS_FAILED": "Long polls answered with anything else.",
    "FBK_C_GC_TURNS_DONE": "Looks for dead ledgers and for copies too many that came to their end.",
    "FBK_C_GC_TURNS_FAILED": "Looks of both kinds that an error or a rule stopped.",
    "FBK_C_GC_LOOKS_DONE": "Looks for dead ledgers that came to their end.",
    "FBK_C_GC_LOOKS_FAILED": "Looks for dead ledgers that an error or a rule stopped.",
    "FBK_C_GC_COMPACTIONS_DONE": "Runs of compaction that ended, also those that found nothing to do.",
    "FBK_C_GC_COMPACTIONS_FAILED": "Runs in which something ended early; see the log.",
}


def _with_times(counters: dict[str, str]) -> dict[str, str]:
    times = {f"{name}_US": "How long those took in all." for name in counters}
    return counters | times


NAMES: list[Name] = [
    *(describe(name, text) for name, text in (_COUNTERS | _with_times(_TIMED)).items()),
    *(describe(name, text, is_gauge=True) for name, text in _GAUGES.items()),
    *(replace(describe(name, text), is_limit=True) for name, text in LIMITS.items()),
    *(describe(name, text) for name, text in _HISTOGRAMS.items()),
    *(
        replace(describe(name, text), is_own=False)
        for name, text in (_FOR_APACHES_NAMES | _with_times(_TIMED_FOR_APACHES_NAMES)).items()
    ),
    replace(
        describe(
            "FBK_C_GC_COMPACTED_LOGS_PPM",
            "Of all sealed logs those that the last run of compaction has compacted, in millionths.",
            is_gauge=True,
        ),
        is_own=False,
    ),
]
"""All of them, each slot once."""
