"""TLS of clients and servers: which versions and ciphers, from which files, and those files read anew.

The policy: TLS 1.2 and 1.3. Of 1.2 only suites with forward secrecy and authenticated encryption (ECDHE with AES-GCM or
ChaCha20-Poly1305); of 1.3 all, since all are. No compression, no renegotiation, no session tickets.

With 1.3 no client resumes a session. With 1.2 OpenSSL keeps sessions in its context, and that cannot be switched off
from Python. A client that resumes one shows no certificate anew. So its certificate's end is compared again, and a
context that has had a handshake of 1.2 is replaced within SESSIONS_S: no session outlives what its certificate was
verified by. (Refusing to resume would be worse: Java's clients would have every second connection fail.)

Files are PEM or PKCS12. A PKCS12 store is read as the PEM that OpenSSL's contexts take. Java's own format (JKS) is
refused with the cure.

Decisions 115 and 134.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fastbk.errors import ConfigError
from fastbk.observe.library_log import LibraryLog
from fastbk.safe_files import is_open_to_others
from fastbk.security.peer_certificate import end_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates


_log = LibraryLog("fastbk.tls")  # operators filter by that name
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
    """A context that is made anew when its files have changed. One thread."""

    def __init__(
        self,
        files: TlsFiles,
        make: Callable[[], Context],
        *,
        refresh_s: float = REFRESH_S,
        failed: Callable[[str], None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the first one. Raises ConfigError, as `make` does.

        `failed`: gets the reason when changed files make no context; the one before stays in use. None: it is logged.
        """
        self._failed = failed or _kept
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
                self._failed(str(error))  # perhaps only the first of two files was replaced yet
            else:
                self._stamp = stamp
        return self._context


def _kept(reason: str) -> None:
    _log.warning("tls.files_not_taken", reason=reason, kept="what was read before")


