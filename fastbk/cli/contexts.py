"""Contexts: clusters by name, with what a client needs to reach them. `fastbk context` edits them.

    current = "production"

    [contexts.production]
    metadata = "zk+hierarchical://zk1:2181;zk2:2181/ledgers"
    tls_ca_file = "/etc/fastbk/ca.pem"
    token_file = "/etc/fastbk/production.token"

The file is `$XDG_CONFIG_HOME/fastbk/contexts.toml`. It holds no secrets, only paths of files that do. A command applies
a context by setting the variables that clients read (`FASTBK_METADATA`, `FASTBK_TLS_...`), so that processes which it
starts use the same cluster. Order, the first that names a cluster:

1. `--metadata URI`: contexts do not count at all.
2. `--context NAME`: the context alone; variables that name a cluster, certificates or credentials do not count.
3. `FASTBK_METADATA`: contexts do not count at all.
4. `FASTBK_CONTEXT`, then the context in use. A variable that is set wins over the context's value.

So credentials of a context never go to a cluster that was named in another way.

Decision 127.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import ConfigError
from fastbk.meta.uri import URI_VARIABLE
from fastbk.safe_files import FILE_MODE, make_directory, read_public, replaced
from fastbk.units import format_names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, MutableMapping

NAME_VARIABLE = "FASTBK_CONTEXT"
CONTEXTS_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Context(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How to reach one cluster. All but `metadata`, `user` and `tls` are absolute paths of files; empty: not given."""

    metadata: str
    tls: bool = False
    """TLS to bookies with the system's authorities; any of the next paths switches TLS on, too."""
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_key_password_file: str = ""
    token_file: str = ""
    user: str = ""
    user_password_file: str = ""
    zookeeper_file: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables that clients read, for what this context gives."""
        found = {
            VARIABLES[name]: str(getattr(self, name)) for name in VARIABLES if getattr(self, name)
        }
        if self.tls or any(name.startswith("tls_") and getattr(self, name) for name in VARIABLES):
            found["FASTBK_TLS"] = "1"
        return found


VARIABLES = {
    "metadata": URI_VARIABLE,
    "tls_ca_file": "FASTBK_TLS_CA_FILE",
    "tls_certificate_file": "FASTBK_TLS_CERTIFICATE_FILE",
    "tls_key_file": "FASTBK_TLS_KEY_FILE",
    "tls_key_password_file": "FASTBK_TLS_KEY_PASSWORD_FILE",
    "token_file": "FASTBK_TOKEN_FILE",
    "user": "FASTBK_USER",
    "user_password_file": "FASTBK_USER_PASSWORD_FILE",
    "zookeeper_file": "FASTBK_ZOOKEEPER_FILE",
}
"""The variable that a client reads for each value of a context; FASTBK_TLS comes beside them."""
_REPLACED = (*VARIABLES.values(), "FASTBK_TLS", "FASTBK_TLS_CA_PASSWORD_FILE", "FASTBK_TLS_VERIFY_NAME",
             "FASTBK_SASL_WITHOUT_TLS", "FASTBK_GATEWAY_TOKEN_FILE", "FASTBK_PAGES_TOKEN_FILE")  # fmt: skip
"""Variables that `--context` removes where the context does not set them."""


class Contexts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file. `current`: the context in use, empty for none."""

    current: str = ""
    contexts: dict[str, Context] = msgspec.field(default_factory=dict)

    def named(self, name: str) -> Context:
        """Return a context. Raises ConfigError."""
        if (found := self.contexts.get(name)) is None:
            raise ConfigError(
                f"no context {name!r} in {path()}; there are: {format_names(self.contexts)}."
                " `fastbk context add` makes one"
            )
        return found


def path() -> Path:
    """Return where the file is, whether it is there or not."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if home.startswith("/") else Path.home() / ".config"
    return folder / "fastbk" / "contexts.toml"


def load() -> Contexts:
    """Return what the file holds; nothing where there is none. Raises ConfigError."""
    file = path()
    if not file.exists():
        return Contexts()
    try:
        return msgspec.convert(tomllib.loads(read_public(str(file)).decode()), Contexts)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file} is damaged: {error}. Mend it by hand, or remove it") from error


@contextmanager
def changed() -> Iterator[Contexts]:
    """Give the contexts to change, and replace the file with them at the end; one process at a time.

    Raises ConfigError, OSError.
    """
    file = path()
    make_directory(file.parent)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = load()
        yield found
        with replaced(file) as draft:
            draft.chmod(FILE_MODE)
            draft.write_text(_text(found), encoding="utf-8")
    finally:
        os.close(folder)


def checked_name(name: str) -> str:
    """Return a name that a context may have. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a context's name: use up to 64 letters, digits, dots, dashes and underscores"
        )
    return name


def apply(options: argparse.Namespace, environment: MutableMapping[str, str]) -> None:
    """Have `environment` name the cluster of the context that counts, if one does. Raises ConfigError."""
    if options.context is not None:
        if options.metadata:
            raise ConfigError("--context and --metadata both name a cluster: give one of them")
        chosen = load().named(options.context)
        for name in _REPLACED:
            environment.pop(name, None)
        environment.update(chosen.environment())
        return
    if options.metadata or environment.get(URI_VARIABLE):
        return
    found = load()
    if name := environment.get(NAME_VARIABLE) or found.current:
        for variable, value in found.named(name).environment().items():
            environment.setdefault(variable, value)


def _text(found: Contexts) -> str:
    """Return the file's text. A JSON string without control characters is a TOML string."""
    lines = [f"current = {json.dumps(found.current)}"] if found.current else []
    for name, one in sorted(found.contexts.items()):
        lines += ["", f"[contexts.{json.dumps(name)}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in msgspec.to_builtins(one).items()]
    return "\n".join(lines).lstrip() + "\n"
