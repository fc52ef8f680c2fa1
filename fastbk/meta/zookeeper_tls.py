"""Encrypted connections to ZooKeeper, by the policy that all of fastbk's connections have.

kazoo's own would also accept a certificate of any authority that the system trusts, and TLS 1.0.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING

from kazoo.handlers.threading import SequentialThreadingHandler

from fastbk.security.tls import RefreshedContext, client_context

if TYPE_CHECKING:
    from fastbk.security.tls import TlsFiles


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with connections that are made here.

    Attributes:
        problem: why the last handshake failed; empty after one that did not.
    """

    def __init__(self, files: TlsFiles, *, verify_name: bool) -> None:
        """Read the files. Raises ConfigError."""
        super().__init__()
        self.problem = ""
        self._context = RefreshedContext(
            files, lambda: client_context(files, verify_name=verify_name)
        )

    def create_connection(
        self, address: tuple[str, int], timeout: float, *, hostname: str, **_: object
    ) -> socket.socket:
        """Connect and shake hands within `timeout` seconds. Raises OSError."""
        end_s = time.monotonic() + timeout
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(max(0.001, end_s - time.monotonic()))
            encrypted = self._context.current().wrap_socket(plain, server_hostname=hostname)
        except BaseException as error:
            plain.close()
            self.problem = _problem(error)
            raise
        self.problem = ""
        return encrypted


def _problem(error: BaseException) -> str:
    """Return what an operator has to mend after a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}; check ca_file, and which hosts it names"
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return f"it ended the TLS handshake ({error.reason}); does it accept certificate_file?"
    return f"no TLS handshake ({error}); is it the secureClientPort?"