PEM_BYTES_MAX = 16 << 20
Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time of the last change in ns of each file; (0, 0, 0): it is not to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of files, PEM or PKCS12; "": there is none.

    Attributes:
        ca_file: certificates of the authorities whose signatures are accepted.
        certificate_file: our own certificate, and those between it and the authority; in PKCS12 the key, too.
        key_file: its private key, which others than its owner and group must not be able to read.
        key_password_file: the password of key or store, if it has one; a line break at the end is not part of it.
        ca_password_file: the same of `ca_file`, which only a PKCS12 store has.
    """

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password_file: str = ""
    ca_password_file: str = ""

    def all_files(self) -> list[str]:
        """Return the paths that are given."""
        paths = (
            self.ca_file,
            self.certificate_file,
            self.key_file,
            self.key_password_file,
            self.ca_password_file,
        )
        return [path for path in paths if path]

    def check(self, where: str) -> None:
        """Raise ConfigError, beginning with `where`, if a file is missing, or others may read what is secret."""
        for path in self.all_files():
            if not os.access(path, os.R_OK):
                raise ConfigError(f"{where}: {path} is missing, or not to be read by this user")
        has_key = bool(self.key_file) or (
            bool(self.certificate_file) and format_of(self.certificate_file) == "PKCS12"
        )
        if bool(self.certificate_file) != has_key:
            raise ConfigError(f"{where}: certificate and key go together: give both, or none")
        key_file = self.key_file or self.certificate_file
        for path in filter(None, (key_file, self.key_password_file, self.ca_password_file)):
            if is_open_to_others(path):
                raise ConfigError(
                    f"{where}: others can read {path}. If it is the right file, run `chmod o= {path}`"
                )

    def load_into(self, context: ssl.SSLContext) -> None:
        """Give a context what there is. Raises OSError, ValueError, ConfigError."""
        if self.ca_file and format_of(self.ca_file) == "PKCS12":
            context.load_verify_locations(
                cadata=pem_of(self.ca_file, self.ca_password_file).decode()
            )
        elif self.ca_file:
            context.load_verify_locations(self.ca_file)
        if not self.certificate_file:
            return
        password = _password(self.key_password_file)
        if format_of(self.certificate_file) == "PKCS12":
            with as_file(identity_pem(self.certificate_file, password)) as path:
                context.load_cert_chain(path)
        else:
            # Without a password b"": OpenSSL would else ask the terminal.
            context.load_cert_chain(self.certificate_file, self.key_file, password)

    def stamp(self) -> Stamp:
        """Return what changes when one of them does."""
        return stamp_of(self.all_files())


def pem_of(path: str, password_file: str) -> bytes:
    """Return the certificates of a file of either format. Raises OSError, ConfigError."""
    if format_of(path) == "PKCS12":
        return certificates_pem(path, _password(password_file))
    with open(path, "rb") as file:
        return file.read(PEM_BYTES_MAX)


def _password(path: str) -> bytes:
    if not path:
        return b""
    with open(path, "rb") as file:
        return file.read(4096).rstrip(b"\r\n")


def stamp_of(paths: Iterable[str]) -> Stamp:
    """Return what changes when one of these files does."""
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


SWITCH = "FASTBK_TLS"
_PATHS = {
    "ca_file": "FASTBK_TLS_CA_FILE",
    "certificate_file": "FASTBK_TLS_CERTIFICATE_FILE",
    "key_file": "FASTBK_TLS_KEY_FILE",
    "key_password_file": "FASTBK_TLS_KEY_PASSWORD_FILE",
    "ca_password_file": "FASTBK_TLS_CA_PASSWORD_FILE",
}
_VERIFY_NAME = "FASTBK_TLS_VERIFY_NAME"
_SWITCHES = {"": None, "0": False, "1": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions(TlsFiles):
    """TLS to bookies. Their certificates are always verified, and nothing is ever sent in the clear instead.

    Without `ca_file` the system's authorities count. Certificate and key are for bookies that want their clients'.

    Attributes:
        verify_name: whether a bookie's certificate must name the host that it is reached by.
    """

    verify_name: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> TlsOptions | None:
        """Return what FASTBK_TLS and FASTBK_TLS_... say; None: no TLS. Raises ConfigError.

        A path switches TLS on; FASTBK_TLS=1 does with the system's authorities, FASTBK_TLS=0 switches it off.
        """
        environment = os.environ if environment is None else environment
        paths = {field: environment.get(name, "") for field, name in _PATHS.items()}
        is_on = _switch(environment, SWITCH)
        if is_on is False or (is_on is None and not any(paths.values())):
            return None
        return cls(**paths, verify_name=_switch(environment, _VERIFY_NAME) is not False)

    def environment(self) -> dict[str, str]:
        """Return the variables that `from_environment` makes the same of."""
        paths = {name: getattr(self, field) for field, name in _PATHS.items()}
        verify = {} if self.verify_name else {_VERIFY_NAME: "0"}
        return {SWITCH: "1", **{name: path for name, path in paths.items() if path}, **verify}

    def context(self) -> RefreshedContext:
        """Return the context of connections; files that change are read anew. Raises ConfigError."""
        return RefreshedContext(self, lambda: client_context(self, verify_name=self.verify_name))


def _switch(environment: Mapping[str, str], name: str) -> bool | None:
    text = environment.get(name, "")
    if text not in _SWITCHES:
        raise ConfigError(f"{name}={text!r}: must be 0 or 1")
    return _SWITCHES[text]


_JKS = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE = b"\x30"
STORE_BYTES_MAX = 4 << 20


def format_of(path: str) -> Literal["PEM", "PKCS12"]:
    """Return what a file is, by how it begins. Raises OSError, ConfigError for a store of Java's own format."""
    with open(path, "rb") as file:
        head = file.read(4)
    if head == _JKS:
        raise ConfigError(
            f"{path} is a JKS store, which only Java reads; convert it: keytool -importkeystore -srckeystore {path}"
            f" -destkeystore {os.path.splitext(path)[0]}.p12 -deststoretype PKCS12"
        )
    return "PKCS12" if head.startswith(_DER_SEQUENCE) else "PEM"


def identity_pem(path: str, password: bytes) -> bytes:
    """Return key and certificates of a store. Raises OSError, ConfigError."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    store = _loaded(path, password)
    if store.key is None or store.cert is None:
        raise ConfigError(f"{path} has no key with a certificate in it")
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [store.cert, *store.additional_certs]
    return key + b"".join(one.certificate.public_bytes(Encoding.PEM) for one in chain)


def certificates_pem(path: str, password: bytes) -> bytes:
    """Return all certificates of a store, such as one of authorities. Raises OSError, ConfigError."""
    from cryptography.hazmat.primitives.serialization import Encoding

    store = _loaded(path, password)
    found = [one for one in (store.cert, *store.additional_certs) if one is not None]
    if not found:
        raise ConfigError(f"{path} has no certificate in it")
    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in found)


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """Give OpenSSL, which wants a path, one to memory: a key must not come onto a disk. Raises OSError."""
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _loaded(path: str, password: bytes) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    with open(path, "rb") as file:
        content = file.read(STORE_BYTES_MAX)
    try:
        return load_pkcs12(content, password or None)
    except ValueError as error:
        raise ConfigError(f"{path}: no PKCS12 store, or another password: {error}") from error
