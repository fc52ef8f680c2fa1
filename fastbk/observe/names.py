"""What every counter, gauge and histogram of a bookie is called and means, and its slot in its role's segment.

The build writes the slots for C (`base/slots.h`): "JOURNAL_BATCHES" is `FBK_C_JOURNAL_BATCHES` there, and a histogram
begins with `FBK_H_`. From these names come those at `/metrics`: this one is `fastbk_journal_batches_total`, a gauge has
no `_total`, and what measures time carries its base unit (`fastbk_journal_commit_seconds`,
`fastbk_worker_forces_done_seconds_total`). A slot never gets another meaning while processes of two builds could meet
in one bookie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
_ROLES = ("WORKER", "JOURNAL", "INDEX", "GC")
_TIMES = {"_NS": 1e-9, "_US": 1e-6, "_MS": 1e-3}

ADOPT_REASONS = ("", "off", "level", "other disk", "unsynced", "small batches", "buffered", "loose")
"""Why a journal file does not adopt. Their places are the values of a gauge: none gets another one."""


class Name(NamedTuple):
    """One metric.

    Attributes:
        slot_name: its constant in C.
        slot: its number among the counters, or the histograms, of its role's segment.
        role: whose segment it lies in.
        kind: counters only rise while a process lives; gauges go both ways.
        metric: its Prometheus name.
        scale: what a stored value is multiplied with to be in the metric's unit.
        text: its help.
        is_own: False: only Apache's name shows it (`fastbk.server.admin.apache_metrics`): series are paid for.
    """

    slot_name: str
    slot: int
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


def describe(slot_name: str, slot: int, text: str, *, is_gauge: bool = False) -> Name:
    """Return the metric of a slot by the rules of this module. Raises ValueError for a name without a role."""
    _, letter, role, rest = slot_name.split("_", 3)
    if role not in _ROLES or letter not in ("C", "H"):
        raise ValueError(f"{slot_name} is not FBK_C_<ROLE>_... or FBK_H_<ROLE>_...")
    base, scale = rest, 1.0
    for ending, factor in _TIMES.items():
        if rest.endswith(ending):
            base, scale = rest.removesuffix(ending) + "_SECONDS", factor
    kind: Kind = "histogram" if letter == "H" else "gauge" if is_gauge else "counter"
    metric = f"fastbk_{role}_{base}{'_total' if kind == 'counter' else ''}".lower()
    return Name(slot_name, slot, role.lower(), kind, metric, scale, text)


Slots = dict[str, tuple[int, str]]
_COUNTERS: Slots = {
    "WORKER_FRAMES": (0, "Complete frames received."),
    "WORKER_BYTES_RECEIVED": (1, "Bytes received from clients."),
    "WORKER_BYTES_SENT": (2, "Bytes sent to clients."),
    "WORKER_ADDS": (3, "Adds put into the ring, each batch add as one."),
    "WORKER_ADD_BATCHES": (4, "Batch adds put into the ring."),
    "WORKER_READS": (5, "Read requests put into the request ring."),
    "WORKER_FENCES": (6, "Fencing reads put into the add ring."),
    "WORKER_FORCES": (7, "Forces put into the add ring."),
    "WORKER_OTHER_REQUESTS": (8, "Other requests that the index answers."),
    "WORKER_ACKS": (9, "Adds answered with OK."),
    "WORKER_REPLIES": (11, "Frames taken from the index's reply ring."),
    "WORKER_REPLIES_STALE": (12, "Replies whose connection was gone."),
    "WORKER_CONNECTIONS_ACCEPTED": (14, "Connections accepted."),
    "WORKER_CONNECTIONS_REFUSED": (15, "Connections closed at once because there were too many."),
    "WORKER_BAD_MAGIC": (18, "Connections that did not begin with the protocol's magic."),
    "WORKER_BAD_LENGTH": (19, "Frames with an impossible length; the connection is closed."),
    "WORKER_BAD_FRAME": (20, "Frames that the verifier refused; the connection is closed."),
    "WORKER_BAD_FIRST": (21, "Connections whose first request was not a hello."),
    "WORKER_BAD_VERSION": (22, "Hellos without a version in common."),
    "WORKER_BAD_REQUEST": (23, "Well-formed requests with a field out of its range."),
    "WORKER_BAD_DIGEST": (24, "Entries whose digest does not match; not stored."),
    "WORKER_TOO_LARGE": (25, "Frames above the limit."),
    "WORKER_REFUSED_KEY": (26, "Requests refused for a missing master key."),
    "WORKER_REFUSED_READ_ONLY": (27, "Adds refused because the bookie takes none now."),
    "WORKER_REFUSED_UNSUPPORTED": (28, "Requests of an unknown kind."),
    "WORKER_HELLO_TIMEOUTS": (29, "Connections closed because no hello came in time."),
    "WORKER_FRAME_TIMEOUTS": (30, "Connections closed because a frame did not complete in time."),
    "WORKER_SLOW_READERS_CUT": (31, "Connections cut because they did not read their replies."),
    "WORKER_WAITS_CREDIT": (32, "Times that a connection waited for room in the write cache."),
    "WORKER_WAITS_RING": (33, "Times that a connection waited for room in the add ring."),
    "WORKER_WAITS_REQUEST_RING": (
        34,
        "Times that a connection waited for room in the request ring.",
    ),
    "WORKER_WAITS_PENDING": (
        35,
        "Times that a connection waited because too many of its requests were unanswered.",
    ),
    "WORKER_WAITS_OUTPUT": (
        36,
        "Times that a connection waited because it does not read its replies.",
    ),
    "WORKER_WAITS_MEMORY": (37, "Times that a connection waited for memory for its frame."),
    "WORKER_WAKES": (38, "Times that the worker was woken by its bell."),
    "WORKER_JOURNAL_BELLS": (39, "Times that the worker woke the journal."),
    "WORKER_INDEX_BELLS": (40, "Times that the worker woke the index."),
    "WORKER_SENDS": (143, "Sends to sockets."),
    "WORKER_POLLS": (144, "Times that the worker received from all readable connections."),
    "WORKER_COLD_REQUESTS": (41, "Requests handled in Python: hello, info, ping."),
    "WORKER_WAITS_CONTEXT": (
        42,
        "Times that a client of Apache's waited for others' requests to be answered.",
    ),
    "WORKER_APACHE_CONNECTIONS": (43, "Connections that spoke Apache's protocols."),
    "WORKER_ADDS_UNVERIFIED": (
        80,
        "Entries taken with no look at their digest: of unknown type, or HMAC, not DUMMY.",
    ),
    "JOURNAL_BATCHES": (0, "Batches written and synced."),
    "JOURNAL_BYTES": (1, "Bytes written to journal files, padding included."),
    "JOURNAL_PADDING_BYTES": (2, "Bytes of them that fill blocks up."),
    "JOURNAL_ADDS": (4, "Adds taken from the rings, each batch add as one."),
    "JOURNAL_ENTRIES": (5, "Entries in them."),
    "JOURNAL_CHECKS": (6, "Adds left to the index to look at, because their id is not new."),
    "JOURNAL_RECOVERY_ADDS": (7, "Adds with the recovery flag."),
    "JOURNAL_FENCES": (8, "Ledgers fenced."),
    "JOURNAL_FENCES_REPEATED": (
        9,
        "Fences of a ledger that was fenced before; nothing is written.",
    ),
    "JOURNAL_FORCES": (10, "Forces ordered."),
    "JOURNAL_REFUSED_FENCED": (11, "Adds refused because the ledger is fenced."),
    "JOURNAL_REFUSED_UNAUTHORIZED": (12, "Requests refused for another master key."),
    "JOURNAL_REFUSED_READ_ONLY": (13, "Adds refused because the journal may not grow."),
    "JOURNAL_REFUSED_LEDGERS": (14, "Adds refused because there are too many ledgers."),
    "JOURNAL_REFUSED_DELETED": (25, "Adds refused because the ledger was deleted."),
    "JOURNAL_REFUSED_BAD_REQUEST": (15, "Records refused for a field that no client may send."),
    "JOURNAL_STALLS": (
        16,
        "Times that nothing could be taken because descriptors or exceptions were all in use.",
    ),
    "JOURNAL_WORKER_BELLS": (17, "Times that the journal woke a worker."),
    "JOURNAL_INDEX_BELLS": (18, "Times that the journal woke the index."),
    "JOURNAL_ROLLS": (19, "Changes to another file."),
    "JOURNAL_FILES_RECYCLED": (23, "Files used again."),
    "JOURNAL_FILES_MADE": (24, "Files written anew."),
    "JOURNAL_FILES_ALLOCATED": (
        81,
        "Files that a burst took before they were full of zeros: part of them was only allocated.",
    ),
    "JOURNAL_DISK_WRITTEN_BYTES": (82, "Bytes that the journal's process handed to disks."),
    "INDEX_BATCHES": (0, "Batch descriptors taken in."),
    "INDEX_ENTRIES": (1, "Entries copied into the write cache."),
    "INDEX_ENTRY_BYTES": (2, "Bytes of them."),
    "INDEX_SKIPPED": (3, "Records that the journal had refused."),
    "INDEX_DUPLICATES": (4, "Entries that were stored before with the same data."),
    "INDEX_CONFLICTS": (
        5,
        "Entries that were stored before with other data; the stored one stays.",
    ),
    "INDEX_CHECKS": (6, "Adds that needed a look at what is stored."),
    "INDEX_FENCES": (7, "Fences answered."),
    "INDEX_READS": (8, "Single reads."),
    "INDEX_READ_BATCHES": (9, "Batch reads."),
    "INDEX_READ_ENTRIES": (10, "Entries sent in replies."),
    "INDEX_READ_BYTES": (11, "Bytes of them."),
    "INDEX_CACHE_HITS": (12, "Entries found in a write cache."),
    "INDEX_RUN_HITS": (13, "Entries found in a run that was in memory."),
    "INDEX_DISK_JOBS": (14, "Looks at the disk."),
    "INDEX_NO_LEDGER": (15, "Reads answered with: no such ledger."),
    "INDEX_NO_ENTRY": (16, "Reads answered with: no such entry."),
    "INDEX_CANNOT_TELL": (17, "Reads answered with: cannot tell."),
    "INDEX_LAC_READS": (18, "Reads of a LAC."),
    "INDEX_LAC_WRITES": (19, "Explicit LACs written."),
    "INDEX_LISTS": (20, "Listings of entries."),
    "INDEX_AHEAD_JOBS": (45, "Jobs that read ahead of a reader."),
    "INDEX_WAITS": (21, "Long polls that waited."),
    "INDEX_WAITS_REFUSED": (22, "Long polls refused because too many waited."),
    "INDEX_WAITS_TIMED_OUT": (23, "Long polls whose time was over."),
    "INDEX_CANCELS": (24, "Connections whose long polls were forgotten."),
    "INDEX_REPLY_FULL": (25, "Answers that waited for room in a reply ring."),
    "INDEX_CACHE_FULL": (26, "Batches that waited for a flush."),
    "INDEX_FLUSHES": (28, "Flushes finished."),
    "INDEX_FLUSH_COPIED_BYTES": (
        57,
        "Bytes of entries that flushes copied on their way to an entry log.",
    ),
    "INDEX_ADOPTED_BYTES": (
        83,
        "Bytes of runs that flushes left where the journal had written them.",
    ),
    "INDEX_FLUSH_FAILURES": (29, "Flushes that failed and will be tried again."),
    "INDEX_MERGES": (30, "Merges of locations files."),
    "INDEX_DELETED_LEDGERS": (31, "Ledgers deleted on gc's word."),
    "INDEX_DISK_WRITTEN_BYTES": (82, "Bytes that the index's process handed to disks."),
    "INDEX_EXPIRED_LEDGERS": (56, "Ledgers forgotten because metadata never listed them."),
    "INDEX_WORKER_BELLS": (32, "Times that the index woke a worker."),
    "INDEX_SLEEPS": (33, "Times that the index slept."),
    "INDEX_REPLAYED_BATCHES": (41, "Batches read back from the journal at the start."),
    "INDEX_REPLAYED_RECORDS": (42, "Records read back from the journal at the start."),
    "INDEX_SCRUB_BYTES": (46, "Bytes read again to find damage."),
    "INDEX_SCRUB_CYCLES": (47, "Times that everything stored was read again to find damage."),
    "INDEX_SCRUB_DAMAGED": (
        48,
        "Runs that were found damaged, with entries that no other copy here is whole of.",
    ),
    "INDEX_DAMAGE_FOUND": (
        58,
        "Places that did not read back as they were written, whoever met them.",
    ),
    "INDEX_SCRUB_DIGESTS": (51, "Entries of which the scrub computed the digest."),
    "INDEX_SCRUB_BAD_DIGESTS": (
        52,
        "Of these, those stored as they came, with a wrong digest: no reader takes them.",
    ),
    "INDEX_SCRUB_DIGESTS_KEYED": (
        53,
        "Entries whose HMAC the scrub could not check: metadata has no password.",
    ),
    "INDEX_SCRUB_DIGESTS_UNKNOWN": (
        54,
        "Entries that the scrub read while nobody could say which digest they have.",
    ),
    "INDEX_UNEXPECTED": (43, "Adds that the journal took for new although they were stored."),
    "GC_CYCLES": (0, "Looks for ledgers that metadata no longer lists."),
    "GC_CYCLES_STOPPED": (1, "Looks that ended by an error or a rule before anything was deleted."),
    "GC_DELETED": (3, "Ledgers deleted."),
    "GC_KEPT": (4, "Candidates that metadata listed after all."),
    "GC_EXPIRED": (46, "Ledgers that expired because metadata never listed them."),
    "GC_ADMITTED": (48, "Ledgers that were let in by name though too many were unconfirmed."),
    "GC_LIMBO_OVER": (
        7,
        "Ledgers that left limbo, metadata having put others in this bookie's place.",
    ),
    "GC_REFUSED": (5, "Looks that would have deleted too much."),
    "GC_LOOKUPS": (
        8,
        "Ledgers whose metadata was read in search of copies that it counts on no more.",
    ),
    "GC_COPIES_DROPPED": (
        10,
        "Copies given to the index to be dropped, metadata having named other bookies.",
    ),
    "GC_COMPACTIONS": (11, "Compactions begun."),
    "GC_COMPACTION_MOVED_BYTES": (13, "Live bytes that compaction moved."),
    "GC_COMPACTION_FREED_BYTES": (14, "Bytes won back by compaction."),
    "GC_COMPACTION_BAD_RUNS": (
        15,
        "Runs of entries that compaction could not move, being damaged.",
    ),
    "GC_COMPACTION_ERRORS": (16, "Compactions in which something ended early; see the log."),
    "WORKER_ADDS_REJECTED": (128, "Adds of Apache's clients refused because too many waited."),
    "WORKER_READS_REJECTED": (129, "Reads of Apache's clients refused because too many waited."),
    "WORKER_V2_READ_BATCHES": (48, "Batch reads, over Apache's version 2."),
    "WORKER_V3_LONG_POLLS": (64, "Reads that wait for the LAC, over Apache's version 3."),
    "WORKER_V3_LAC_WRITES": (65, "Explicit LACs, over Apache's version 3."),
    "WORKER_V3_LAC_READS": (66, "Reads of the LAC, over Apache's version 3."),
    "WORKER_V3_FORCES": (67, "Forces, over Apache's version 3."),
    "WORKER_V3_LISTS": (68, "Lists of a ledger's entries, over Apache's version 3."),
}

_OF_BOTH_VERSIONS = {
    "ADDS": (44, 60, "Adds"),
    "ADD_BYTES": (45, 61, "Bytes of entries added"),
    "READS": (46, 62, "Single reads, fencing ones too"),
    "READ_BYTES": (47, 63, "Bytes of entries sent in replies"),
    "OTHERS": (49, 69, "Other requests that were answered without Python"),
}
"""Counters that a worker has for each version of Apache's protocol, as `FBK_C_WORKER_V2_ADDS`: their slots, text."""

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
"""Apache's statuses that a worker counts for each version, and what they mean: in slots one behind the other."""

