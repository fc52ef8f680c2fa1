"""TLS contexts of clients and servers, and their policy.

The policy: TLS 1.2 and 1.3. Of 1.2 only suites with forward secrecy and authenticated encryption (ECDHE with AES-GCM or
ChaCha20-Poly1305); of 1.3 all, since all are. No compression, no renegotiation, no session tickets.

Of 1.3 nobody resumes. Of 1.2 OpenSSL keeps sessions in its context, and that cannot be switched off from Python. A
client that resumes one shows no certificate anew. So its certificate's end is compared again, and a context that has
had a handshake of 1.2 is replaced within SESSIONS_S: no session outlives what its certificate was verified by.
(Refusing to resume would be worse: Java's clients would have every second connection fail.)
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Literal

from fastbk.errors import ConfigError
from fastbk.observe.library_log import LibraryLog
from fastbk.tls.files import TlsFiles
from fastbk.tls.roles import end_s

_log = LibraryLog("fastbk.tls")
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
CLIENT = "TLS (FASTBK_TLS_... or TlsOptions)"
"""How messages about a client's files begin."""
REFRESH_S = 10.0
"""Files are looked at once in so long, and only when a connection is made."""

SESSIONS_S = 60.0
"""How long sessions of TLS 1.2 can be resumed, at most."""

ClientCertificates = Literal["none", "request", "require"]
"""What a server wants of its clients: no certificate; one if they have it; one. One that is shown must be good."""
_VERIFY = {"none": ssl.CERT_NONE, "request": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class _Peer(ssl.SSLObject):
    """One connection's TLS."""

    def getpeercert(self, binary_form: bool = True) -> bytes | None:  # type: ignore[override]
        """Return the peer's certificate in DER, whatever is asked for: event loops ask for it as a dictionary.

        That raises where the certificate says something that is no text, which an authority may well have signed.
        """
        return super().getpeercert(binary_form=True)

    def do_handshake(self) -> None:
        """Go on with the handshake; refuse a session whose certificate has ended since. Raises ssl.SSLError."""
        super().do_handshake()
        if not self.server_side or self.version() != "TLSv1.2":
            return
        assert isinstance(self.context, Context)
        self.context.has_sessions = True
        if (
            self.session_reused
            and (certificate := self.getpeercert())
            and end_s(certificate) <= time.time()
        ):
            raise ssl.SSLError(1, "the certificate of the session has ended")


class Context(ssl.SSLContext):
    """A context of either side.

    Attributes:
        has_sessions: it has had a handshake whose session can be resumed.
    """

    sslobject_class = _Peer
    has_sessions = False


def client_context(files: TlsFiles, *, verify_name: bool) -> Context:
    """Return the context of connections to servers, whose certificates are always verified.

    Without `ca_file` the system's authorities count. Raises ConfigError.
    """
    files.check(CLIENT)
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files, CLIENT)
    context.check_hostname = verify_name
    if not files.ca_file:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def server_context(files: TlsFiles, client_certificates: ClientCertificates, where: str) -> Context:
    """Return the context of connections from clients. Raises ConfigError, beginning with `where`."""
    if not files.certificate_file:
        raise ConfigError(f"{where}: a server needs a certificate and its key")
    if client_certificates != "none" and not files.ca_file:
        raise ConfigError(
            f"{where}: client certificates are wanted, and there is no ca to verify them by"
        )
    files.check(where)
    context = _context(ssl.PROTOCOL_TLS_SERVER, files, where)
    context.verify_mode = _VERIFY[client_certificates]
    context.num_tickets = 0
    return context


def _context(protocol: int, files: TlsFiles, where: str) -> Context:
    context = Context(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    try:
        files.load_into(context)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error
    except (OSError, ValueError) as error:
        names = ", ".join(
            one for one in (files.ca_file, files.certificate_file, files.key_file) if one
        )
        raise ConfigError(f"{where}: {names}: {_reason_of(error)}") from error
    return context


def _reason_of(error: OSError | ValueError) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key is not the certificate's"
    return str(reason)


class RefreshedContext:
    """A context that is made anew when its files have changed. One thread.

    Attributes:
        failed: gets the reason when changed files make no context; the one before stays in use.
    """

    def __init__(
        self,
        files: TlsFiles,
        make: Callable[[], Context],
        *,
        refresh_s: float = REFRESH_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the first one. Raises ConfigError, as `make` does."""
        self.failed: Callable[[str], None] = _kept
        self._files = files
        self._make = make
        self._refresh_s = refresh_s
        self._clock_s = clock_s
        self._stamp = files.stamp()
        self._context = make()
        self._looked_s = self._made_s = clock_s()

    def current(self) -> Context:
        """Return the context for the next connection; those that are open keep theirs."""
        now_s = self._clock_s()
        has_old_sessions = self._context.has_sessions and now_s - self._made_s >= SESSIONS_S
        if now_s - self._looked_s < self._refresh_s and not has_old_sessions:
            return self._context
        self._looked_s = now_s
        stamp = self._files.stamp()
        if stamp != self._stamp or has_old_sessions:
            self._made_s = now_s
            try:
                self._context = self._make()
            except Exception as error:  # noqa: BLE001 - whatever half a file leads to; a connection waits for this
                self.failed(str(error))  # perhaps only the first of two files was replaced yet
            else:
                self._stamp = stamp
        return self._context


def _kept(reason: str) -> None:
    _log.warning("tls.files_not_taken", reason=reason, kept="what was read before")
