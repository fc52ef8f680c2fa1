"""A write service's configuration file: the sections of a bookie's that it needs, and its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from fastbk.config import MetadataSettings, is_every_machines_own, is_loopback, split_address
from fastbk.errors import ConfigError
from fastbk.security.auth_files import check_files
from fastbk.security.credentials import Credentials
from fastbk.security.settings import (
    HTTP_CURE,
    AuditSettings,
    AuthenticationSettings,
    AuthorizationSettings,
    HttpSettings,
    TlsSettings,
    authentication_problems,
    http_port,
    http_tls,
    server_tls,
)
from fastbk.security.tls import TlsOptions
from fastbk.stream.services import ADDRESS_CHARACTERS_MAX, SERVICE_ID
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [serve]: where it listens, who it is, and its bounds."""

    listen: str = "127.0.0.1:3183"
    """Address and port of producers; port 0 takes a free one, which is logged."""

    advertised: str = ""
    """Host, or host and port, that producers and other services reach it by. Empty: what `listen` says, which then has
    to be an address of this machine.
    """

    id: str = ""
    """Its name among the services, of letters, digits and `_.-`: the same after a restart, and no other has it. Empty:
    made of the address that it is reached by.
    """

    streams_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    """Streams that it owns at most."""

    connections_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
    """Connections of producers at most."""

    producers_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1024
    """Producers of one connection at most."""

    pending_bytes_max: Annotated[int, msgspec.Meta(ge=MIB, le=256 * MIB)] = 4 * MIB
    """Records of one producer that may be unanswered."""

    memory_bytes_max: Annotated[int, msgspec.Meta(ge=8 * MIB, le=1 << 40)] = 256 * MIB
    """Records of all producers that may be unanswered: beyond it nothing more is read from them."""

    idle_s: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 600
    """A stream that has had no producer for so long is given up, and taken over again when one comes."""


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [client]: how the service shows bookies, gateways and other services who it is. Empty: the environment
    says it (FASTBK_TOKEN_FILE, FASTBK_TLS_CA_FILE and so on), as for every client.
    """

    token_file: str = ""
    """Its token: `add`, `read` and `recover` on all namespaces that it serves."""

    ca_file: str = ""
    """The authorities that bookies' certificates are verified by; it switches TLS to bookies on."""

    certificate_file: str = ""
    """Its certificate as a client."""

    key_file: str = ""
    """The certificate's key."""

    def tls(self) -> TlsOptions | None:
        """Return how it speaks to bookies. Raises ConfigError."""
        if not (self.ca_file or self.certificate_file):
            return TlsOptions.from_environment()
        return TlsOptions(
            ca_file=self.ca_file, certificate_file=self.certificate_file, key_file=self.key_file
        )

    def credentials(self) -> Credentials | None:
        """Return what it authenticates itself by. Raises ConfigError."""
        if not self.token_file:
            return Credentials.from_environment()
        return Credentials(token_file=self.token_file)


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    serve: ServeSettings = msgspec.field(default_factory=ServeSettings)
    metadata: MetadataSettings = msgspec.field(default_factory=MetadataSettings)
    client: ClientSettings = msgspec.field(default_factory=ClientSettings)
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    audit: AuditSettings = msgspec.field(default_factory=AuditSettings)
    tls: TlsSettings = msgspec.field(default_factory=TlsSettings)
    authentication: AuthenticationSettings = msgspec.field(default_factory=AuthenticationSettings)
    authorization: AuthorizationSettings = msgspec.field(default_factory=AuthorizationSettings)


def check(config: ServeConfig, where: str) -> None:
    """Raise ConfigError with all that forbids a start."""
    if problems := list(_problems(config)):
        raise ConfigError(f"{where}: {'; '.join(problems)}")
    check_files(config.authentication)


def check_named_files(config: ServeConfig) -> None:
    """Refuse certificates, tokens, and a folder of the audit log, that are not there. Raises ConfigError."""
    if config.tls.mode != "off":
        server_tls(config.tls)
    http_tls(config.http, config.tls)
    folder = Path(config.audit.file).parent
    if config.audit.file and not folder.is_dir():
        raise ConfigError(
            f"[audit] file {config.audit.file}: make the folder {folder}, and give it to this user"
        )
    tls, credentials = config.client.tls(), config.client.credentials()
    if tls is not None:
        tls.check("[client]")
    if credentials is not None:
        credentials.check(is_encrypted=tls is not None)


def advertised_address(config: ServeConfig, port: int) -> str:
    """Return the address that others reach it by, when it listens on `port`. Raises ConfigError."""
    text = config.serve.advertised
    if not text:
        host, _ = split_address(config.serve.listen, "[serve] listen")
    elif re.fullmatch(r".*[^:]:\d+", text) or re.fullmatch(r"\[.*\]:\d+", text):
        host, port = split_address(text, "[serve] advertised")
    else:
        host = text.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def id_of(config: ServeConfig, address: str) -> str:
    """Return the id of the service at an address."""
    return config.serve.id or re.sub(r"[^A-Za-z0-9_.-]+", "-", address).strip("-.")[:64]


def _problems(config: ServeConfig) -> Iterator[str]:
    uri = config.metadata.uri
    if not uri or uri.startswith("memory:"):
        yield f'[metadata] uri = "{uri}": must name the metadata store: ZooKeeper, sqlite, or gateways'
    try:
        host, _ = split_address(config.serve.listen, "[serve] listen")
        address = advertised_address(config, 1)
    except ConfigError as error:
        yield str(error)
        return
    reached, _ = split_address(address, "[serve] advertised")
    if is_every_machines_own(reached) and not is_loopback(host):
        yield (
            f'[serve] listen = "{config.serve.listen}" is no address that others reach it by: name one'
            " ([serve] advertised)"
        )
    if len(address) > ADDRESS_CHARACTERS_MAX or "~" in address or "@" in address:
        yield f"[serve] advertised: {address[:100]!r} is no address"
    if config.serve.id and not SERVICE_ID.fullmatch(config.serve.id):
        yield f'[serve] id = "{config.serve.id[:100]}": an id has 1 to 64 letters, digits and _.-'
    if config.serve.memory_bytes_max < 2 * config.serve.pending_bytes_max:
        yield "[serve] memory_max must be twice pending_max at least"
    if config.tls.mode == "prefer":
        yield '[tls] mode must be "require" or "off": producers are served either in the clear or with TLS'
    if "sasl" in config.authentication.methods:
        yield '[authentication] methods has "sasl": a write service takes "token" and "certificate"'
    if config.authentication.tag_keys_file or config.authentication.tag_key_file:
        yield "[authentication] has keys of tags: those are for bookies"
    yield from authentication_problems(config.authentication, config.authorization, config.tls)
    if config.http.listen:
        try:
            host, _ = split_address(config.http.listen, "[http] listen")
        except ConfigError as error:
            yield str(error)
            return
        if problem := http_port(
            config.http, host, config.authentication, is_permitted=False
        ).problem(HTTP_CURE):
            yield problem
