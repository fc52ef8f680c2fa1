"""Apache's keys about TLS together: when they count, and what is refused with its cure."""

from __future__ import annotations

import pytest

from fastbk.security.settings import TlsSettings
from tests.fixtures.apache_cases import FACTORY, PEM, PKCS12, ROLES, SASL, TRUST
from tests.unit.apache.test_configuration import BASE, accepted, translated


def tls_of(keys: dict[str, str]) -> TlsSettings:
    return accepted(keys)[0].tls


def test_keys_count_only_where_tls_is_on() -> None:
    assert tls_of({"authorizedRoles": "a"}) == TlsSettings()
    rest = {key: value for key, value in (PKCS12 | TRUST).items() if key not in FACTORY}
    assert tls_of(rest) == TlsSettings()
    off = dict(TRUST, tlsClientAuthentication="false")
    assert tls_of(PEM | off).client_certificates == "none"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (FACTORY, "keytool -importkeystore"),
        (
            PKCS12 | {"tlsKeyStoreType": "JKS", "tlsKeyStore": "/k.jks"},
            "-srckeystore /k.jks -destkeystore /k.p12",
        ),
        (PKCS12 | {"tlsKeyStoreType": "BCFKS"}, "BCFKS is not known"),
        (PEM | {"tlsCertificatePath": ""}, "the bookie's certificate"),
        (PEM | TRUST | {"tlsTrustStore": ""}, "the authorities"),
        (PEM | TRUST | {"tlsTrustStoreType": "JKS"}, "keytool"),
        (PEM | {"tlsProviderFactoryClass": "my.Factory"}, "my.Factory cannot run here"),
        (ROLES, "roles are in certificates"),
        (PEM | ROLES, "tlsClientAuthentication is not set"),
        (PEM | TRUST | ROLES | {"authorizedRoles": ""}, "at least one"),
        (PEM | TRUST | ROLES | {"bookieAuthProviderFactoryClass": "a.Sasl"}, "cannot run here"),
        (SASL | {"java.security.auth.login.config": ""}, "name the file of Java's -D"),
        (PEM | {"tlsEnabledProtocols": "SSLv3"}, "TLSv1.2 and TLSv1.3"),
    ],
)
def test_what_would_not_be_what_the_file_asks_for(keys: dict[str, str], reason: str) -> None:
    config, report = translated(BASE | keys)
    assert config is None
    assert reason in "\n".join(report.problems)
