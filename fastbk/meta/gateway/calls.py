"""A client's calls to gateways: connections that stay open, failover between gateways, and repeats of lost answers.

Every request may be repeated, at any gateway: the gateway then recognises what was done already (`is_repeat`). So a
connection that breaks, a gateway that dies and one that is too busy are all met in the same way until the call's time
is over; then MetadataUnavailable says that the change may have happened. Blocking; any thread. A forked child has to
open a store of its own.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from fastbk.config import is_loopback, split_address
from fastbk.errors import ClientClosed, ConfigError, MetadataUnavailable
from fastbk.meta.gateway.messages import (
    ANSWER_BYTES_MAX,
    CONTENT_TYPE,
    NAMES,
    PATH,
    REQUEST_BYTES_MAX,
    Failure,
    ReadStates,
    Request,
    encode,
    error_of,
)
from fastbk.retry import Retry
from fastbk.web.client import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.auth.credentials import Credentials
    from fastbk.tls.contexts import RefreshedContext
    from fastbk.tls.options import TlsOptions

T = TypeVar("T")
IDLE_S_MAX = 30.0
"""A connection that was not used for so long is not used again: the gateway closes it after twice that."""
IDLE_MAX = 16
"""Connections that are kept for the next calls."""
TOKEN_CHECK_S = 5.0
"""How old the token may be that is shown: the file is read again then."""
ATTEMPT_S_MAX = 5.0
"""Longest wait for one gateway while there are others."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 0.5
_ANSWER_BYTES_MAX = ANSWER_BYTES_MAX + 4 * 1024 * 1024
"""The last row of an answer may reach over the bound; a record has 900 kB at most."""
_TOKEN = re.compile(r"[!-~]+")


@dataclass(slots=True, eq=False)
class _Connection:
    http: HttpConnection
    address: str
    used_s: float


