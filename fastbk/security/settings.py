"""The sections of a configuration that say who is served, of bookies and gateways: [tls], [http], [authentication],
[authorization] and [audit]; what they make, and what is wrong with them.

Decision 135.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from fastbk.config import is_loopback
from fastbk.security.rights import NO_RIGHTS, ROLES
from fastbk.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastbk.security.rights import Right
    from fastbk.security.tls import ClientCertificates, Context, RefreshedContext, TlsFiles


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
    from fastbk.security.tls import TlsFiles

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
    from fastbk.security.tls import VERSIONS, RefreshedContext, server_context

    files = tls_files(settings)

    def make() -> Context:
        context = server_context(files, client_certificates, where)
        context.minimum_version = VERSIONS[settings.version_min]
        return context

    return RefreshedContext(files, make, refresh_s=settings.refresh_interval_s, failed=_kept)


def _kept(reason: str) -> None:
    from fastbk.observe import logs

    logs.warning(
        "tls.files_not_taken", reason=reason, kept="the certificate of before is still used"
    )


def authenticates(settings: TlsSettings) -> bool:
    """Return whether nobody is served without a certificate that the authorities of `ca_file` have signed."""
    return settings.mode == "require" and settings.client_certificates == "require"


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [http]: /metrics, /livez, /readyz."""

    listen: str = "127.0.0.1:0"
    """Address and port; port 0 takes a free one, which is logged. Empty: no HTTP."""

    tls: bool = False
    """Whether the pages are served with TLS, by certificate, key and ca of [tls], and not in the clear."""

    client_certificates: Literal["none", "request", "require"] = "none"
    """Whether clients of the pages have to show a certificate; as in [tls]."""

    changing_roles: tuple[str, ...] = ()
    """Only certificates whose first role is one of these may change the bookie by its pages; needs `tls` and
    `client_certificates`. Empty: everybody whom the pages are served to.
    """

    public: tuple[Literal["health", "metrics", "entries"], ...] = ()
    """Pages for everybody who reaches the port, where others need authentication: `health` (/livez, /readyz),
    `metrics`, and `entries` (`ledger/read`, which reads with the bookie's own credentials).
    """

    allow_unauthenticated_remote: bool = False
    """Whether everybody who reaches the port from another machine may use all its pages, and so delete ledgers."""

    allowed_hosts: tuple[str, ...] = ()
    """Names that clients may call this server by (the `Host` of their requests), without a port. Addresses, localhost,
    the machine's own name, `[bookie] advertised` and the name in `listen` need not be listed. Requests with another
    name get 403: a web page could otherwise reach the bookie through a name of its own (DNS rebinding).
    Beyond loopback, pages of health and metrics answer by any name."""


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [audit]: a log of who was let in, refused, or changed something."""

    file: str = ""
    """Where it is; its folder has to be there. Empty: there is none."""

    file_size_bytes_max: Annotated[int, msgspec.Meta(ge=4 * KIB, le=1 << 50)] = 64 * MIB
    """A file that is larger becomes FILE.1, and a new one begins."""

    files_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    """So many are kept; the oldest goes."""


class AuthenticationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [authentication]: how clients show who they are. Files that change are read anew."""

    methods: tuple[Literal["certificate", "sasl", "token"], ...] = ()
    """A client has to authenticate itself in one of these ways. Empty: nobody has to, beyond what [tls] asks for.
    """

    users_file: str = ""
    """Names and passwords of SASL (DIGEST-MD5): a login configuration of Java, as Apache's bookies read it. Others than
    owner and group must not be able to read it.
    """

    users_section: str = "Bookie"
    """The section of `users_file` that has them, as `user_NAME="PASSWORD"`."""

    users_allowed: str = ""
    """A regular expression that a user's whole name has to match. Empty: all users of the file."""

    sasl_without_tls: bool = False
    """Whether SASL is accepted in the clear. It does not send the password, but who listens can try passwords at it,
    and who is between the two can go on as the client.
    """

    token_keys_file: str = ""
    """Public keys of tokens, a JSON Web Key Set: `fastbk token key` makes it."""

    tag_keys_file: str = ""
    """Public keys of tags, in the same form. Clients whose token is limited to namespaces show a tag for each ledger.
    """

    tag_key_file: str = ""
    """The private key that this bookie signs tags with; `fastbk token key` makes it. In a folder of its own, since
    workers may read the folders of all other files here and in [tls].
    """

    token_audience: str = ""
    """The audience (`aud`) of the tokens that are accepted. Empty: the cluster's id."""

    revoked_file: str = ""
    """Who is not accepted any more, and whose connections end: one a line, `user:NAME`, `token:SUBJECT`,
    `certificate:ROLE`, `id:TOKEN-ID` or `key:KEY-ID`.
    """

    refresh_interval_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 10
    """How often a worker looks whether these files have changed."""


class AuthorizationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [authorization]: who may do what. Empty lists: each authenticated client may do everything."""

    readers: tuple[str, ...] = ()
    """Principals that may read entries: `user:NAME`, `certificate:ROLE`, or a pattern such as `user:app-*`. A principal
    in several lists has the rights of all, one in none of them is refused. A token carries its own rights.
    """

    writers: tuple[str, ...] = ()
    """May read, add and fence (a writer fences the one before it)."""

    healers: tuple[str, ...] = ()
    """May read, fence, and add copies (recovery adds): AutoRecovery."""

    services: tuple[str, ...] = ()
    """May do what writers may, and announce a write service to producers."""

    admins: tuple[str, ...] = ()
    """May do everything."""


def is_limited(settings: AuthorizationSettings) -> bool:
    """Return whether roles are given out."""
    return any(getattr(settings, f"{role}s") for role in ROLES)


def rights_of(settings: AuthorizationSettings, name: str) -> Right:
    """Return what a principal may do by the lists, if they give out roles."""
    rights = NO_RIGHTS
    for role, granted in ROLES.items():
        if any(fnmatchcase(name, pattern) for pattern in getattr(settings, f"{role}s")):
            rights |= granted
    return rights


class HttpPort(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP port, before it listens: whom it would serve. Every service of fastbk is held to this (INV-N7).

    Attributes:
        where: the setting or option that names it, for messages.
        host: it listens there.
        is_encrypted: it has TLS.
        client_certificates: whether its clients show certificates.
        takes_tokens: it verifies users' tokens.
        public: kinds of pages for everybody (`[http] public`).
        is_permitted: an operator has said that everybody may do everything.
    """

    where: str
    host: str
    is_encrypted: bool = False
    client_certificates: ClientCertificates = "none"
    takes_tokens: bool = False
    public: Sequence[str] = ()
    is_permitted: bool = False

    @property
    def authenticates(self) -> bool:
        """Whether clients can show who they are."""
        return self.is_encrypted and (self.client_certificates != "none" or self.takes_tokens)

    @property
    def serves_strangers(self) -> bool:
        """Whether clients need not show who they are, but where a page itself requires it."""
        return self.is_permitted or is_loopback(self.host)

    def problem(self, cure: str) -> str:
        """Return why it must not listen; "": it may. `cure`: the settings or options that would let it."""
        if self.serves_strangers or self.authenticates or self.public:
            return ""
        return f"{self.where} is reachable from other machines, and nobody would have to authenticate: {cure}"


def http_port(
    http: HttpSettings, host: str, authentication: AuthenticationSettings, *, is_permitted: bool
) -> HttpPort:
    """Return the port of a configuration's [http]; `is_permitted`: another section lets everybody in."""
    return HttpPort(
        where=f"[http] listen = {http.listen}",
        host=host,
        is_encrypted=http.tls,
        client_certificates=http.client_certificates,
        takes_tokens=bool(authentication.token_keys_file),
        public=http.public,
        is_permitted=http.allow_unauthenticated_remote or is_permitted,
    )


HTTP_CURE = (
    'listen on 127.0.0.1, or set [http] tls = true and client_certificates = "require" (or "request", or'
    ' token_keys_file in [authentication]), or [http] public = ["health", "metrics"] if others need nothing more, or'
    " [http] allow_unauthenticated_remote = true to let everybody do everything (docs/http.md)"
)


def keeps_strangers_out(settings: AuthenticationSettings, tls: TlsSettings) -> bool:
    """Return whether nobody is served who has not authenticated, over a connection that others cannot take over."""
    return bool(settings.methods) and tls.mode == "require"


def requires_authentication(settings: AuthenticationSettings, tls: TlsSettings) -> bool:
    """Return whether clients of the port of [bookie] or [gateway] have to show who they are."""
    return bool(settings.methods) or (
        tls.mode == "require" and tls.client_certificates == "require"
    )


def folders_of_workers(settings: AuthenticationSettings, tls: TlsSettings) -> list[str]:
    """Return the folders that workers read these sections' files in: a file that is renewed is another of its name."""
    files = (
        tls.certificate_file, tls.key_file, tls.key_password_file, tls.ca_file, tls.ca_password_file,
        settings.users_file, settings.token_keys_file, settings.tag_keys_file, settings.revoked_file,
    )  # fmt: skip
    return sorted({os.path.dirname(os.path.abspath(one)) for one in files if one})


def authentication_problems(
    settings: AuthenticationSettings, authorization: AuthorizationSettings, tls: TlsSettings
) -> Iterator[str]:
    """Yield what is wrong with both sections beside [tls]."""
    methods = settings.methods
    files = (
        ("sasl", "users_file", settings.users_file),
        ("token", "token_keys_file", settings.token_keys_file),
    )
    for method, name, path in files:
        if method in methods and not path:
            yield f'[authentication] methods has "{method}": {name} is needed'
        if path and method not in methods:
            yield f'[authentication] names a {name}: add "{method}" to methods'
    if "certificate" in methods and (tls.mode == "off" or tls.client_certificates == "none"):
        yield (
            '[authentication] methods has "certificate": [tls] mode must be "prefer" or "require", and'
            ' client_certificates "request" or "require"'
        )
    if "token" in methods and tls.mode == "off":
        yield '[authentication] methods has "token": [tls] mode must not be "off", since who sees a token can use it'
    if "sasl" in methods and tls.mode == "off" and not settings.sasl_without_tls:
        yield (
            '[authentication] methods has "sasl" and [tls] mode is "off": turn TLS on, or set sasl_without_tls = true'
        )
    if bool(settings.tag_keys_file) != bool(settings.tag_key_file):
        yield "[authentication] tag_keys_file and tag_key_file go together"
    if settings.tag_keys_file and "token" not in methods:
        yield '[authentication] names a tag_keys_file: add "token" to methods'
    if settings.tag_key_file:
        key = os.path.realpath(settings.tag_key_file)
        for folder in folders_of_workers(settings, tls):
            if os.path.commonpath((key, real := os.path.realpath(folder))) == real:
                yield f"[authentication] tag_key_file must not lie below {folder}: workers may read that"
    try:
        re.compile(settings.users_allowed)
    except re.error as error:
        yield f"[authentication] users_allowed is no regular expression: {error}"
    if is_limited(authorization) and not methods:
        yield "[authorization] needs [authentication] methods: nobody has a name without them"
