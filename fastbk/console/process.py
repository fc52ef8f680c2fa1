"""The console's process: one cluster, one port, until SIGTERM; and the application that it serves.

The application (`make_app`) says which path is which page, how users sign in and out, and what faults look like.

Decision 131.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import signal
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

import fastbk
from fastbk.console import actions, pages
from fastbk.console.cluster_view import ClusterView
from fastbk.console.context import PART_HEADER, Console, Context, address_of
from fastbk.console.http_engine import Guard, HttpEngine, read_form
from fastbk.console.rendering import Renderer, StaticFiles
from fastbk.console.sessions import Access, LoginLimit, Sessions
from fastbk.errors import ConfigError, Error, os_errors_as
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.observe.systemd import announced
from fastbk.safe_files import make_directory, opener
from fastbk.security.audit_log import AuditLog
from fastbk.security.settings import AuditSettings, HttpPort
from fastbk.security.tokens import TokenError
from fastbk.web.page_admission import SiteGuard
from fastbk.web.server import HttpListener

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from pathlib import Path

    from starlette.requests import Request

    from fastbk.security.tls import RefreshedContext
    from fastbk.web.page_admission import SiteGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """How a console is started.

    Attributes:
        uri: of the cluster's metadata. name: of the cluster, on all pages; "": the host and port of the URI.
        host, port: where browsers find it. hosts: names that they may call it by, beside its own.
        tls: None: in the clear, which with tokens is refused beyond loopback.
        audit_file: where its audit log is.
        token_keys_file: public keys of users' tokens; "": nobody signs in, and it listens on loopback only.
        token_audience: what tokens are for; "": the cluster's id. revoked_file: of who is not accepted any more.
        pages: HOST:PORT of the pages of janitors and healers, whose events are shown beside those of bookies.
        on_cluster: gets the cluster's id when it is known.
    """

    uri: str
    host: str
    port: int
    audit_file: Path
    name: str = ""
    hosts: tuple[str, ...] = field(default=())
    tls: RefreshedContext | None = None
    token_keys_file: str = ""
    token_audience: str = ""
    revoked_file: str = ""
    pages: tuple[str, ...] = field(default=())
    on_cluster: Callable[[str], None] = lambda cluster_id: None


async def run(options: ConsoleOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError, StorageError, MetadataUnavailable: it cannot, or no more."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(options) as (console, port):
        scheme = "http" if options.tls is None else "https"
        logs.info(
            "console.started",
            url=f"{scheme}://{options.host}:{port}",
            signs_in=not console.access.is_open,
        )
        async with announced(f"serves port {port}", lambda: console.view.is_reading):
            await console.view.client.records.follow_level(stop)
    logs.info("console.ended")


@contextlib.asynccontextmanager
async def serving(options: ConsoleOptions) -> AsyncGenerator[tuple[Console, int], None]:
    """Serve while the block runs; yield the console and its port. Raises as `run`."""
    check_exposure(options)
    async with contextlib.AsyncExitStack() as stack:
        with os_errors_as(ConfigError, f"--listen {options.host}:{options.port}: cannot listen"):
            listener = await HttpListener.bind(options.host, options.port, options.tls)
        stack.push_async_callback(listener.close)
        client = await stack.enter_async_context(fastbk.connect(options.uri))
        await client.records.check_level()
        cluster_id = await client.call_store(lambda store: store.instance_id())
        options.on_cluster(cluster_id)
        audience = options.token_audience or cluster_id
        access = Access(audience, options.token_keys_file, options.revoked_file)
        with os_errors_as(ConfigError, f"--audit {options.audit_file}: its folder cannot be used"):
            await asyncio.to_thread(make_directory, options.audit_file.absolute().parent)
            stack.enter_context(sole_writer(options.audit_file))
        audit = AuditLog(AuditSettings(file=str(options.audit_file.absolute())))
        await audit.begin(stack)
        name = options.name or shown_uri(options.uri)
        view = await stack.enter_async_context(ClusterView(client, options.uri, options.pages))
        static = StaticFiles()
        if not static.has_uplot:
            logs.info(
                "console.without_uplot",
                charts="SVG images",
                next="docs/console.md says how to add uPlot",
            )
        console = Console(
            options.uri, name, view, access, Sessions(access), LoginLimit(), Renderer(static), audit,
            options.tls is not None,
        )  # fmt: skip
        engine = HttpEngine(make_app(console, SiteGuard((*options.hosts, options.host))))
        stack.push_async_callback(engine.close)
        await engine.serve(listener)
        yield console, listener.port


@contextlib.contextmanager
def sole_writer(audit_file: Path) -> Iterator[None]:
    """Hold the lock of an audit log: lines of two consoles in one file would break its chain. Raises ConfigError."""
    lock = opener(f"{audit_file}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f"--audit {audit_file}: another console writes there: stop that one, or give this one a file of its own"
        ) from None
    try:
        yield
    finally:
        os.close(lock)


def check_exposure(options: ConsoleOptions) -> None:
    """Refuse to serve strangers, and tokens in the clear. Raises ConfigError."""
    port = HttpPort(
        where=f"--listen {options.host}:{options.port}",
        host=options.host,
        is_encrypted=options.tls is not None,
        takes_tokens=bool(options.token_keys_file),
    )
    cure = (
        "give --token-keys FILE" if options.tls is not None else "give --token-keys FILE and --tls"
    )
    if problem := port.problem(f"{cure}, or listen on 127.0.0.1"):
        raise ConfigError(problem)


def shown_uri(uri: str) -> str:
    """Return a metadata URI for people: without what may be secret."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else uri