for _version, _first in ((2, 50), (3, 70)):
    _COUNTERS |= {
        f"WORKER_V{_version}_{name}": (
            slots[_version - 2],
            f"{text}, over Apache's version {_version}.",
        )
        for name, (*slots, text) in _OF_BOTH_VERSIONS.items()
    } | {
        f"WORKER_V{_version}_{name}": (
            _first + number,
            f"Answers over Apache's version {_version} that said: {text}.",
        )
        for number, (name, text) in enumerate(_STATUSES.items())
    }

_TIMED: Slots = {
    "WORKER_ADDS_FAILED": (96, "Adds that were refused or failed, of all protocols."),
    "WORKER_READS_FAILED": (98, "Reads that were refused or failed, of all protocols."),
    "WORKER_FENCES_DONE": (100, "Fencing reads answered well, of all protocols."),
    "WORKER_FENCES_FAILED": (102, "Fencing reads answered with anything else."),
    "WORKER_POLLS_DONE": (104, "Long polls answered well, of all protocols."),
    "WORKER_POLLS_FAILED": (106, "Long polls answered with anything else."),
    "WORKER_LAC_READS_DONE": (108, "Reads of the LAC answered well, of all protocols."),
    "WORKER_LAC_READS_FAILED": (110, "Reads of the LAC answered with anything else."),
    "WORKER_LAC_WRITES_DONE": (112, "Writes of an explicit LAC answered well, of all protocols."),
    "WORKER_LAC_WRITES_FAILED": (114, "Writes of an explicit LAC answered with anything else."),
    "WORKER_FORCES_DONE": (116, "Forces answered well, of all protocols."),
    "WORKER_FORCES_FAILED": (118, "Forces answered with anything else."),
    "WORKER_LISTS_DONE": (120, "Lists of entries answered well, of all protocols."),
    "WORKER_LISTS_FAILED": (122, "Lists of entries answered with anything else."),
    "WORKER_INFOS_DONE": (124, "Questions for the disk's room answered well, of all protocols."),
    "WORKER_INFOS_FAILED": (126, "Questions for the disk's room answered with anything else."),
}
"""Counters that have another one beside them, with `_US` behind the name: how long those took in all."""

