"""Names of namespaces and streams, and how they are written in paths of metadata. Pure."""

from __future__ import annotations

import unicodedata
from urllib.parse import quote, unquote

from fastbk.errors import ConfigError

NAME_BYTES_MAX = 255
"""Of a name as it is written in a path: UTF-8, with three characters for each byte that paths do not take."""
_PLAIN = "@:+=~"  # beside letters, digits and _.-
_FORBIDDEN = {"Cc", "Cs", "Zl", "Zp"}


def check_name(name: str) -> str:
    """Return `name` if a namespace or stream may have it. Raises ConfigError with the rule that it breaks."""
    if not name:
        raise ConfigError("a name is empty: between slashes there has to be one")
    if name[0] in ".<":
        raise ConfigError(f"{name!r}: a name does not begin with {name[0]!r}")
    if "/" in name:
        raise ConfigError(f"{name!r}: slashes are for paths of namespaces, not for names")
    if any(unicodedata.category(one) in _FORBIDDEN for one in name):
        raise ConfigError(f"{name!r}: a name has no control characters and no line ends")
    if len(encode(name)) > NAME_BYTES_MAX:
        raise ConfigError(
            f"{name[:40]!r}…: a name has at most {NAME_BYTES_MAX} bytes, as it is written in metadata"
        )
    return name


def encode(name: str) -> str:
    """Return a name as one part of a path of metadata."""
    return quote(name, safe=_PLAIN)


def decode(part: str) -> str:
    """Return the name that `encode` wrote."""
    return unquote(part)


def split_path(path: str) -> tuple[str, ...]:
    """Return the names of a path of namespaces, such as tenant/app; none for the root, "". Raises ConfigError."""
    return tuple(check_name(name) for name in path.split("/")) if path else ()


def split_stream_path(path: str) -> tuple[str, str]:
    """Return namespace and name of a stream's path, such as tenant/app/orders. Raises ConfigError."""
    namespace, _, name = path.strip("/").rpartition("/")
    if not name:
        raise ConfigError(f"{path!r} is no stream: write namespace and name, such as shop/orders")
    return namespace, name