# --- which path is which page ---------------------------------------------------------------------

Page = Callable[[Context], Awaitable[Response]]

PAGES: dict[str, Page] = {
    "/": pages.cluster,
    "/bookies": pages.bookies,
    "/bookie/{bookie_id:path}": pages.bookie,
    "/disks": pages.disks,
    "/streams": pages.streams,
    "/stream/{stream:path}": pages.stream,
    "/records/{stream:path}": pages.records,
    "/cursors": pages.cursors,
    "/namespaces": pages.namespaces,
    "/namespace/{namespace:path}": pages.namespace,
    "/ledgers": pages.ledgers,
    "/ledger/{ledger_id:int}": pages.ledger,
    "/healing": pages.healing,
    "/events": pages.events,
    "/search": pages.search,
    "/series": pages.series,
    "/action/{action}": actions.confirmation,
}


def make_app(console: Console, site: SiteGuard) -> Guard:
    """Return the application. `site`: the names that it may be called by."""
    routes = [Route(path, _page_of(console, page), methods=["GET"]) for path, page in PAGES.items()]
    routes += [
        Route("/action/{action}", _page_of(console, actions.execute), methods=["POST"]),
        Route("/login", form_of(console), methods=["GET"]),
        Route("/login", sign_in_of(console), methods=["POST"]),
        Route("/logout", sign_out_of(console), methods=["POST"]),
        Route("/static/{name:path}", _static(console), methods=["GET"]),
        Route("/livez", _alive(console), methods=["GET"]),
    ]
    handlers = {HTTPException: _refused(console), Exception: _broken}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), site)