_GAUGES: Slots = {
    "WORKER_UNREAD_REPLY_BYTES": (150, "Bytes of replies that clients have not read yet."),
    "WORKER_ADDS_IN_PROGRESS": (
        130,
        "Adds, fences and forces in the rings that the journal has not answered.",
    ),
    "WORKER_READS_IN_PROGRESS": (131, "Requests that wait for the index, long polls left out."),
    "WORKER_ADDS_BLOCKED": (132, "Connections whose next add waits for room."),
    "WORKER_READS_BLOCKED": (133, "Connections whose next read waits for room."),
    "WORKER_RING_BYTES": (134, "Bytes in the add rings that the journal has not answered."),
    "INDEX_STORED_ENTRIES": (
        96,
        "Entries stored, those of deleted ledgers until their locations are merged away.",
    ),
    "INDEX_CACHE_ENTRIES": (97, "Entries in the write cache that is being filled."),
    "INDEX_READ_CACHE_BYTES": (98, "Bytes of the read cache in use."),
    "INDEX_READ_CACHE_ENTRIES": (99, "Entries in the read cache."),
    "WORKER_CONNECTIONS": (13, "Connections open."),
    "WORKER_INPUT_BYTES": (16, "Memory held by frames that are not complete."),
    "WORKER_PENDING": (17, "Requests not answered yet."),
    "JOURNAL_LEDGERS": (20, "Ledgers known to the journal."),
    "JOURNAL_LEDGERS_UNCONFIRMED": (
        32,
        "Ledgers that metadata was never seen to list; they expire.",
    ),
    "JOURNAL_TAKES_NO_NEW_LEDGERS": (33, "1 while the bookie takes no new ledgers."),
    "JOURNAL_LIMIT": (
        21,
        "What is refused: 0 nothing, 1 normal adds, 2 whatever would have to be written.",
    ),
    "JOURNAL_BEHIND_BYTES": (22, "Bytes of journal files that replay would read."),
    "JOURNAL_FREE_BYTES": (35, "Bytes of journal files that may be written to again."),
    "JOURNAL_KEPT_BYTES": (
        36,
        "Bytes of journal files of this start that stay behind the mark, since they are entry logs.",
    ),
    "JOURNAL_ADOPT_REASON": (
        37,
        "Why the current journal file cannot become an entry log: 0 it can, 1 off, 2 level, 3 other disk,"
        " 4 unsynced, 5 small batches, 6 buffered, 7 loose.",
    ),
    "INDEX_LEDGERS": (34, "Ledgers stored here."),
    "INDEX_WAITERS": (35, "Long polls that wait."),
    "INDEX_CACHE_BYTES": (36, "Bytes in the write cache that is being filled."),
    "INDEX_JOURNAL_BEHIND": (37, "Journal bytes behind the mark, as far as taken in."),
    "INDEX_JOURNAL_LOGS": (60, "Journal files that are entry logs."),
    "INDEX_JOURNAL_LOG_BYTES": (61, "Bytes of these, up to their last flushed batch."),
    "INDEX_JOURNAL_LOG_LIVE_BYTES": (62, "Bytes of runs in these that living ledgers need."),
    "INDEX_MARK": (38, "The log mark: the last batch in a finished flush."),
    "INDEX_READS_ONLY": (
        39,
        "What the index refuses: 0 nothing, 1 normal adds, 2 whatever would have to be written.",
    ),
    "INDEX_DAMAGED": (40, "1 when damage is on record: no is never said."),
    "INDEX_BULK_RATE": (
        50,
        "Bytes a second that history may be read at; adds and tail reads go first.",
    ),
    "INDEX_QUARANTINED": (
        49,
        "Ranges of entries that were found damaged and are not repaired yet.",
    ),
    "INDEX_LOCATIONS_DAMAGED": (
        59,
        "Locations files with damage: `fastbk bookie rebuild-locations` makes them anew.",
    ),
    "INDEX_BAD_DIGESTS": (
        55,
        "Ranges of entries that came with a wrong digest, as far as the scrub remembers.",
    ),
    "INDEX_LIMBO": (44, "Ledgers whose data was lost here and not repaired yet."),
    "GC_UNCONFIRMED": (45, "Ledgers here that metadata was never seen to list."),
    "GC_FOREIGN": (47, "Of these, ledgers that metadata lists with another key or creation."),
    "GC_CANDIDATES": (2, "Local ledgers that metadata did not list last time."),
    "GC_LEDGERS": (6, "Local ledgers."),
    "GC_COPIES": (9, "Copies that metadata did not count on when it was read last."),
    "GC_COMPACTION_RUNNING": (12, "Compactions under way."),
    "GC_COMPACTION_STUCK": (17, "1 while a compaction moves nothing."),
    "GC_SUSPENDED": (18, "1 while an operator has suspended garbage collection or compaction."),
    "GC_LOGS": (19, "Entry logs."),
    "GC_LOG_BYTES": (20, "Bytes in entry logs."),
    "GC_LIVE_BYTES": (21, "Bytes in entry logs that live, as of the last count."),
}

