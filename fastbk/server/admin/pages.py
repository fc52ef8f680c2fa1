"""The bookie's HTTP server with all its pages: its own `/metrics`, `/livez` and `/readyz`, and those of others.

Imported when the children have started: no write needs it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

import fastbk
from fastbk.apache.http.answers import StoreThreads
from fastbk.apache.http.pages import add_pages, lends_credentials
from fastbk.config import split_address
from fastbk.model.health import BookieFacts as HealthFacts
from fastbk.model.health import DiskFacts, reasons_of_bookie, verdict_of
from fastbk.native.disk import Disk
from fastbk.native.segment import HotLedger, HotWindow, hot_window
from fastbk.security.settings import http_port, requires_authentication, tls_files
from fastbk.server.admin.metrics import FAMILIES
from fastbk.server.supervision.lifecycle import reasons_of
from fastbk.server.supervision.operator_requests import PATH as LOG_LEVEL
from fastbk.storage.identity import read_identity
from fastbk.storage.scrub_state import read_scrub_state
from fastbk.web.certificate_watch import certificate_lines, watched_certificates
from fastbk.web.page_admission import PageAdmission, page_credentials
from fastbk.web.page_server import JSON, METRICS, TEXT, PageServer, add_event_page, refused_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AsyncExitStack

    from fastbk.apache.http.answers import BookieFacts
    from fastbk.observe.event_log import EventLog
    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.disks.disk_reports import DiskReports
    from fastbk.server.supervision.lifecycle import Concern, Condition, Lifecycle, RestartBudget
    from fastbk.web.page_server import Handler, Response
    from fastbk.web.server import HttpListener

_SHOWN = ("role", "pair", "directory", "state", "takes", "reason", "slow")


class AdminServer(PageServer):
    """A bookie's few pages, and those that others add."""

    own_paths = ("/metrics", "/livez", "/readyz", "/readyz/metadata")

    def __init__(
        self,
        life: Lifecycle,
        metrics: Metrics,
        disks: Callable[[], list[dict[str, Any]]] = list,
        allowed_hosts: Iterable[str] = (),
        admission: PageAdmission | None = None,
        bookie_id: str = "",
    ) -> None:
        """`disks`: how each directory's disk is, for `/readyz`. `bookie_id`: whom next steps there name, too."""
        super().__init__(allowed_hosts, admission)
        self.bookie_id = bookie_id
        metrics.add_source(lambda: refused_lines("fastbk_supervisor_http_refused", self.refused()))
        self._life = life
        self._disks = disks
        self._metrics = metrics

    def _own_page(self, path: str, query: str) -> Response:
        if path == "/metrics":
            return self._exposition(dict(parse_qsl(query)).get("names"))
        return self._page(path)

    def _exposition(self, names: str | None) -> Response:
        for known in (None, *FAMILIES):
            if names == known:
                return 200, METRICS, self._metrics.text(known).encode()
        return 400, TEXT, f"names: one of {', '.join(FAMILIES)}\n".encode()

    def _page(self, path: str) -> Response:
        if path == "/livez":
            live = self._life.is_live
            body = {"live": live, "state": self._life.state.value, "reason": self._life.reason}
            return (200 if live else 503), JSON, msgspec.json.encode(body) + b"\n"
        if path == "/readyz":
            return self._readiness("data")
        if path == "/readyz/metadata":
            return self._readiness("data", "metadata")
        return 404, TEXT, self._paths()

    def _readiness(self, *concerns: Concern) -> Response:
        """Answer whether anything speaks against `concerns`, with all conditions, these or others."""
        conditions = self._life.conditions(time.monotonic())
        reasons = reasons_of(conditions, *concerns)
        readiness = {
            "ready": not reasons,
            "state": self._life.state.value,
            "reasons": reasons,
            "conditions": conditions,
            "disks": [{key: each[key] for key in _SHOWN} for each in self._disks()],
            **self._health(conditions),
        }
        return (503 if reasons else 200), JSON, msgspec.json.encode(readiness) + b"\n"

    def _health(self, conditions: Sequence[Condition]) -> dict[str, Any]:
        """Return the verdict about this bookie, in the words of `fastbk cluster status`. It changes no status."""
        damage = self._metrics.damage()
        facts = HealthFacts(
            bookie_id=self.bookie_id,
            state=self._life.state.value,
            why=self._life.reason,
            is_frozen=any(condition.name.startswith("frozen.") for condition in conditions),
            reads_only=bool(self._life.crash_loop),
            disks=[
                DiskFacts(disk["role"], disk["pair"], disk["state"], disk["takes"], disk["slow"])
                for disk in self._disks()
            ],
            limbo=damage["limbo"],
            quarantined=damage["quarantined"],
            has_damage=bool(damage["damage_on_record"]),
            conditions=[(condition.name, condition.reason) for condition in conditions],
        )
        found = list(reasons_of_bookie(facts))
        return {
            "verdict": verdict_of(found).text,
            "verdict_reasons": [one.as_json() for one in found],
        }


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


HOT_SHOWN_MAX = 100
HOT_WINDOW_AGE_MAX_S = 15.0
"""An older window is not shown: its index stands still, or stops."""


class HotPage:
    """Answers `/hot`, the ledgers with the most adds in a window of some seconds, from the segments of the indexes.

    A ledger lives in one of them (INV-D3).
    """

    def __init__(self, metrics: Metrics, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._metrics = metrics
        self._clock_ns = clock_ns

    async def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return those with most adds a second first, at most HOT_SHOWN_MAX; none before the first window ends."""
        found = (hot_window(one.segment) for one in self._metrics.stats("index"))
        return windows_shown([one for one in found if one is not None], self._clock_ns())


def windows_shown(windows: list[HotWindow], now_ns: int) -> dict[str, Any]:
    """Return the windows of all indexes for JSON.

    `adds_per_second` is what a ledger has for certain, but for the sample's error; with `adds_per_second_over` more at
    most.
    """
    ledgers: list[tuple[float, HotLedger, float]] = []
    longest_s = oldest_s = 0.0
    for window in windows:
        age_s, took_s = (now_ns - window.ended_ns) / 1e9, (window.ended_ns - window.began_ns) / 1e9
        if age_s > HOT_WINDOW_AGE_MAX_S or took_s <= 0:
            continue
        longest_s, oldest_s = max(longest_s, took_s), max(oldest_s, age_s)
        ledgers += [
            ((ledger.adds - ledger.adds_over) / took_s, ledger, took_s) for ledger in window.ledgers
        ]
    ledgers.sort(key=lambda each: (-each[0], each[1].ledger_id))
    return {
        "window_seconds": round(longest_s, 3),
        "age_seconds": round(oldest_s, 3),
        "ledgers": [
            {
                "ledger_id": one.ledger_id,
                "adds_per_second": round(certain_per_s, 2),
                "adds_per_second_over": round(one.adds_over / took_s, 2),
                "bytes_per_second": round(one.size_bytes / took_s, 1),
            }
            for certain_per_s, one, took_s in ledgers[:HOT_SHOWN_MAX]
        ],
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
