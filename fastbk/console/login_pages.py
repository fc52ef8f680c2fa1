"""Signing in with a token, and out."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from fastbk.console.context import Console, address_of
from fastbk.console.http_engine import read_form
from fastbk.errors import ConfigError
from fastbk.security.tokens import TokenError

if TYPE_CHECKING:
    from starlette.requests import Request

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