LIMITS: Slots = {
    "WORKER_UNREAD_REPLIES_CUT": (
        151,
        "Connections cut because all unread replies together were too many.",
    ),
    "WORKER_WRITE_TIMEOUTS": (
        152,
        "Connections cut because they read nothing of their replies for too long.",
    ),
    "WORKER_SLOW_FRAMES_CUT": (
        153,
        "Connections closed because their frame was slow while others waited for memory.",
    ),
    "WORKER_SILENT_CLOSED": (
        154,
        "Silent connections closed because most connections were in use.",
    ),
    "WORKER_UNAUTHENTICATED_CLOSED": (
        86,
        "Connections closed to make room before their clients authenticated.",
    ),
    "WORKER_TURNS_ENDED": (155, "Times that a connection had to let others have their turn."),
    "WORKER_MEMORY_RETURNED": (156, "Times that unused memory was given back to the system."),
}
"""What the counters of a worker's limits mean (docs/limits.md): they have series from their first event on."""

_OFF_BY_DEFAULT: Slots = {
    "WORKER_SPINS": (145, "Times that the worker polled for answers instead of sleeping."),
    "WORKER_CONNECTIONS_FAILED": (
        90,
        "Connections ended because their client's bytes found a fault of fastbk's own.",
    ),
    "WORKER_TLS_HANDSHAKES": (157, "TLS handshakes that succeeded."),
    "WORKER_TLS_FAILED": (158, "TLS handshakes that failed or did not end in time."),
    "WORKER_TLS_REFUSED": (159, "Hellos refused: in the clear, or without an authorised role."),
    "WORKER_REFUSED_RIGHTS": (
        81,
        "Requests refused because the client's role or token does not allow them.",
    ),
    "WORKER_AUTHENTICATED": (
        82,
        "Clients authenticated by a token, renewed ones included, or by SASL.",
    ),
    "WORKER_AUTH_FAILED": (83, "Tokens and SASL responses that did not authenticate their client."),
    "WORKER_WAITS_QUOTA": (
        85,
        "Times that a connection waited because its client had added more than its quota.",
    ),
    "WORKER_AUTH_ENDED": (
        84,
        "Connections closed because their token had expired or their client was revoked.",
    ),
    "JOURNAL_SPINS": (
        34,
        "Times that the journal polled for the disk's answer instead of sleeping.",
    ),
}
"""Of what nobody pays for without having switched it on: they have series from their first event on, too."""