class GatewayCalls:
    """The calls of one store."""

    def __init__(
        self,
        servers: Sequence[str],
        timeout_s: float,
        tls: TlsOptions | None,
        credentials: Credentials | None,
    ) -> None:
        """`servers`: each as host:port. Raises ConfigError where requests would go in the clear to other machines."""
        self._servers = deque(servers)
        self._timeout_s = timeout_s
        self._context: RefreshedContext | None = None if tls is None else tls.context()
        self._credentials = credentials
        if tls is None:
            for one in servers:
                if not is_loopback(split_address(one, "gateway")[0]):
                    raise ConfigError(
                        f"gateway {one}: set FASTBK_TLS_CA_FILE or give tls=: only a gateway of this machine is"
                        " reached without TLS, for trials"
                    )
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._waiting: set[_Connection] = set()
        self._token: tuple[float, str] = (float("-inf"), "")
        self._pid = os.getpid()
        self._is_closed = False

    def call(self, request: Request, kind: type[T]) -> T:
        """Return a request's result. `is_repeat` of the request is set here. Raises Error."""
        name, body_kind = NAMES[type(request)], kind
        retry = Retry(PAUSE_MIN_S, PAUSE_MAX_S, self._timeout_s)
        wait_s = request.wait_ms / 1e3 if isinstance(request, ReadStates) else 0.0
        end_s = time.monotonic() + self._timeout_s + wait_s
        attempts, is_sent = 0, False
        while True:
            self._check_open()
            left_s = end_s - time.monotonic()
            servers = len(self._servers)
            limit_s = max(0.05, min(left_s, ATTEMPT_S_MAX + wait_s) if servers > 1 else left_s)
            if is_sent and hasattr(request, "is_repeat"):
                request = replace(request, is_repeat=True)
            address = self._servers[0]
            try:
                status, answer = self._exchange(
                    address, name, replace(request, timeout_ms=int(limit_s * 1e3)), limit_s
                )
                return self._result(status, answer, body_kind)
            except _NotSent as error:
                failed = self._lost(address, error.reason, is_sent=is_sent)
            except OSError as error:
                is_sent = True
                failed = self._lost(address, error, is_sent=True)
            except MetadataUnavailable as error:
                is_sent |= error.outcome != "not_written"
                failed = error
            attempts += 1
            with self._lock:
                if self._servers[0] == address:
                    self._servers.rotate(-1)
            if attempts % servers == 0 or left_s <= 0:
                if is_sent and failed.outcome == "not_written":
                    failed.outcome = "unknown"
                time.sleep(retry.pause_s(failed))
            elif end_s - time.monotonic() <= 0:
                raise failed

    def close(self) -> None:
        """Close all connections that no call uses, or that wait for a change; others close when their calls end."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            # A forked child has the parent's connections, too.
            for connection in self._waiting if self._pid == os.getpid() else ():
                connection.http.cut()
        for one in idle:
            one.http.close()

    # --- one exchange -----------------------------------------------------------------------------------------------

    def _exchange(
        self, address: str, name: str, request: Request, limit_s: float
    ) -> tuple[int, bytes]:
        body = encode(request)
        if len(body) > REQUEST_BYTES_MAX:
            raise ConfigError(
                f"a request has {len(body)} bytes, a gateway takes {REQUEST_BYTES_MAX}: change less at once"
            )
        headers = {"Content-Type": CONTENT_TYPE, **self._authorization()}
        connection = self._taken(address, limit_s)
        may_wait = isinstance(request, ReadStates) and request.wait_ms > 0
        try:
            if may_wait:
                self._begin_wait(connection)
            answer = connection.http.exchange("POST", PATH + name, headers, body, is_last=False)
        except BaseException:
            connection.http.close()
            raise
        finally:
            if may_wait:
                with self._lock:
                    self._waiting.discard(connection)
        self._give_back(connection, is_good=not answer.is_last)
        if answer.status == 401:
            self._token = (float("-inf"), "")
        return answer.status, answer.body

    def _result(self, status: int, answer: bytes, kind: type[T]) -> T:
        try:
            if status == 200:
                return msgspec.msgpack.decode(answer, type=kind)
            failure = msgspec.msgpack.decode(answer, type=Failure)
        except ValueError as error:
            raise MetadataUnavailable(
                f"a gateway answered {status} with something else than its protocol: is the address a gateway's?"
            ) from error
        raise error_of(failure)

    def _taken(self, address: str, limit_s: float) -> _Connection:
        """Return a connection, one that is open if there is one. Raises _NotSent."""
        now_s = time.monotonic()
        stale: list[_Connection] = []
        found: _Connection | None = None
        with self._lock:
            while self._idle and found is None:
                one = self._idle.pop()
                if one.address == address and now_s - one.used_s < IDLE_S_MAX:
                    found = one
                else:
                    stale.append(one)
        for one in stale:
            one.http.close()
        if found is not None:
            found.http.set_timeout(limit_s)
            return found
        return _Connection(self._connected(address, limit_s), address, now_s)

    def _connected(self, address: str, limit_s: float) -> HttpConnection:
        host, port = split_address(address, "gateway")
        context = None
        if self._context is not None:
            with self._lock:  # it may be made anew
                context = self._context.current()
        made = HttpConnection(host, port, tls=context, bytes_max=_ANSWER_BYTES_MAX)
        try:
            made.connect(limit_s)
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"gateway {address} has a certificate that is not good: {error.verify_message}; is FASTBK_TLS_CA_FILE"
                " the one that signed it?"
            ) from error
        except OSError as error:
            raise _NotSent(error) from error
        return made

    def _begin_wait(self, connection: _Connection) -> None:
        with self._lock:
            self._check_open()
            self._waiting.add(connection)

    def _give_back(self, connection: _Connection, *, is_good: bool) -> None:
        connection.used_s = time.monotonic()
        with self._lock:
            if is_good and not self._is_closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.http.close()

    def _authorization(self) -> dict[str, str]:
        if self._context is None or self._credentials is None:
            return {}  # in the clear anybody on this machine may have the port, and would have the token
        read_s, token = self._token
        now_s = time.monotonic()
        if now_s - read_s >= TOKEN_CHECK_S:
            token = self._credentials.gateway_token().decode("ascii", "replace")
            if token and not _TOKEN.fullmatch(token):
                path = self._credentials.gateway_token_file or self._credentials.token_file
                raise ConfigError(f"{path}: this is no token: none has such characters")
            self._token = (now_s, token)
        return {"Authorization": f"Bearer {token}"} if token else {}

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the gateway's store was closed")
        if self._pid != os.getpid():
            raise ClientClosed(
                "this store belongs to the parent process: open another one behind a fork"
            )

    def _lost(self, address: str, error: BaseException, *, is_sent: bool) -> MetadataUnavailable:
        reason = str(error) or type(error).__name__
        if is_sent:
            hint = "what was asked for may be done yet: read again before retrying"
            if self._context is None:
                hint = f"is FASTBK_TLS_CA_FILE set, if it has TLS? If so, {hint}"
        else:
            hint = "is `fastbk gateway` running there, and are host and port right?"
        return MetadataUnavailable(
            f"gateway {address} does not answer: {reason}: {hint}",
            outcome="unknown" if is_sent else "not_written",
        )


class _NotSent(Exception):
    """A connection could not be made: nothing was sent."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason
