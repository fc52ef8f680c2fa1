"""A network worker's life: configured, listening, drained. `python -m fastbk.server.network.process FD`."""

from __future__ import annotations

import asyncio
import os
import socket

import msgspec
import uvloop

from fastbk.limits import allow_descriptors
from fastbk.native.segment import seal_segment
from fastbk.native.worker import Worker, WorkerOptions, WorkerPair
from fastbk.observe import logs
from fastbk.security.admission import Admission
from fastbk.server.child import Child, SupervisorGone, keep_to, run
from fastbk.server.configuration.bookie_config import WorkerConfig
from fastbk.server.configuration.settings import has_quotas
from fastbk.server.network.network import Network

DRAIN_TIMEOUT_S_MAX = 5.0


def pair_descriptors(child: Child, pair: int) -> WorkerPair:
    """Return what connects the worker with one journal and its index."""
    return WorkerPair(
        segment_fd=child.fds[f"segment.{pair}"],
        journal_segment_fd=child.fds[f"journal_segment.{pair}"],
        index_segment_fd=child.fds[f"index_segment.{pair}"],
        journal_bell_fd=child.fds[f"journal_bell.{pair}"],
        index_bell_fd=child.fds[f"index_bell.{pair}"],
    )


def worker_options(
    child: Child, config: WorkerConfig, *, is_admission_required: bool
) -> WorkerOptions:
    """Return what C needs, from configuration and descriptors."""
    settings = config.settings
    connections_max = allow_descriptors(settings.connections_max)
    if connections_max < settings.connections_max:
        logs.warning(
            "worker.connections_limited", connections_max=connections_max, by="RLIMIT_NOFILE"
        )
    return WorkerOptions(
        worker=child.index,
        epoch=child.epoch,
        pairs=[pair_descriptors(child, pair) for pair in range(config.pair_count)],
        pair_of_shard=config.shards,
        bell_fd=child.fds["bell"],
        frame_size_bytes_max=config.limits.frame_size_bytes_max,
        batch_entries_max=config.limits.batch_entries_max,
        connections_max=connections_max,
        pending_requests_max=settings.pending_requests_max,
        partial_frames_bytes_max=settings.partial_frames_bytes_max,
        reply_backlog_bytes_max=settings.reply_backlog_bytes_max,
        unread_replies_bytes_max=settings.unread_replies_bytes_max,
        hello_timeout_ms=settings.hello_timeout_ms,
        frame_timeout_ms=settings.frame_timeout_ms,
        frame_bytes_per_s_min=settings.frame_rate_bytes_min,
        write_timeout_ms=settings.write_timeout_ms,
        turn_frames_max=settings.turn_frames_max,
        turn_bytes_max=settings.turn_size_bytes_max,
        apache_requests_max=settings.apache_requests_max,
        apache_batch_bytes_max=settings.apache_batch_read_bytes_max,
        apache_digests_max=settings.apache_digests_max,
        apache_adds_pending_max=settings.apache_adds_pending_max,
        apache_reads_pending_max=settings.apache_reads_pending_max,
        apache_adds_in_progress_max=settings.apache_adds_in_progress_max,
        apache_reads_in_progress_max=settings.apache_reads_in_progress_max,
        spin_us=config.spin_us,
        is_reads_only=bool(config.reads_only_reason),
        has_quotas=has_quotas(config.quotas),
        is_audited=True,
        is_admission_required=is_admission_required,
    )


async def until_drain(child: Child, network: Network) -> None:
    """Return when the supervisor says `drain`. Raises SupervisorGone, or what makes the worker useless."""
    loop = network.loop
    told: asyncio.Future[None] = loop.create_future()

    def on_control() -> None:
        try:
            message = child.receive()
            while message is not None:
                kind = message.get("type")
                if kind == "drain" and not told.done():
                    told.set_result(None)
                elif kind == "digests_known":
                    network.digests.known(message)
                elif kind == "tag_known":
                    network.handlers.tags.known(message)
                elif kind == "frozen":
                    network.handlers.frozen = str(message.get("reason", ""))
                message = child.receive()
        except SupervisorGone as error:
            network.fail(error)

    loop.add_reader(child.control.fileno(), on_control)
    failed = asyncio.ensure_future(network.failed())
    await asyncio.wait([told, failed], return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        failed.result()
    failed.cancel()


async def serve(child: Child) -> None:
    """Serve until drained."""
    config = msgspec.convert(child.config, WorkerConfig)
    keep_to(config.processors)
    admission = Admission(
        config.tls, config.authentication, config.authorization, config.cluster_id
    )
    worker = Worker(worker_options(child, config, is_admission_required=admission.is_required))
    for pair in range(config.pair_count):
        seal_segment(child.fds[f"segment.{pair}"])
    network = Network(
        worker, config, admission, child.fds["bell"], asyncio.get_running_loop(), child.index
    )
    network.digests.send = network.audit.send = network.handlers.tags.send = child.offer
    port = await network.start(socket.socket(fileno=os.dup(child.fds["listener"])))
    os.close(child.fds["listener"])
    child.ready(port=port)
    logs.info("worker.ready", port=port)
    await until_drain(child, network)
    left = await network.drain(min(config.drain_timeout_ms / 1000, DRAIN_TIMEOUT_S_MAX))
    network.stop()
    # Others may still have much under way: the journal must not run out of room over what nobody reads here.
    worker.leave()
    logs.info("worker.drained", requests_unanswered=left)
    child.send({"type": "drained"})


def main(child: Child) -> None:
    """Run the worker's loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(child))


if __name__ == "__main__":
    run("worker", main)
