"""Section [tls] of a server's configuration, and the context that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    from fastbk.server.configuration.settings import HttpSettings
    from fastbk.tls.contexts import ClientCertificates, Context, RefreshedContext
    from fastbk.tls.files import TlsFiles


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [tls]: encryption on the one port. Files that change are read anew, for connections from then on."""

    mode: Literal["off", "prefer", "require"] = "off"
    """`prefer` serves clients with TLS and without; `require` refuses those without. Apache's clients may begin in the
    clear and upgrade (START_TLS) in both.
    """

    certificate_file: str = ""
    """The bookie's certificate and those between it and its authority: PEM, or PKCS12 with the key in it. It has to
    name the host that clients reach the bookie by.
    """

    key_file: str = ""
    """Its key (PEM); others than owner and group must not be able to read it. Empty with PKCS12."""

    key_password_file: str = ""
    """A file with the password of the key, or of the PKCS12 store."""

    ca_file: str = ""
    """The authorities that sign clients' certificates: PEM or PKCS12."""

    ca_password_file: str = ""
    """A file with the password of `ca_file`, if that is a PKCS12 store with one."""

    version_min: Literal["1.2", "1.3"] = "1.2"
    """The lowest version of TLS that is spoken."""

    client_certificates: Literal["none", "request", "require"] = "none"
    """Whether clients have to show a certificate. `request`: they need none, but one that is shown must be good."""

    authorized_roles: tuple[str, ...] = ()
    """Serve only certificates whose first role is one of these: an organizational unit such as `0:writer,reader`, as
    Apache's authorizedRoles. Empty: every good certificate.
    """

    handshakes_rate: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 200
    """Handshakes that a worker begins in a second; each takes a millisecond of its processor. More wait."""

    refresh_interval_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 10
    """A new connection looks whether the files have changed, at most once in this time."""


def tls_files(settings: TlsSettings) -> TlsFiles:
    """Return the paths."""
    from fastbk.tls.files import TlsFiles

    return TlsFiles(
        ca_file=settings.ca_file,
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
        key_password_file=settings.key_password_file,
        ca_password_file=settings.ca_password_file,
    )


def server_tls(settings: TlsSettings) -> RefreshedContext:
    """Return the context for connections from clients. Raises ConfigError if the files make none."""
    return _context(settings, settings.client_certificates, "[tls]")


def http_tls(http: HttpSettings, settings: TlsSettings) -> RefreshedContext | None:
    """Return the context for the HTTP pages, None: they are in the clear. Raises ConfigError."""
    return _context(settings, http.client_certificates, "[http] tls") if http.tls else None


def _context(
    settings: TlsSettings, client_certificates: ClientCertificates, where: str
) -> RefreshedContext:
    # 10 ms that a start without TLS does not pay.
    from fastbk.tls.contexts import VERSIONS, RefreshedContext, server_context

    files = tls_files(settings)

    def make() -> Context:
        context = server_context(files, client_certificates, where)
        context.minimum_version = VERSIONS[settings.version_min]
        return context

    context = RefreshedContext(files, make, refresh_s=settings.refresh_interval_s)
    context.failed = _kept
    return context


def _kept(reason: str) -> None:
    from fastbk.observe import logs

    logs.warning(
        "tls.files_not_taken", reason=reason, kept="the certificate of before is still used"
    )


def authenticates(settings: TlsSettings) -> bool:
    """Return whether nobody is served without a certificate that the authorities of `ca_file` have signed."""
    return settings.mode == "require" and settings.client_certificates == "require"
