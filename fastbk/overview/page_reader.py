"""Reads pages of hundreds of bookies at once on one loop, each bounded in time and size.

`fastbk.admin.page_client` is for one page: it blocks, and its errors are sentences for a command.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any

import msgspec

from fastbk.errors import ConfigError, StorageError
from fastbk.meta.api import HTTP_PROTOCOL, HTTPS_PROTOCOL, BookieService, Endpoint
from fastbk.model.ids import MEANT_BOOKIE
from fastbk.security.credentials import pages_token
from fastbk.security.tls import RefreshedContext, TlsOptions
from fastbk.web.client import Reply, encoded_request, exchange

ANSWER_BYTES_MAX = 8 << 20
REASON_CHARACTERS_MAX = 200


class PageError(StorageError):
    """A page was not answered, or not with 200. `status`: of HTTP; 0: no answer."""

    default_retryable = True

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class PageReader:
    """Reads pages by GET. A connection a page, as bookies want it."""

    def __init__(
        self, *, parallel_max: int = 128, timeout_s: float = 1.5, tls: TlsOptions | None = None
    ) -> None:
        """`timeout_s`: for a page, from its turn on. `tls`: for https; None: as the environment says."""
        self._turns = asyncio.Semaphore(parallel_max)
        self._timeout_s = timeout_s
        self._options = tls
        self._tls: RefreshedContext | None = None

    async def read(self, endpoint: Endpoint, target: str, bookie_id: str = "") -> bytes:
        """Return the body of a page; `bookie_id`: whose is meant, "": whoever's. Raises PageError, ConfigError."""
        where = f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}{target}"
        async with self._turns:
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._exchange(endpoint, target, bookie_id)
            except TimeoutError as error:
                raise PageError(f"{where}: no answer within {self._timeout_s:g} s") from error
            except ssl.SSLError as error:
                text = getattr(error, "verify_message", "") or error.reason or str(error)
                raise PageError(f"{where}: TLS failed: {text}; check FASTBK_TLS_CA_FILE") from error
            except OSError as error:
                # asyncio puts a sentence of its own in place of the reason.
                number = error.errno or 0
                reason = os.strerror(number) if number > 0 else error.strerror or error
                raise PageError(f"{where}: {reason}") from error
        if answer.status != 200:
            text = " ".join(answer.body.decode("utf-8", "replace").split())
            reason = text[:REASON_CHARACTERS_MAX]
            raise PageError(f"{where} answered {answer.status}: {reason}", answer.status)
        return answer.body

    async def read_object(
        self, endpoint: Endpoint, target: str, bookie_id: str = ""
    ) -> dict[str, Any]:
        """Return the JSON object of a page, as `read` has it. Raises PageError, ConfigError."""
        body = await self.read(endpoint, target, bookie_id)
        try:
            found = msgspec.json.decode(
                body
            )  # unlike `json` it takes no lone surrogates: nobody could show them
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise PageError(
                f"{endpoint.host}:{endpoint.port}{target}: answered no JSON object", 200
            )
        return found

    async def _exchange(self, endpoint: Endpoint, target: str, bookie_id: str) -> Reply:
        tls = self._context() if endpoint.protocol == HTTPS_PROTOCOL else None
        # In the clear anybody on the way would have the token.
        token = b"" if tls is None else await asyncio.to_thread(pages_token)
        headers = {"Authorization": f"Bearer {_header_text(token)}"} if token else {}
        headers |= {MEANT_BOOKIE: bookie_id} if bookie_id else {}
        host, port = endpoint.host, endpoint.port
        request = encoded_request("GET", host, port, target, headers)
        return await exchange(host, port, request, tls=tls, bytes_max=ANSWER_BYTES_MAX)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = (self._options or TlsOptions.from_environment() or TlsOptions()).context()
        return self._tls.current()


def _header_text(token: bytes) -> str:
    text = token.decode("ascii", "replace")
    if not text.isascii() or not text.isprintable():
        raise ConfigError("the file of FASTBK_PAGES_TOKEN_FILE or FASTBK_TOKEN_FILE has no token")
    return text


def page_endpoint(service: BookieService) -> Endpoint | None:
    """Return where a registered bookie answers HTTP; with TLS where it has both."""
    return service.endpoint(HTTPS_PROTOCOL) or service.endpoint(HTTP_PROTOCOL)
