"""Who is served: whether the connection is encrypted, and the first role of the client's certificate.

A certificate names its client's roles as Apache's do: its organizational unit is `0:writer,reader;1:cluster`, where
field 0 has the roles, and the first of them counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastbk.server.configuration.tls import TlsSettings

IN_THE_CLEAR = (
    "this bookie serves TLS only: set FASTBK_TLS_CA_FILE, or connect(uri, tls=TlsOptions(...))"
)
_ROLES_FIELD = "0"


class Admission:
    """The rules of one bookie."""

    def __init__(self, settings: TlsSettings) -> None:
        """Keep them."""
        self._is_tls_required = settings.mode == "require"
        self._roles = frozenset(settings.authorized_roles)

    @property
    def is_required(self) -> bool:
        """Whether anybody may be refused."""
        return self._is_tls_required

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Return why a client is not served; "": it is.

        `certificate`: as `SSLSocket.getpeercert` has it, {} where none was shown; None: the client is in the clear.
        """
        if certificate is None:
            return IN_THE_CLEAR if self._is_tls_required else ""
        if not self._roles:
            return ""
        role = first_role(certificate)
        if role in self._roles:
            return ""
        if not role:
            return "this bookie serves certificates with a role: an organizational unit such as 0:writer"
        return f'this bookie does not serve certificates with the role "{role[:100]}"'


def first_role(certificate: Mapping[str, Any]) -> str:
    """Return the first role that a certificate names; "": none. The first unit with roles counts."""
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name != "organizationalUnitName":
                continue
            for field in value.split(";"):
                number, separator, roles = field.partition(":")
                if separator and number.strip() == _ROLES_FIELD:
                    return str(roles.split(",")[0].strip())
    return ""
