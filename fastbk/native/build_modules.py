"""What each extension module is made of: a new C file or boundary fragment is one line here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

# C files that more than one extension needs. None of them may need liburing or Linux.
COMMON_SOURCES = [
    "base/checksum.c",
    "base/digest.c",
    "base/mac.c",
    "wire/verify.c",
    "wire/client.c",
    "apache/protobuf.c",
    "apache/messages.c",
    "apache/requests.c",
    "apache/replies.c",
    "apache/entry_list.c",
]

WORKER_SOURCES = [
    "wire/responses.c",
    "wire/requests.c",
    "worker/apache.c",
    "worker/contexts.c",
    "worker/digests.c",
    "worker/count.c",
    "worker/audit.c",
    "worker/quota.c",
    "worker/tags.c",
    "worker/worker.c",
    "worker/wake.c",
    "worker/answers.c",
    "worker/receive.c",
    "worker/dispatch.c",
    "worker/lanes.c",
    "worker/connections.c",
    "worker/input.c",
    "worker/output.c",
]

# Statically, so that a build runs where no liburing is installed; and its names stay inside, so that another
# liburing in the process keeps its own. FASTBK_LIBURING names an archive of hidden names in place of the system's.
LIBURING_ARCHIVE = os.environ.get("FASTBK_LIBURING")
LIBURING = [LIBURING_ARCHIVE] if LIBURING_ARCHIVE else ["-l:liburing.a", "-Wl,--exclude-libs,ALL"]


STORE_SOURCES = [
    "store/file_set.c",
    "store/store.c",
    "store/readers.c",
    "store/read_queue.c",
    "store/read_ahead.c",
    "store/location_cursor.c",
    "store/lookup.c",
    "store/lookup_list.c",
    "store/walk.c",
    "store/run_fetch.c",
    "store/entry_fetch.c",
    "store/open_logs.c",
    "store/read_cache.c",
    "store/block_cache.c",
    "store/locations.c",
    "store/locations_write.c",
    "store/merge.c",
    "store/log_runs.c",
    "store/compact.c",
    "store/compact_read.c",
    "store/flush.c",
    "store/entry_log.c",
    "store/file_writer.c",
    "store/log_scan.c",
    "store/locations_check.c",
]

INDEX_SOURCES = [
    "index/index.c",
    "index/publish.c",
    "index/apply.c",
    "index/check.c",
    "index/reply.c",
    "index/requests.c",
    "index/disk.c",
    "index/bulk.c",
    "index/pace.c",
    "index/hot_ledgers.c",
    "index/stream.c",
    "index/read.c",
    "index/batch.c",
    "index/list.c",
    "index/wait.c",
    "index/ledgers.c",
    "index/drop.c",
    "index/forget.c",
    "index/unconfirmed.c",
    "index/replay.c",
    "index/step.c",
    "index/write_cache.c",
]


@dataclass(frozen=True)
class NativeModule:
    """One extension module: what Python may see of it and what it is made of.

    Fragments of the boundary and sources are names in `boundary` and `src`, or absolute paths.
    """

    name: str
    boundary: list[str]
    sources: list[str]
    libraries: list[str] = field(default_factory=list)
    linux_only: bool = False
    package: str = "fastbk.native"


MODULES = [
    NativeModule(
        name="_client",
        boundary=[
            "checksum.h",
            "wire.h",
            "status.h",
            "client.h",
            "apache.h",
            "apache_translation.h",
            "stream.h",
            "stream_gather.h",
            "stream_columns.h",
        ],
        sources=[
            *COMMON_SOURCES,
            "client/client.c",
            "client/entry_columns.c",
            "wire/responses.c",
            "wire/requests.c",
            "apache/client.c",
            "client/apache_pending.c",
            "client/apache_translation.c",
            "client/apache_requests.c",
            "client/apache_answers.c",
            "stream/codec.c",
            "stream/gather.c",
            "stream/columns.c",
        ],
    ),
    NativeModule(
        name="_bookie",
        linux_only=True,
        boundary=[
            "checksum.h",
            "base.h",
            "disk.h",
            "journal.h",
            "journal_scan.h",
            "decide.h",
            "status.h",
            "process.h",
            "confine.h",
            "fault.h",
            "store.h",
            "scrub.h",
            "index.h",
            "wire.h",
            "worker.h",
        ],
        sources=[
            *COMMON_SOURCES,
            "base/segment.c",
            "base/segment_stats.c",
            "base/flight.c",
            "base/shard.c",
            "base/ledgers.c",
            "journal/decide.c",
            "index/decide_table.c",
            "io/common.c",
            "io/plain.c",
            "io/uring.c",
            "io/uring_queue.c",
            "io/disk.c",
            "io/delayed.c",
            "base/process.c",
            "base/confine.c",
            "base/fault.c",
            "journal/journal.c",
            "journal/ledgers.c",
            "journal/drain.c",
            "journal/commit.c",
            "journal/publish.c",
            "journal/flight.c",
            "journal/status.c",
            "journal/prewrite.c",
            "journal/scan.c",
            "journal/format.c",
            *STORE_SOURCES,
            *WORKER_SOURCES,
            *INDEX_SOURCES,
        ],
        libraries=LIBURING,
    ),
    NativeModule(
        name="_bench",
        linux_only=True,
        boundary=[
            "status.h",
            "load.h",
        ],
        sources=[
            *COMMON_SOURCES,
            "apache/client.c",
            "load/load.c",
            "load/probe.c",
        ],
    ),
]
