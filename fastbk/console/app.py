"""The console as an ASGI application: which path is which page, how users sign in and out, and what faults look like.

Decision 131.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from fastbk.console import actions, cluster_pages, stream_pages
from fastbk.console.context import PART_HEADER, Console, Context, address_of
from fastbk.console.http_engine import Guard, read_form
from fastbk.errors import ConfigError, Error
from fastbk.observe.logs import LimitLog
from fastbk.security.tokens import TokenError

if TYPE_CHECKING:
    from starlette.requests import Request

    from fastbk.web.page_admission import SiteGuard


Page = Callable[[Context], Awaitable[Response]]

PAGES: dict[str, Page] = {
    "/": cluster_pages.cluster,
    "/bookies": cluster_pages.bookies,
    "/bookie/{bookie_id:path}": cluster_pages.bookie,
    "/disks": cluster_pages.disks,
    "/streams": stream_pages.streams,
    "/stream/{stream:path}": stream_pages.stream,
    "/records/{stream:path}": stream_pages.records,
    "/cursors": stream_pages.cursors,
    "/namespaces": stream_pages.namespaces,
    "/namespace/{namespace:path}": stream_pages.namespace,
    "/ledgers": cluster_pages.ledgers,
    "/ledger/{ledger_id:int}": cluster_pages.ledger,
    "/healing": cluster_pages.healing,
    "/events": cluster_pages.events,
    "/search": cluster_pages.search,
    "/series": cluster_pages.series,
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
