"""Every path of Apache's, and the page that answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.apache.http.answers import guarded, text
from fastbk.apache.http.auto_recovery_pages import AutoRecoveryPages
from fastbk.apache.http.bookie_pages import BookiePages
from fastbk.apache.http.client_pages import ClientPages
from fastbk.apache.http.cluster_pages import ClusterPages
from fastbk.apache.http.ledger_pages import LedgerPages

if TYPE_CHECKING:
    from fastbk.apache.http.bookie_facts import BookieFacts, StoreThreads
    from fastbk.web.page_server import PageServer, Request, Response

BOOKIE = "/api/v1/bookie/"
LEDGER = "/api/v1/ledger/"
AUTO_RECOVERY = "/api/v1/autorecovery/"


def add_pages(server: PageServer, facts: BookieFacts, metadata: StoreThreads) -> None:
    """Have `server` answer Apache's paths for this bookie."""
    bookie, by_client = BookiePages(facts), ClientPages(facts)
    server.add_page("/heartbeat", guarded(_heartbeat))
    server.add_page("/api/v1/config/server_config", guarded(bookie.settings))
    for prefix, pages in (
        (BOOKIE, bookie.pages()),
        (BOOKIE, ClusterPages(metadata).pages()),
        (BOOKIE, by_client.bookie_pages()),
        (LEDGER, by_client.ledger_pages()),
        (LEDGER, LedgerPages(metadata).pages()),
    ):
        for name, page in pages.items():
            server.add_page(prefix + name, guarded(page))
    add_auto_recovery_pages(server, AutoRecoveryPages(metadata))


def add_auto_recovery_pages(server: PageServer, pages: AutoRecoveryPages) -> None:
    """Have `server` answer Apache's paths about AutoRecovery."""
    for name, page in pages.pages().items():
        server.add_page(AUTO_RECOVERY + name, guarded(page))


async def _heartbeat(_: Request) -> Response:
    return text(200, "OK\n")