_HISTOGRAMS: Slots = {
    "WORKER_ADD_US": (
        0,
        "From an add's last byte received to its answer, of those that went well.",
    ),
    "WORKER_READ_US": (
        1,
        "From a read's last byte received to its answer, of those that went well.",
    ),
    "WORKER_RECEIVE_BYTES": (2, "Bytes of one receive from a socket."),
    "WORKER_V2_ADD_US": (3, "The same for adds over Apache's version 2."),
    "WORKER_V2_READ_US": (4, "The same for reads over Apache's version 2, long polls left out."),
    "WORKER_V3_ADD_US": (5, "The same for adds over Apache's version 3."),
    "WORKER_V3_READ_US": (6, "The same for reads over Apache's version 3, long polls left out."),
    "JOURNAL_COMMIT_NS": (0, "From the submission of a batch to its durability."),
    "JOURNAL_BATCH_BYTES": (1, "Bytes of a batch."),
    "JOURNAL_BATCH_RECORDS": (2, "Records of a batch."),
    "INDEX_INTAKE_NS": (0, "From a batch's publication to its intake."),
    "INDEX_READ_NS": (1, "From a read's arrival at the worker to its answer by the index."),
    "INDEX_FLUSH_NS": (2, "Length of a flush."),
}

_FOR_APACHES_NAMES: Slots = {
    "INDEX_LOGS_RECLAIMED_BYTES": (
        100,
        "Bytes of entry logs that are gone because nothing lived in them any more.",
    ),
    "INDEX_LOGS_NOT_UNLINKED": (
        101,
        "Times that such a log could not be unlinked; it is tried again.",
    ),
    "JOURNAL_BATCHES_OF_ALL": (26, "Batches that took all there was."),
    "JOURNAL_BATCHES_FULL": (27, "Batches that left something in a ring for want of room."),
    "INDEX_PIGGYBACKS_EMPTY": (
        108,
        "Answers with a LAC that grew but without the entry that was asked for with it.",
    ),
}
"""Counters that only Apache's names show (`fastbk.server.admin.apache_metrics`): they have no `fastbk_` series."""

