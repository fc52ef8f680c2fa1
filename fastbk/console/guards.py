"""What every request and answer of the console passes: who may call it, and what a browser may do with a page.

- A request must name this server in `Host`, as the bookies' pages require it (DNS rebinding, `fastbk/web/guards.py`).
- A request that changes something must come from one of our own pages: `Origin` and `Sec-Fetch-Site` say so, and the
  form brings its session's key (`sessions.py`).
- A page may load scripts, styles and data from this server only, nothing inline, and no other site may frame it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from fastbk.errors import ConfigError
from fastbk.observe.logs import LimitLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fastbk.web.guards import SiteGuard

FORM_BYTES_MAX = 8192
FORM_FIELDS_MAX = 20
FORM_TIMEOUT_S = 5.0
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (
        b"referrer-policy",
        b"same-origin",
    ),  # with no-referrer, browsers send forms with `Origin: null`
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
NOT_STORED = (b"cache-control", b"no-store")
_SAFE = ("GET", "HEAD")


class Guard:
    """The outermost layer of the console: refuses requests, and adds the headers of answers.

    Attributes:
        refused: how often, by reason.
    """

    def __init__(self, app: ASGIApp, site: SiteGuard) -> None:
        """`site`: the names that this server may be called by."""
        self._app = app
        self._site = site
        self._limits = LimitLog("console.request_refused")

    @property
    def refused(self) -> dict[str, int]:
        """How often each rule refused a request."""
        return dict(self._limits.counts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        refusal = self._refusal(scope, headers)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                stored = any(name == b"cache-control" for name, _ in given)
                message = {
                    **message,
                    "headers": [*given, *HEADERS, *(() if stored else (NOT_STORED,))],
                }
            await send(message)

        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        rule, text = refusal
        self._limits.note(rule, path=scope["path"][:200], host=headers.get("host", "")[:200])
        kind = [(b"content-type", b"text/plain; charset=utf-8")]
        await guarded({"type": "http.response.start", "status": 403, "headers": kind})
        await guarded({"type": "http.response.body", "body": text.encode()})

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the rule and the text for the client; None for a request that is fine."""
        host = headers.get("host", "")
        # Two `Host`s are nobody's: the last one alone would be read here.
        count = sum(name == b"host" for name, _ in scope["headers"])
        if count != 1 or not self._site.is_own(host):
            return "host", (
                f'this console is not called "{host[:255]}": use its address, or start it with --http-host NAME\n'
            )
        if scope["method"] in _SAFE:
            return None
        origin = headers.get("origin")
        own = f"{scope['scheme']}://{host}".lower()
        site = headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin" or (origin is not None and origin.lower() != own):
            return "cross_site", "a page of another site sent this: use the console's own pages\n"
        return None


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises ConfigError for what is none, TimeoutError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ConfigError("a form is sent as application/x-www-form-urlencoded")
    body = b""
    async with asyncio.timeout(FORM_TIMEOUT_S):
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES_MAX:
                raise ConfigError(f"a form has at most {FORM_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
    except ValueError as error:
        raise ConfigError(f"the form cannot be read: {error}") from None
    return dict(pairs)
