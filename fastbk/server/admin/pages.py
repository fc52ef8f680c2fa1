"""The bookie's HTTP server with all its pages.

Imported when the children have started: no write needs it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

import fastbk
from fastbk.apache.http.bookie_facts import StoreThreads
from fastbk.apache.http.client_pages import lends_credentials
from fastbk.apache.http.routes import add_pages
from fastbk.config import split_address
from fastbk.native.disk import Disk
from fastbk.security.settings import http_port, requires_authentication, tls_files
from fastbk.server.admin.certificate_watch import watched_certificates
from fastbk.server.admin.event_page import add_event_page
from fastbk.server.admin.hot_page import HotPage
from fastbk.server.admin.http import AdminServer
from fastbk.server.admin.page_admission import PageAdmission, page_credentials
from fastbk.server.supervision.log_level import PATH as LOG_LEVEL
from fastbk.storage.identity import read_identity
from fastbk.storage.scrub_state import read_scrub_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from fastbk.apache.http.bookie_facts import BookieFacts
    from fastbk.observe.event_log import EventLog
    from fastbk.server.admin.http import Handler
    from fastbk.server.admin.listener import HttpListener
    from fastbk.server.disks.disk_reports import DiskReports
    from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget


async def open_admin(
    stack: AsyncExitStack,
    listener: HttpListener,
    facts: BookieFacts,
    info: Handler,
    slow: Handler,
    events: EventLog,
) -> None:
    """Serve all pages on a bound port until `stack` closes.

    `info`: answers `/info`. `slow`: answers `/slow`. `events`: what `/events` shows.
    """
    host, _ = split_address(facts.config.http.listen, "[http] listen")
    hosts = (*facts.config.http.allowed_hosts, facts.config.bookie.advertised, host)
    admin = AdminServer(
        facts.life,
        facts.metrics,
        facts.disks.shown,
        hosts,
        page_admission(facts, host),
        bookie_id=facts.bookie_id,
    )
    if facts.config.tls.certificate_file:
        from fastbk.server.admin.certificate_metrics import certificate_lines  # 40 ms

        files = tls_files(facts.config.tls)
        facts.metrics.add_source(certificate_lines(files))
        await stack.enter_async_context(watched_certificates(files))
    admin.add_route("GET", "/disks", facts.disks.answer)
    admin.add_route("GET", "/info", info)
    admin.add_route("GET", "/slow", slow)
    admin.add_route("GET", "/hot", HotPage(facts.metrics).answer)
    admin.add_route("GET", "/scrub", ScrubPage(facts.config.ledgers.all_directories).answer)
    add_event_page(admin, events)
    admin.add_page(LOG_LEVEL, facts.log_level.page, is_quick=True)
    facts.gc.add_routes(admin)
    settings = facts.config.metadata
    metadata = StoreThreads(settings.uri, settings.session_timeout_s)
    stack.push_async_callback(metadata.close)
    add_pages(admin, facts, metadata)
    stack.push_async_callback(admin.close)
    await admin.serve(listener)


def page_admission(facts: BookieFacts, host: str) -> PageAdmission:
    """Return who may use the pages of a bookie that listens on `host`. Raises ConfigError."""
    config = facts.config
    is_closed = requires_authentication(config.authentication, config.tls)
    permitted = config.bookie.allow_unauthenticated_remote and not is_closed
    return PageAdmission(
        http_port(config.http, host, config.authentication, is_permitted=permitted),
        changing_roles=config.http.changing_roles,
        authorized_roles=config.tls.authorized_roles,
        authorization=config.authorization,
        credentials=page_credentials(config.authentication, facts.cluster_id),
        lends_credentials=is_closed or lends_credentials(config),
        note=facts.audit,
    )


def life_info(life: Lifecycle, budget: RestartBudget, disks: DiskReports) -> dict[str, object]:
    """Return state, since when and why, what speaks against readiness, restarts and disks."""
    now_s = time.monotonic()
    return {
        "software": f"fastbk {fastbk.__version__}",
        "state": life.state.value,
        "state_seconds": round(now_s - life.since_s, 1),
        "reason": life.reason,
        "not_ready": life.not_ready(now_s),
        "conditions": msgspec.to_builtins(life.conditions(now_s)),
        "restarts": budget.total,
        "disks": disks.shown(),
    }


class ScrubPage:
    """Answers from the files of the ledger directories: the index keeps them up to date within a minute."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories

    async def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return what is quarantined or has a wrong digest, and each pair's cycle. Raises StorageError, OSError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, Any]:
        pairs: list[dict[str, Any]] = []
        quarantined: list[dict[str, Any]] = []
        bad_digests: list[dict[str, Any]] = []
        is_cut = is_bad_digests_cut = False
        for number, directory in enumerate(self._directories):
            with Disk(directory, "plain", only_reads=True) as disk:
                identity = read_identity(disk, directory)
                if identity is None:
                    continue  # not born yet
                state = read_scrub_state(disk, directory, identity.incarnation_number)
            fields = msgspec.to_builtins(state)
            quarantined += fields.pop("quarantined")
            is_cut |= fields.pop("is_cut")
            bad_digests += fields.pop("bad_digests")
            is_bad_digests_cut |= fields.pop("is_bad_digests_cut")
            pairs.append({"pair": number, "directory": directory, **fields})
        return {
            "quarantined": quarantined,
            "is_cut": is_cut,
            "bad_digests": bad_digests,
            "is_bad_digests_cut": is_bad_digests_cut,
            "pairs": pairs,
        }
