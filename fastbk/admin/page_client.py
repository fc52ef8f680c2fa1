"""One process's HTTP page: a bookie's, a janitor's or a healer's; where it is, and what its refusals become.

A bookie is found by its id in a cluster's metadata (its registration tells where it listens for HTTP), or without one
where the cluster has only one (`find_bookie`).

Blocking, for commands; `fastbk.overview.poller` reads the pages of hundreds at once.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from fastbk.errors import ConfigError, Error, StorageError
from fastbk.model.ids import MEANT_BOOKIE
from fastbk.security.credentials import pages_token
from fastbk.units import format_names
from fastbk.web.client import HttpConnection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from fastbk.meta.api import BookieRegistration

TIMEOUT_S = 40.0
"""Longest wait for an answer; a bit more than a bookie allows itself."""
METADATA_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 16 * 1024 * 1024


class BookieSilent(StorageError):
    """The bookie's HTTP page could not be reached."""

    default_retryable = True


class BookieRefused(StorageError):
    """The bookie answered that it does not do this; `status` is the one of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, retryable=status in (503, 504))
        self.status = status


class AdminClient:
    """One bookie's HTTP page. A connection a call; blocking.

    Attributes:
        token: of the user that calls are made for, at first the one of the environment; b"" for none. It is sent by TLS
            only.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        bookie_id: str = "",
    ) -> None:
        """`bookie_id`: whose page is meant; another bookie's refuses. "": whoever answers there."""
        self.host = host
        self.port = port
        self._timeout_s = timeout_s
        self._tls = tls
        self._bookie_id = bookie_id
        self.token = b"" if tls is None else pages_token()

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the object that a GET gives. Raises BookieSilent, BookieRefused."""
        target = f"{path}?{urlencode(query)}" if query else path
        return self._decoded(target, *self._exchange("GET", target, None))

    def post(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Return the object that a POST of `body` gives. Raises BookieSilent, BookieRefused."""
        data = json.dumps(dict(body or {})).encode()
        return self._decoded(path, *self._exchange("POST", path, data))

    def text(self, path: str) -> str:
        """Return the text that a GET gives, as /metrics. Raises BookieSilent, BookieRefused."""
        status, data = self._exchange("GET", path, None)
        if status != 200:
            raise BookieRefused(f"http://{self.host}:{self.port}{path} answered {status}", status)
        return data.decode("utf-8", "replace")

    def put(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Return the object that a PUT of `body` gives. Raises BookieSilent, BookieRefused."""
        return self._decoded(path, *self._exchange("PUT", path, json.dumps(dict(body)).encode()))

    def state(self, path: str) -> dict[str, Any]:
        """Return what /readyz or /livez says; these say no with a status of 503. Raises BookieSilent."""
        status, data = self._exchange("GET", path, None)
        return self._decoded(path, 200 if status == 503 else status, data)

    def _exchange(self, method: str, target: str, data: bytes | None) -> tuple[int, bytes]:
        import ssl  # most pages are in the clear

        headers = {} if data is None else {"Content-Type": "application/json"}
        if self._bookie_id:
            headers[MEANT_BOOKIE] = self._bookie_id
        if self.token and self._tls is not None:
            headers["Authorization"] = f"Bearer {self.token.decode('ascii', 'replace')}"
        connection = HttpConnection(self.host, self.port, tls=self._tls, bytes_max=ANSWER_BYTES_MAX)
        try:
            connection.connect(self._timeout_s)
            answer = connection.exchange(method, target, headers, data)
            return answer.status, answer.body
        except ssl.SSLCertVerificationError as error:
            raise BookieSilent(
                f"the HTTP page at {self.host}:{self.port} has a certificate that is not good:"
                f" {error.verify_message}; is FASTBK_TLS_CA_FILE the one that signed it?"
            ) from error
        except OSError as error:
            # A page that requires a certificate ends the connection behind the handshake.
            shown = (
                ""
                if self._tls is None
                else ", and does it accept this client's FASTBK_TLS_CERTIFICATE_FILE"
            )
            raise BookieSilent(
                f"the HTTP page at {self.host}:{self.port} does not answer: {error}; is the process up, is this"
                f" its [http] listen or --http (see bookie.started in the log of a bookie){shown}?"
            ) from error
        finally:
            connection.close()

    def _decoded(self, target: str, status: int, data: bytes) -> dict[str, Any]:
        where = f"{'http' if self._tls is None else 'https'}://{self.host}:{self.port}{target}"
        try:
            # unlike `json` it takes no lone surrogates: nobody could print them
            answer = msgspec.json.decode(data)
        except (ValueError, RecursionError) as error:
            if status == 200:
                raise BookieRefused(f"{where} answered something else than JSON", status) from error
            answer = {"error": data.decode("utf-8", "replace").strip()}
        if not isinstance(answer, dict):
            answer = {"error": f"something else than an object: {answer!r}"[:500]}
            status = status if status != 200 else 500
        if status != 200:
            text = answer.get("error", answer)
            raise BookieRefused(f"{where} answered {status}: {text}", status)
        return answer


def client_of(
    registration: BookieRegistration, uri: str, timeout_s: float = TIMEOUT_S
) -> AdminClient:
    """Return the client of a bookie's page, by its registration in the metadata at `uri`. Raises ConfigError."""
    from fastbk.meta.api import HTTP_PROTOCOL, HTTPS_PROTOCOL

    service = registration.service
    endpoint = service.endpoint(HTTPS_PROTOCOL) or service.endpoint(HTTP_PROTOCOL)
    if endpoint is None:
        raise ConfigError(
            f"bookie {service.bookie_id} in {uri} has no HTTP page: give its [http] section a `listen`"
        )
    tls = own_tls() if endpoint.protocol == HTTPS_PROTOCOL else None
    return AdminClient(
        endpoint.host, endpoint.port, timeout_s=timeout_s, tls=tls, bookie_id=service.bookie_id
    )


def client_at(address: str, option: str, timeout_s: float = TIMEOUT_S) -> AdminClient:
    """Return the client of HOST:PORT, perhaps behind http:// or https://; `option`: its name. Raises ConfigError."""
    from fastbk.config import split_address
    from fastbk.meta.api import HTTP_PROTOCOL, HTTPS_PROTOCOL

    scheme, separator, place = address.rpartition("://")
    if separator and scheme not in (HTTP_PROTOCOL, HTTPS_PROTOCOL):
        raise ConfigError(f"{option} {address}: neither http:// nor https://")
    host, port = split_address(place.rstrip("/"), option)
    return AdminClient(
        host, port, timeout_s=timeout_s, tls=own_tls() if scheme == HTTPS_PROTOCOL else None
    )


def own_tls() -> ssl.SSLContext:
    """Return the context of the environment, else one that trusts the system's authorities. Raises ConfigError."""
    from fastbk.security.tls import TlsOptions

    return (TlsOptions.from_environment() or TlsOptions()).context().current()


def find_bookie(uri: str, bookie_id: str | None) -> AdminClient:
    """Return the client of a bookie that is up, by its id, None: of the only one. Raises ConfigError, Error."""
    from fastbk.meta import open_store

    with closing(open_store(uri, METADATA_TIMEOUT_S, may_make=False)) as store:
        listed = store.list_bookies()
    return client_of(_chosen(listed, bookie_id, uri), uri)


def _chosen(listed: list[BookieRegistration], wanted: str | None, uri: str) -> BookieRegistration:
    ids = format_names(one.service.bookie_id for one in listed)
    if wanted is None:
        if len(listed) == 1:
            return listed[0]
        raise ConfigError(f"{uri} lists {len(listed)} bookies: name one of: {ids}")
    for one in listed:
        if one.service.bookie_id == wanted:
            return one
    raise Error(
        f"{uri} lists no bookie {wanted} that is up; up are: {ids}. If it is down, its own log says why. If it is"
        " starting, wait; its log says how far it is. If metadata does not list it although it runs, name it by"
        " --http HOST:PORT"
    )
