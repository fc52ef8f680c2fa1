"""A network worker's life: configured, listening, drained. `python -m fastbk.server.network.process FD`."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import NoReturn

import msgspec
import uvloop

from fastbk.limits import allow_descriptors
from fastbk.native.segment import seal_segment
from fastbk.native.worker import Worker, WorkerOptions, WorkerPair
from fastbk.observe import logs
from fastbk.security.admission import is_admission_required
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


def worker_options(child: Child, config: WorkerConfig) -> WorkerOptions:
    """Return what C needs, from configuration and descriptors."""
    wanted = config.settings.connections_max
    connections_max = allow_descriptors(wanted)
    if connections_max < wanted:
        logs.warning(
            "worker.connections_limited", connections_max=connections_max, by="RLIMIT_NOFILE"
        )
    network = msgspec.structs.replace(config.settings, connections_max=connections_max)
    return WorkerOptions(
        worker=child.index,
        epoch=child.epoch,
        pairs=[pair_descriptors(child, pair) for pair in range(config.pair_count)],
        pair_of_shard=config.shards,
        bell_fd=child.fds["bell"],
        settings=(config.bookie, config.limits, network),
        is_reads_only=bool(config.reads_only_reason),
        has_quotas=has_quotas(config.quotas),
        is_admission_required=is_admission_required(config.tls, config.authentication),
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
    if not config.bookie.spin_us:  # else journals have them to themselves
        keep_to(config.bookie.processors)
    worker = Worker(worker_options(child, config))
    for pair in range(config.pair_count):
        seal_segment(child.fds[f"segment.{pair}"])
    loop = asyncio.get_running_loop()
    network = Network(worker, config, child.fds["bell"], loop, child.offer, child.index)
    port = await network.start(socket.socket(fileno=os.dup(child.fds["listener"])))
    os.close(child.fds["listener"])
    child.ready(port=port)
    logs.info("worker.ready", port=port)
    await until_drain(child, network)
    left = await network.drain(min(config.bookie.drain_timeout_ms / 1000, DRAIN_TIMEOUT_S_MAX))
    network.stop()
    # Others may still have much under way: the journal must not run out of room over what nobody reads here.
    worker.leave()
    logs.info("worker.drained", requests_unanswered=left)
    child.send({"type": "drained"})


def main(child: Child) -> None:
    """Run the worker's loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(child))


def start() -> NoReturn:
    """Begin this process's life; it does not return."""
    run("worker", main)