_TIMED_FOR_APACHES_NAMES: Slots = {
    "INDEX_RECOUNTS_DONE": (102, "Counts of what lives in which entry log."),
    "INDEX_RECOUNTS_FAILED": (104, "Counts that failed and are done again."),
    "WORKER_RECOVERY_ADDS_DONE": (
        135,
        "Recovery adds answered well, of all protocols; they are among the adds, too.",
    ),
    "WORKER_RECOVERY_ADDS_FAILED": (137, "Recovery adds answered with anything else."),
    "WORKER_ADD_WAITS": (139, "Waits of connections for room for their next add that are over."),
    "WORKER_READ_WAITS": (141, "Waits of connections for room for their next read that are over."),
    "JOURNAL_QUEUED": (28, "Records written, from received to the submission of their batch."),
    "JOURNAL_FILES_READY": (30, "Files made or taken again, until they were found ready."),
    "INDEX_THROTTLED": (106, "Batches that waited for a flush, until they went on."),
    "INDEX_READS_TAKEN": (
        109,
        "Reads taken out of the request rings, no fencing ones, from received on.",
    ),
    "INDEX_FENCE_WAITS": (111, "Fences, from received to durable and taken in."),
    "INDEX_FENCE_READS_DONE": (113, "Reads of fences that went well, from then on."),
    "INDEX_FENCE_READS_FAILED": (115, "Reads of fences answered with anything else."),
    "INDEX_POLL_STARTS": (
        117,
        "Long polls, from received until they wait or are answered at once.",
    ),
    "INDEX_POLL_WAITS_DONE": (119, "Waits of long polls until something came."),
    "INDEX_POLL_WAITS_FAILED": (121, "Waits of long polls until their time was over."),
    "INDEX_POLL_READS_DONE": (123, "Long polls answered well, from the end of their wait on."),
    "INDEX_POLL_READS_FAILED": (125, "Long polls answered with anything else."),
    "GC_TURNS_DONE": (32, "Looks for dead ledgers and for copies too many that came to their end."),
    "GC_TURNS_FAILED": (34, "Looks of both kinds that an error or a rule stopped."),
    "GC_LOOKS_DONE": (36, "Looks for dead ledgers that came to their end."),
    "GC_LOOKS_FAILED": (38, "Looks for dead ledgers that an error or a rule stopped."),
    "GC_COMPACTIONS_DONE": (
        40,
        "Runs of compaction that ended, also those that found nothing to do.",
    ),
    "GC_COMPACTIONS_FAILED": (42, "Runs in which something ended early; see the log."),
}


