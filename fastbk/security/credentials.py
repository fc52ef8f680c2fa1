"""How a client authenticates itself: `fastbk.connect(uri, credentials=Credentials(...))`, or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fastbk.errors import ConfigError, ProtocolError
from fastbk.safe_files import read_password, read_secret
from fastbk.security.digest_md5 import DigestClient, SaslError, check_name

TOKEN_FILE, USER, PASSWORD_FILE = "FASTBK_TOKEN_FILE", "FASTBK_USER", "FASTBK_USER_PASSWORD_FILE"
GATEWAY_TOKEN_FILE, PAGES_TOKEN_FILE = "FASTBK_GATEWAY_TOKEN_FILE", "FASTBK_PAGES_TOKEN_FILE"
WITHOUT_TLS = "FASTBK_SASL_WITHOUT_TLS"
TOKEN_BYTES_MAX = 4096
TOKEN, SASL = "token", "sasl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token, or a user and password. Both in files that only their owner and group can read.

    Bookies of ours get the token if there is one, Apache's get the user (SASL DIGEST-MD5). Certificates are in
    `TlsOptions`. A bookie that does not authenticate its clients ignores all of it.

    Attributes:
        token_file: a signed token. A file that changes is read anew, and open connections get the new token.
        gateway_token_file: the one for gateways; "": the same.
        user: the user's name, for SASL.
        password_file: a file with the password; a line break at its end is not part of it.
        sasl_without_tls: authenticate a user over connections that are not encrypted, too.
    """

    token_file: str = ""
    user: str = ""
    password_file: str = ""
    sasl_without_tls: bool = False
    gateway_token_file: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Credentials | None:
        """Return what FASTBK_TOKEN_FILE, FASTBK_USER and FASTBK_USER_PASSWORD_FILE say; None: nothing.

        Raises ConfigError.
        """
        environment = os.environ if environment is None else environment
        without_tls = environment.get(WITHOUT_TLS, "")
        if without_tls not in ("", "0", "1"):
            raise ConfigError(f"{WITHOUT_TLS}={without_tls!r}: must be 0 or 1")
        found = cls(
            token_file=environment.get(TOKEN_FILE, ""),
            user=environment.get(USER, ""),
            password_file=environment.get(PASSWORD_FILE, ""),
            sasl_without_tls=without_tls == "1",
            gateway_token_file=environment.get(GATEWAY_TOKEN_FILE, ""),
        )
        return None if found == cls(sasl_without_tls=found.sasl_without_tls) else found

    def environment(self) -> dict[str, str]:
        """Return the variables that `from_environment` makes the same of."""
        values = {
            TOKEN_FILE: self.token_file,
            USER: self.user,
            PASSWORD_FILE: self.password_file,
            WITHOUT_TLS: "1" if self.sasl_without_tls else "",
            GATEWAY_TOKEN_FILE: self.gateway_token_file,
        }
        return {name: value for name, value in values.items() if value}

    def check(self, *, is_encrypted: bool) -> None:
        """Raise ConfigError for files that are missing, and for secrets that would not be safe on their way."""
        if not self.token_file and not self.user:
            raise ConfigError(
                f"credentials: give a token file ({TOKEN_FILE}), or a user ({USER}) and a password file"
            )
        if bool(self.user) != bool(self.password_file):
            raise ConfigError(
                f"credentials: a user ({USER}) and a password file ({PASSWORD_FILE}) go together"
            )
        if self.token_file:
            if not is_encrypted:
                raise ConfigError(
                    "credentials: a token needs TLS (FASTBK_TLS_CA_FILE), since who sees it can use it"
                )
            self.token()
        if self.gateway_token_file:
            self.gateway_token()
        if self.user:
            if not is_encrypted and not self.sasl_without_tls:
                raise ConfigError(
                    "credentials: a user needs TLS (FASTBK_TLS_CA_FILE), or sasl_without_tls"
                    f" ({WITHOUT_TLS}=1) where the network is trusted"
                )
            check_name(self.user)
            read_password(self.password_file)

    def token(self) -> bytes:
        """Return the token as the file has it now. Raises ConfigError."""
        return _read_token(self.token_file)

    def gateway_token(self) -> bytes:
        """Return the token for gateways as its file has it now; b"": there is none. Raises ConfigError."""
        path = self.gateway_token_file or self.token_file
        return _read_token(path) if path else b""

    def login(self) -> Login:
        """Return the client's side of one authentication. Raises ConfigError."""
        if self.token_file:
            return Login(TOKEN, self.token(), None)
        return self.sasl_login()

    def sasl_login(self) -> Login:
        """The same by SASL. Raises ConfigError."""
        return Login(SASL, b"", DigestClient(self.user, read_password(self.password_file)))


def pages_token() -> bytes:
    """Return the token for pages, by FASTBK_PAGES_TOKEN_FILE or FASTBK_TOKEN_FILE; b"": none. Raises ConfigError."""
    path = os.environ.get(PAGES_TOKEN_FILE) or os.environ.get(TOKEN_FILE)
    return _read_token(path) if path else b""


def _read_token(path: str) -> bytes:
    token = read_secret(path).strip()
    if not 0 < len(token) <= TOKEN_BYTES_MAX:
        raise ConfigError(f"{path}: a token has 1 to {TOKEN_BYTES_MAX} bytes, not {len(token)}")
    return token


class Login:
    """One authentication: `payload` goes out first, then what `answer` returns.

    Attributes:
        method: TOKEN or SASL.
        payload: the first message.
        is_done: both sides have shown who they are.
    """

    def __init__(self, method: str, payload: bytes, exchange: DigestClient | None) -> None:
        self.method = method
        self.payload = payload
        self.is_done = exchange is None
        self._exchange = exchange
        self._is_last = False

    def answer(self, message: bytes) -> bytes | None:
        """Return the answer to the bookie's next message; None: it was the last one. Raises ProtocolError."""
        if self._exchange is None:
            return None
        try:
            if self._is_last:
                self._exchange.finish(message)
                self.is_done = True
                return None
            self._is_last = True
            return self._exchange.respond(message)
        except SaslError as error:
            raise ProtocolError(f"the bookie's authentication is not accepted: {error}") from None