def _page_of(console: Console, page: Page) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a page that needs a session."""

    async def endpoint(request: Request) -> Response:
        key = request.cookies.get(console.cookie, "")
        session, reason = console.sessions.find(key)
        if session is None:
            return _to_login(request, reason)
        context = Context(console, request, session)
        try:
            response = await page(context)
        except ConfigError as error:
            response = context.page(
                "message.html", 400, title="That cannot be done", text=str(error), next_step=""
            )
        except (Error, TimeoutError) as error:
            text = str(error) or "the cluster did not answer in time"
            response = context.page(
                "message.html", 503, title="The cluster did not answer that", text=text,
                next_step="Try again. `fastbk doctor` and the page Cluster show what is wrong.",
            )  # fmt: skip
        if session.key != key:
            set_cookie(console, response, session.key)
        return response

    return endpoint


def _to_login(request: Request, reason: str) -> Response:
    """Send a browser to sign in. The script of an open page gets 401 and does the same."""
    if PART_HEADER in request.headers or request.method != "GET" or request.url.path == "/series":
        return PlainTextResponse(f"{reason or 'sign in first'}\n", 401)
    where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    ended = "&ended=1" if reason else ""
    return RedirectResponse(f"/login?next={quote(where)}{ended}", 303)


def _static(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return console.renderer.static.answer(request.path_params["name"])

    return endpoint


def _alive(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        del request
        if console.view.is_reading:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the console reads the cluster no longer: restart it\n", 503)

    return endpoint


def _refused(console: Console) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        session, _ = console.sessions.find(request.cookies.get(console.cookie, ""))
        if error.status_code != 404 or session is None or PART_HEADER in request.headers:
            return PlainTextResponse(f"{error.detail}\n", error.status_code)
        # A page says itself what it did not find: "no ledger 7".
        missing = error.detail if error.detail.startswith("no ") else f"no page {request.url.path}"
        text = f"There is {missing}."
        return Context(console, request, session).page(
            "message.html", 404, title="Not found", text=text,
            next_step="The search finds bookies, ledgers and streams.",
        )  # fmt: skip

    return handler


_faults = LimitLog("console.page_failed", level="error")


async def _broken(request: Request, error: Exception) -> Response:
    trace = "".join(traceback.format_exception(error, limit=-8))
    _faults.note(
        type(error).__name__, path=request.url.path[:200], reason=repr(error)[:500], trace=trace
    )
    return PlainTextResponse(
        "a fault of the console: its log has console.page_failed with the reason\n", 500
    )


# --- signing in and out ---------------------------------------------------------------------------


Endpoint = Callable[["Request"], Awaitable[Response]]


def form_of(console: Console) -> Endpoint:
    """Return the page with the form."""

    async def endpoint(request: Request) -> Response:
        if console.access.is_open:
            return RedirectResponse("/", 303)
        # Fixed words: a link could bring any others.
        because = "your session has ended" if "ended" in request.query_params else ""
        return _form(console, next_path(request.query_params.get("next", "")), because)

    return endpoint


def sign_in_of(console: Console) -> Endpoint:
    """Return what takes a token, and begins a session. A try that is refused says why, but never shows the token."""

    async def endpoint(request: Request) -> Response:
        address = address_of(request)
        if console.access.is_open:
            return RedirectResponse("/", 303)
        if wait_s := console.logins.wait_s(address):
            seconds = math.ceil(wait_s)
            response = _form(console, "/", f"too many tries: try again in {seconds} s", 429)
            response.headers["retry-after"] = str(seconds)
            return response
        try:
            fields = await read_form(request)
        except (ConfigError, TimeoutError) as error:
            return PlainTextResponse(f"{error or 'the form did not arrive in time'}\n", 400)
        next_page = next_path(fields.get("next", ""))
        token = fields.get("token", "").strip().encode()
        try:
            principal = console.access.sign_in(token)
        except TokenError as error:
            console.audit.note("console.refused", address=address, reason=str(error))
            return _form(console, next_page, f"the token is not accepted: {error}", 403)
        console.sessions.end(request.cookies.get(console.cookie, ""))
        session = console.sessions.begin(principal, token)
        console.audit.note("console.signed_in", address=address, principal=principal.name)
        response = RedirectResponse(next_page, 303)
        set_cookie(console, response, session.key)
        return response

    return endpoint


def sign_out_of(console: Console) -> Endpoint:
    """Return what ends a session."""

    async def endpoint(request: Request) -> Response:
        key = request.cookies.get(console.cookie, "")
        session, _ = console.sessions.find(key)
        try:
            fields = await read_form(request)
        except (ConfigError, TimeoutError) as error:
            return PlainTextResponse(f"{error or 'the form did not arrive in time'}\n", 400)
        if session is not None and console.sessions.is_form_key(
            session, fields.get("form_key", "")
        ):
            console.sessions.end(key)
            console.audit.note(
                "console.signed_out", address=address_of(request), principal=session.principal.name
            )
        response = RedirectResponse("/login", 303)
        response.delete_cookie(
            console.cookie, secure=console.is_encrypted, httponly=True, samesite="strict"
        )
        return response

    return endpoint


def set_cookie(console: Console, response: Response, key: str) -> None:
    """Have the browser keep a session's key: for no script, and for no request that another site causes."""
    response.set_cookie(
        console.cookie, key, secure=console.is_encrypted, httponly=True, samesite="strict"
    )


def next_path(text: str) -> str:
    """Return a path of this server to go on to; "/" for what is none."""
    is_path = text.startswith("/") and not text.startswith("//")
    return text if is_path and text.isprintable() and "\\" not in text else "/"


def _form(console: Console, next_page: str, because: str, status: int = 200) -> Response:
    values = {"console": console, "next_page": next_page, "because": because}
    return console.renderer.page("login.html", values, status)
