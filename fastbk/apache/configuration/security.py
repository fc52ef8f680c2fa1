"""Translates Apache's keys about TLS and SASL (DIGEST-MD5).

Apache's bookie with TLS serves clients in the clear, too; so `mode` becomes `prefer`. With its
provider that authorises by a certificate's role it serves nobody else; so `mode` becomes `require`.

Apache's bookie takes the login configuration of SASL from its JVM
(`-Djava.security.auth.login.config=FILE`). Here the file has the same name as a key: Apache's
ignores that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from fastbk.apache.configuration.config_builder import ConfigBuilder

FACTORY = "tlsProviderFactoryClass"
APACHES_OWN = "org.apache.bookkeeper.tls.TLSContextFactory"
AUTHORIZATION = "bookieAuthProviderFactoryClass"
BY_ROLES = "org.apache.bookkeeper.tls.BookieAuthZFactory"
NOTHING = ("", "null", "none")
TYPES = ("PEM", "PKCS12")
VERSIONS = {"TLSv1.2": "1.2", "TLSv1.3": "1.3"}


def apply_tls(builder: ConfigBuilder) -> None:
    """Set [tls] where the file has TLS on. Raises ConfigError for what would not be what it asks for."""
    source = builder.source
    factory = source.text(FACTORY) or ""
    provider = source.text(AUTHORIZATION) or ""
    has_roles = provider == BY_ROLES
    if provider.lower() not in NOTHING and provider not in (BY_ROLES, BY_SASL):
        raise source.fault(
            AUTHORIZATION,
            f"that class cannot run here; of Apache's there are {BY_ROLES} and {BY_SASL}",
        )
    if factory.lower() in NOTHING:
        if has_roles:
            raise _fault(
                builder, FACTORY, f"{AUTHORIZATION} needs TLS, since roles are in certificates"
            )
        return
    if factory != APACHES_OWN:
        raise source.fault(
            FACTORY, f"the class {factory} cannot run here; Apache's own is {APACHES_OWN}"
        )
    builder.put("tls.mode", "prefer", FACTORY)
    _identity(builder)
    if source.boolean("tlsClientAuthentication"):
        _authorities(builder)
    if has_roles:
        _roles(builder)
    if (refresh_s := builder.integer("tlsCertFilesRefreshDurationSeconds")) is not None:
        builder.put("tls.refresh_interval_s", refresh_s, "tlsCertFilesRefreshDurationSeconds")
    if versions := source.items("tlsEnabledProtocols"):
        allowed = sorted(VERSIONS[version] for version in versions if version in VERSIONS)
        if not allowed:
            raise source.fault("tlsEnabledProtocols", "a bookie here speaks TLSv1.2 and TLSv1.3")
        builder.put("tls.version_min", allowed[0], "tlsEnabledProtocols")


def _identity(builder: ConfigBuilder) -> None:
    kind = _type_of(builder, "tlsKeyStoreType")
    store = _path(builder, "tlsKeyStore", "the bookie's key")
    if kind == "PEM":
        builder.put("tls.key_file", store, "tlsKeyStore", "tlsKeyStoreType")
        certificate = _path(builder, "tlsCertificatePath", "the bookie's certificate")
        builder.put("tls.certificate_file", certificate, "tlsCertificatePath")
    else:
        builder.put("tls.certificate_file", store, "tlsKeyStore", "tlsKeyStoreType")
    if (password := builder.source.text("tlsKeyStorePasswordPath")) is not None:
        builder.put("tls.key_password_file", password, "tlsKeyStorePasswordPath")


def _authorities(builder: ConfigBuilder) -> None:
    kind = _type_of(builder, "tlsTrustStoreType")
    store = _path(builder, "tlsTrustStore", "the authorities of clients' certificates")
    builder.put("tls.client_certificates", "require", "tlsClientAuthentication")
    builder.put("tls.ca_file", store, "tlsTrustStore", "tlsTrustStoreType")
    password = builder.source.text("tlsTrustStorePasswordPath")
    if password is not None and kind == "PKCS12":
        builder.put("tls.ca_password_file", password, "tlsTrustStorePasswordPath")


def _roles(builder: ConfigBuilder) -> None:
    source = builder.source
    if not source.boolean("tlsClientAuthentication"):
        raise _fault(
            builder,
            "tlsClientAuthentication",
            f"{AUTHORIZATION} needs it: roles are in certificates",
        )
    roles = source.items("authorizedRoles")
    if not roles:
        raise _fault(builder, "authorizedRoles", f"{AUTHORIZATION} needs at least one")
    builder.put("tls.mode", "require", FACTORY, AUTHORIZATION)
    builder.put("tls.authorized_roles", roles, "authorizedRoles")


def _type_of(builder: ConfigBuilder, key: str) -> str:
    kind = (builder.source.text(key) or "JKS").upper()
    if kind in TYPES:
        return kind
    if kind == "JKS":
        store = builder.source.text(key.removesuffix("Type")) or "STORE.jks"
        target = store.removesuffix(".jks") + ".p12"
        raise _fault(
            builder,
            key,
            "only Java reads JKS (Apache's default); convert the store and set PKCS12: keytool -importkeystore"
            f" -srckeystore {store} -destkeystore {target} -deststoretype PKCS12",
        )
    raise _fault(builder, key, f"{kind} is not known here; there are {' and '.join(TYPES)}")


def _path(builder: ConfigBuilder, key: str, what: str) -> str:
    path = builder.source.text(key)
    if not path:
        raise _fault(builder, key, f"it has to name {what}")
    return path


def _fault(builder: ConfigBuilder, key: str, reason: str) -> ConfigError:
    if key in builder.source.properties:
        return builder.source.fault(key, reason)
    return ConfigError(f"{key} is not set: {reason}")


PROVIDER = "bookieAuthProviderFactoryClass"
BY_SASL = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
LOGIN_FILE = "java.security.auth.login.config"
SECTION, ALLOWED = "saslJaasBookieSectionName", "saslJaasClientAllowedIds"
ALLOWED_DEFAULT = ".*bookkeeper.*"


def apply_sasl(builder: ConfigBuilder) -> None:
    """Set [authentication] where the file has SASL on. Raises ConfigError."""
    source = builder.source
    if source.text(PROVIDER) != BY_SASL:
        return
    path = source.text(LOGIN_FILE)
    if not path:
        raise ConfigError(
            f"{PROVIDER} is SASL's: name the file of Java's -D{LOGIN_FILE} in the key {LOGIN_FILE}"
        )
    builder.put("authentication.methods", ("sasl",), PROVIDER)
    builder.put("authentication.users_file", path, LOGIN_FILE)
    builder.put("authentication.users_section", source.text(SECTION) or "Bookie", SECTION)
    builder.put("authentication.users_allowed", source.text(ALLOWED) or ALLOWED_DEFAULT, ALLOWED)
    # As Apache's bookie, which does not mind.
    builder.put("authentication.sasl_without_tls", True, PROVIDER)
