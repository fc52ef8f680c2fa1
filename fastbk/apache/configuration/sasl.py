"""Translates Apache's keys about SASL (DIGEST-MD5).

Apache's bookie takes the login configuration from its JVM (`-Djava.security.auth.login.config=FILE`). Here the file has
the same name as a key: Apache's ignores that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from fastbk.apache.configuration.config_builder import ConfigBuilder

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
