"""Sections [authentication] and [authorization] of a bookie's configuration, and what is wrong with them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from fastbk.auth.rights import NO_RIGHTS, ROLES
from fastbk.config import is_loopback
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastbk.auth.rights import Right
    from fastbk.server.configuration.settings import HttpSettings
    from fastbk.server.configuration.tls import TlsSettings
    from fastbk.tls.contexts import ClientCertificates


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

    admins: tuple[str, ...] = ()
    """May do everything."""


def is_limited(settings: AuthorizationSettings) -> bool:
    """Return whether roles are given out."""
    return any((settings.readers, settings.writers, settings.healers, settings.admins))


def rights_of(settings: AuthorizationSettings, name: str) -> Right:
    """Return what a principal may do by the lists, if they give out roles."""
    rights = NO_RIGHTS
    for role, granted in ROLES.items():
        if any(fnmatchcase(name, pattern) for pattern in getattr(settings, f"{role}s")):
            rights |= granted
    return rights


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPort:
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


def check_files(settings: AuthenticationSettings) -> None:
    """Refuse files that are not good. Raises ConfigError."""
    # 100 ms that a start without them does not pay.
    if settings.token_keys_file:
        from fastbk.auth.tokens import TokenKeys

        TokenKeys.load(settings.token_keys_file)
    if settings.tag_keys_file:
        from fastbk.auth.tokens import TokenKey, TokenKeys

        if TokenKey.load(settings.tag_key_file).key_id not in TokenKeys.load(
            settings.tag_keys_file
        ):
            raise ConfigError(
                f"{settings.tag_keys_file} does not have the key of {settings.tag_key_file}"
            )
    if settings.users_file:
        from fastbk.auth.users import load_users

        load_users(settings.users_file, settings.users_section)
    if settings.revoked_file:
        from fastbk.auth.revocations import load_revocations

        load_revocations(settings.revoked_file)


def problems(
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
