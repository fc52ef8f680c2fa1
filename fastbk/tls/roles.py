"""The roles that a certificate names, as Apache's do: its organizational unit is `0:writer,reader;1:cluster`.

Field 0 has the roles, and the first of them counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROLES_FIELD = "0"


def first_role(certificate: Mapping[str, Any]) -> str:
    """Return the first role of a certificate (as `SSLSocket.getpeercert` has it); "": none. The first unit counts."""
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name != "organizationalUnitName":
                continue
            for field in value.split(";"):
                number, separator, roles = field.partition(":")
                if separator and number.strip() == _ROLES_FIELD:
                    return str(roles.split(",")[0].strip())
    return ""