def _with_times(counters: Slots) -> Slots:
    times = {
        f"{name}_US": (slot + 1, "How long those took in all.")
        for name, (slot, _) in counters.items()
    }
    return counters | times


def _counters(slots: Slots) -> Iterator[Name]:
    return (describe(f"FBK_C_{name}", *slot) for name, slot in slots.items())


NAMES: list[Name] = [
    *_counters(_COUNTERS | _with_times(_TIMED)),
    *(describe(f"FBK_C_{name}", *slot, is_gauge=True) for name, slot in _GAUGES.items()),
    *(name._replace(is_limit=True) for name in _counters(LIMITS | _OFF_BY_DEFAULT)),
    *(describe(f"FBK_H_{name}", *slot) for name, slot in _HISTOGRAMS.items()),
    *(
        name._replace(is_own=False)
        for name in _counters(_FOR_APACHES_NAMES | _with_times(_TIMED_FOR_APACHES_NAMES))
    ),
    describe(
        "FBK_C_GC_COMPACTED_LOGS_PPM", 44,
        "Of all sealed logs those that the last run of compaction has compacted, in millionths.", is_gauge=True,
    )._replace(is_own=False),
]  # fmt: skip
"""All of them, each slot once."""
SLOTS = {name.slot_name: name.slot for name in NAMES}
"""The slot of each constant."""


def slots_header() -> str:
    """Return the constants as a header for C."""
    head = "/* Made by the build from fastbk/observe/names.py, which says what each one means. */\n#pragma once\n"
    return head + "".join(f"#define {name} {slot}\n" for name, slot in SLOTS.items())
