"""A gateway's configuration file: the sections of a bookie's that a gateway needs, and its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fastbk import config as toml
from fastbk.config import MetadataSettings, is_loopback, split_address
from fastbk.errors import ConfigError
from fastbk.meta.uri import is_gateway
from fastbk.security.auth_files import check_files
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
    keeps_strangers_out,
    server_tls,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [gateway]: where it listens."""

    listen: str = "127.0.0.1:3182"
    """Address and port; port 0 takes a free one, which is logged."""
    writes_rate: float = 1000.0
    """Requests of one principal that change metadata, on average over ten seconds. 0: no limit."""
    data_rate_bytes: int = 4 * 1024 * 1024
    """Of these requests, on average over ten seconds. 0: no limit."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    gateway: GatewaySettings = msgspec.field(default_factory=GatewaySettings)
    metadata: MetadataSettings = msgspec.field(default_factory=MetadataSettings)
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    audit: AuditSettings = msgspec.field(default_factory=AuditSettings)
    tls: TlsSettings = msgspec.field(default_factory=TlsSettings)
    authentication: AuthenticationSettings = msgspec.field(default_factory=AuthenticationSettings)
    authorization: AuthorizationSettings = msgspec.field(default_factory=AuthorizationSettings)


def load(path: Path) -> GatewayConfig:
    """Return what a file configures. Raises ConfigError with all that forbids a start."""
    config = toml.load(path, GatewayConfig)
    if found := list(_problems(config)):
        raise ConfigError(f"{path}: {'; '.join(found)}")
    check_files(config.authentication)
    return config


def check_named_files(config: GatewayConfig) -> None:
    """Refuse certificates, and a folder of the audit log, that are not there. Raises ConfigError."""
    if config.tls.mode != "off":
        server_tls(config.tls)
    http_tls(config.http, config.tls)
    folder = Path(config.audit.file).parent
    if config.audit.file and not folder.is_dir():
        raise ConfigError(
            f"[audit] file {config.audit.file}: make the folder {folder}, and give it to this user"
        )


def _problems(config: GatewayConfig) -> Iterator[str]:
    uri = config.metadata.uri
    if not uri or is_gateway(uri) or uri.startswith("memory:"):
        yield f'[metadata] uri = "{uri}": must name the metadata store, ZooKeeper or sqlite, that clients are kept from'
    for name in ("writes_rate", "data_rate_bytes"):
        if not 0 <= getattr(config.gateway, name) <= 1e12:
            yield f"[gateway] {name} must be from 0 (no limit) to 1e12"
    try:
        host, _ = split_address(config.gateway.listen, "[gateway] listen")
    except ConfigError as error:
        yield str(error)
        return
    if config.tls.mode == "prefer":
        yield '[tls] mode must be "require": a gateway serves no client in the clear beside those with TLS'
    if "sasl" in config.authentication.methods:
        yield '[authentication] methods has "sasl": a gateway takes "token" and "certificate"'
    if config.authentication.tag_keys_file or config.authentication.tag_key_file:
        yield "[authentication] has keys of tags: those are for bookies"
    if not is_loopback(host) and not keeps_strangers_out(config.authentication, config.tls):
        yield (
            f'[gateway] listen = "{config.gateway.listen}": beyond loopback a gateway needs [tls] mode = "require" and'
            " [authentication] methods, else everybody may change metadata"
        )
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
