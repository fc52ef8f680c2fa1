"""Who is served, and with which rights: by TLS, by the client's certificate, by a token, or by SASL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from fastbk.security.auth_files import AuthFiles
from fastbk.security.digest_md5 import DigestServer, SaslError
from fastbk.security.peer_certificate import first_role
from fastbk.security.rights import (
    ALL_RIGHTS,
    ANYBODY,
    NO_RIGHTS,
    NOBODY,
    Principal,
    Right,
    can_be_revoked,
)
from fastbk.security.settings import is_limited, rights_of
from fastbk.security.tokens import BOOKIES, GATEWAYS, TokenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.security.settings import (
        AuthenticationSettings,
        AuthorizationSettings,
        TlsSettings,
    )

IN_THE_CLEAR = "serves TLS only: set FASTBK_TLS_CA_FILE, or connect(uri, tls=TlsOptions(...))"
_HOW = {
    "certificate": "a certificate (FASTBK_TLS_CERTIFICATE_FILE)",
    "sasl": "a user's password (FASTBK_USER, FASTBK_USER_PASSWORD_FILE)",
    "token": "a token (FASTBK_TOKEN_FILE)",
}
_USER, _CERTIFICATE, _TOKEN = "user:", "certificate:", "token:"


class Refused(Exception):
    """A client that is not served.

    Its text is for the client. `detail`: for the log instead. `is_failure`: it tried to authenticate itself.
    """

    def __init__(self, reason: str, detail: str = "", *, is_failure: bool = True) -> None:
        super().__init__(reason)
        self.detail = detail or reason
        self.is_failure = is_failure


class Client(msgspec.Struct):
    """The client of one connection.

    Attributes:
        principal: who it is, NOBODY until that is known.
        refusal: what it is told as long as it is NOBODY.
        is_secure: its connection is encrypted.
        is_greeted: its hello was accepted.
        exchange: its SASL authentication, after the challenge.
        postponed: the beginning of its SASL authentication, which is answered once TLS has begun.
        address: of its host.
        slot: of its connection, in C.
        tag_key_ids: of the keys that signed the tags of ledgers that it has shown.
        tags_wanted: how many tags it has asked for and not got yet.
    """

    principal: Principal = NOBODY
    refusal: str = ""
    is_secure: bool = False
    is_greeted: bool = False
    exchange: DigestServer | None = None
    postponed: bytes = b""
    address: str = ""
    slot: int = -1
    tag_key_ids: set[str] = msgspec.field(default_factory=set)
    tags_wanted: int = 0


def is_admission_required(tls: TlsSettings, authentication: AuthenticationSettings) -> bool:
    """Return whether anybody may be refused."""
    return tls.mode == "require" or bool(authentication.methods)


class Admission:
    """The rules of one bookie. Also keeps what files say of tokens, users and revocations."""

    def __init__(
        self,
        tls: TlsSettings,
        authentication: AuthenticationSettings,
        authorization: AuthorizationSettings,
        cluster_id: str = "",
        server: str = "bookie",
        refuse_more: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Read the files. Raises ConfigError.

        Args:
            server: what clients are told that refuses them.
            refuse_more: returns why a principal gets no further connection; "": it does.
        """
        self._server = server
        self._kind = GATEWAYS if server == "gateway" else BOOKIES
        self._is_tls_required = tls.mode == "require"
        self._certificate_roles = frozenset(tls.authorized_roles)
        self._methods = authentication.methods
        self._allowed = re.compile(authentication.users_allowed or ".*", re.DOTALL)
        self._sasl_without_tls = authentication.sasl_without_tls
        self.audience = authentication.token_audience or cluster_id
        """The audience that tokens and tags must name."""
        self.signs_tags = bool(authentication.tag_key_file)
        self._authorization = authorization
        self._is_limited = is_limited(authorization)
        self.files = AuthFiles(authentication)
        self._refuse_more = refuse_more

    def takes(self, method: str) -> bool:
        """Return whether clients authenticate themselves by a method here."""
        return method in self._methods

    @property
    def takes_sasl_only_encrypted(self) -> bool:
        """Whether a client that begins SASL in the clear has to upgrade first."""
        return self.takes("sasl") and not self._sasl_without_tls

    def meet(self, client: Client, certificate: bytes | None) -> None:
        """Say who a client is, as far as its connection shows it.

        `certificate`: in DER, and verified; b"" where none was shown; None: the client is in the clear.
        """
        client.principal, client.refusal, client.exchange = NOBODY, "", None
        if certificate is None and self._is_tls_required:
            client.refusal = f"this {self._server} {IN_THE_CLEAR}"
        elif not self._methods:
            client.refusal = "" if certificate is None else self._role_refusal(certificate)
            client.principal = NOBODY if client.refusal else ANYBODY
        elif certificate and "certificate" in self._methods:
            client.refusal = self._role_refusal(certificate)
            if not client.refusal:
                self._take(client, f"{_CERTIFICATE}{first_role(certificate)}")
        else:
            ways = " or ".join(_HOW[one] for one in self._methods)
            client.refusal = f"this {self._server} serves authenticated clients only: show {ways}"

    def by_token(self, client: Client, token: bytes) -> None:
        """Take a client for whom its token names. Raises Refused."""
        assert self.files.keys is not None
        if not client.is_secure:
            raise Refused(f"this {self._server} takes tokens over TLS only")
        if not self.audience:
            raise Refused("this cluster has no id, and [authentication] token_audience is not set")
        try:
            found = self.files.keys.verify(token, self.audience, kind=self._kind)
        except TokenError as error:
            raise Refused(f"the token is not accepted: {error}") from None
        self._accept(client, found)

    def begin_sasl(self, client: Client) -> bytes:
        """Return the challenge. Raises Refused."""
        if not client.is_secure and not self._sasl_without_tls:
            raise Refused(f"this {self._server} takes SASL over TLS only")
        client.exchange = DigestServer(self.files.users.get)
        return client.exchange.challenge()

    def end_sasl(self, client: Client, response: bytes) -> bytes:
        """Take a client for the user whose password it knows; return SASL's last message. Raises Refused."""
        exchange, client.exchange = client.exchange, None
        if exchange is None:
            raise Refused("there was no challenge")
        try:
            user, last = exchange.verify(response)
        except SaslError as error:
            raise Refused("the user or the password is not accepted", str(error)) from None
        if not self._allowed.fullmatch(user):
            raise Refused(
                "the user or the password is not accepted", "users_allowed does not match"
            )
        self._take(client, f"{_USER}{user}")
        if client.refusal:
            raise Refused(client.refusal)
        return last

    def why_ended(self, client: Client, now_s: float) -> str:
        """Return why a client is not what it was any more; "": it is."""
        principal = client.principal
        if principal.ends_at_s is not None and principal.ends_at_s <= now_s:
            return "its token has expired"
        if reason := self.files.why_revoked(principal):
            return reason
        if (
            principal.name.startswith(_USER)
            and principal.name.removeprefix(_USER) not in self.files.users
        ):
            return "its user was removed"
        if client.tag_key_ids and (
            self.files.tag_keys is None or not client.tag_key_ids <= self.files.tag_keys.ids
        ):
            return "the key of tags that it has shown was removed"
        return ""

    def _take(self, client: Client, name: str) -> None:
        self._try_to(client, Principal(name=name, rights=self._rights_of(name)))

    def _accept(self, client: Client, principal: Principal) -> None:
        before = client.principal.name
        if before.startswith(_TOKEN) and before != principal.name:
            raise Refused("a renewed token must be of the same subject")
        self._try_to(client, principal)
        if client.refusal:
            raise Refused(client.refusal)

    def _try_to(self, client: Client, principal: Principal) -> None:
        client.refusal = self.files.why_revoked(principal)
        if not client.refusal and client.principal.name != principal.name:
            client.refusal = self._refuse_more(principal.name)
        if not client.refusal and principal.rights == NO_RIGHTS:
            client.refusal = (
                f"{principal.name} has no role at this {self._server} ([authorization])"
            )
        client.principal = NOBODY if client.refusal else principal

    def _rights_of(self, name: str) -> Right:
        if not self._is_limited:
            return ALL_RIGHTS
        return rights_of(self._authorization, name)

    def _role_refusal(self, certificate: bytes) -> str:
        role = first_role(certificate)
        if role and not can_be_revoked(role):
            return f"this {self._server} does not serve the role {role[:100]!r}: it could not be revoked"
        if not self._certificate_roles or role in self._certificate_roles:
            return ""
        if not role:
            return f"this {self._server} serves certificates with a role: an organizational unit such as 0:writer"
        return f'this {self._server} does not serve certificates with the role "{role[:100]}"'
