"""What each extension module is made of: a new C file or boundary fragment is one line here."""

from __future__ import annotations

from dataclasses import dataclass, field

# C files that more than one extension needs. None of them may need liburing or Linux.
COMMON_SOURCES = [
    "fbk_checksum.c",
    "fbk_digest.c",
    "fbk_mac.c",
    "fbk_verify.c",
    "fbk_wire_client.c",
    "fbk_protobuf.c",
    "fbk_apache_messages.c",
    "fbk_apache_read.c",
    "fbk_apache_reply.c",
    "fbk_apache_list.c",
]

WORKER_SOURCES = [
    "fbk_wire.c",
    "fbk_wire_read.c",
    "fbk_wire_look.c",
    "fbk_worker_apache.c",
    "fbk_worker_apache_list.c",
    "fbk_worker_apache_reply.c",
    "fbk_worker_context.c",
    "fbk_worker_digests.c",
    "fbk_worker_count.c",
    "fbk_worker_flight.c",
    "fbk_worker.c",
    "fbk_worker_receive.c",
    "fbk_worker_take.c",
    "fbk_worker_place.c",
    "fbk_worker_input.c",
    "fbk_worker_reply.c",
    "fbk_worker_output.c",
    "fbk_worker_rates.c",
    "fbk_connections.c",
]

# Statically, so that a build runs where no liburing is installed; and its names stay inside, so that another
# liburing in the process keeps its own.
LIBURING = ["-l:liburing.a", "-Wl,--exclude-libs,ALL"]


STORE_SOURCES = [
    "fbk_file_set.c",
    "fbk_store.c",
    "fbk_readers.c",
    "fbk_read_queue.c",
    "fbk_read_ahead.c",
    "fbk_location_cursor.c",
    "fbk_lookup.c",
    "fbk_lookup_list.c",
    "fbk_walk.c",
    "fbk_run_fetch.c",
    "fbk_open_logs.c",
    "fbk_read_cache.c",
    "fbk_block_cache.c",
    "fbk_locations.c",
    "fbk_locations_write.c",
    "fbk_merge.c",
    "fbk_log_runs.c",
    "fbk_compact.c",
    "fbk_compact_read.c",
    "fbk_flush.c",
    "fbk_entry_log.c",
    "fbk_file_writer.c",
    "fbk_log_scan.c",
    "fbk_locations_check.c",
]

INDEX_SOURCES = [
    "fbk_index.c",
    "fbk_index_publish.c",
    "fbk_index_take.c",
    "fbk_index_check.c",
    "fbk_index_reply.c",
    "fbk_index_request.c",
    "fbk_index_disk.c",
    "fbk_index_bulk.c",
    "fbk_pace.c",
    "fbk_index_stream.c",
    "fbk_index_read.c",
    "fbk_index_batch.c",
    "fbk_index_list.c",
    "fbk_index_wait.c",
    "fbk_index_ledgers.c",
    "fbk_index_drop.c",
    "fbk_index_forget.c",
    "fbk_index_unconfirmed.c",
    "fbk_index_replay.c",
    "fbk_index_step.c",
    "fbk_write_cache.c",
]


@dataclass(frozen=True)
class NativeModule:
    """One extension module: what Python may see of it and what it is made of."""

    name: str
    boundary: list[str]
    sources: list[str]
    libraries: list[str] = field(default_factory=list)
    linux_only: bool = False


MODULES = [
    NativeModule(
        name="_client",
        boundary=[
            "checksum.h",
            "wire.h",
            "status.h",
            "client.h",
            "apache.h",
            "apache_lane.h",
            "stream.h",
            "stream_gather.h",
            "stream_columns.h",
        ],
        sources=[
            *COMMON_SOURCES,
            "fbk_client.c",
            "fbk_client_entries.c",
            "fbk_wire.c",
            "fbk_wire_read.c",
            "fbk_apache_client.c",
            "fbk_apache_asked.c",
            "fbk_apache_lane.c",
            "fbk_apache_lane_ask.c",
            "fbk_apache_lane_hear.c",
            "fbk_stream.c",
            "fbk_stream_gather.c",
            "fbk_stream_columns.c",
        ],
    ),
    NativeModule(
        name="_bookie",
        linux_only=True,
        boundary=[
            "checksum.h",
            "base.h",
            "stats_names.h",
            "disk.h",
            "fake_disk.h",
            "journal.h",
            "journal_scan.h",
            "decide.h",
            "status.h",
            "process.h",
            "fault.h",
            "store.h",
            "scrub.h",
            "index.h",
            "wire.h",
            "worker.h",
        ],
        sources=[
            *COMMON_SOURCES,
            "fbk_segment.c",
            "fbk_segment_stats.c",
            "fbk_flight.c",
            "fbk_shard.c",
            "fbk_ledgers.c",
            "fbk_decide.c",
            "fbk_decide_table.c",
            "fbk_io_common.c",
            "fbk_io_plain.c",
            "fbk_io_uring.c",
            "fbk_uring_queue.c",
            "fbk_disk.c",
            "fbk_io_fake.c",
            "fbk_fake_control.c",
            "fbk_fake_files.c",
            "fbk_fake_judge.c",
            "fbk_fake_names.c",
            "fbk_fake_snapshots.c",
            "fbk_fake_writes.c",
            "fbk_process.c",
            "fbk_fault.c",
            "fbk_journal.c",
            "fbk_journal_ledgers.c",
            "fbk_journal_take.c",
            "fbk_journal_commit.c",
            "fbk_journal_publish.c",
            "fbk_journal_flight.c",
            "fbk_journal_status.c",
            "fbk_journal_prewrite.c",
            "fbk_journal_scan.c",
            "fbk_journal_format.c",
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
            "fbk_apache_client.c",
            "fbk_load.c",
            "fbk_load_apache.c",
            "fbk_load_ask.c",
            "fbk_load_hear.c",
            "fbk_load_entries.c",
            "fbk_probe.c",
        ],
    ),
]
